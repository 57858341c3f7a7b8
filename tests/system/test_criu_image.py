# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""criu_image over SSH, with real CRIU, on a host with a simulated GPU: to disk and back, whole, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import socket_credentials
from tests.system.hosts import ROOT
from tests.system.lab import Job, Lab, Workload, labs
from tests.system.playing import Result, Task, cuda

STORE = "/var/lib/images"
TREE = r"""
set -e
cd /var/lib/lab
gpusim-workload --out /var/lib/lab/left --vram 16 </dev/null >left.log 2>&1 &
gpusim-workload --out /var/lib/lab/right --vram 16 </dev/null >right.log 2>&1 &
{ i=0; while :; do i=$((i+1)); echo "$i"; sleep 0.05; done; } </dev/null 2>/dev/null |
    while read -r line; do echo "$line" >&3; done 3>>/var/lib/lab/lines &
wait
"""


def image(state: str, *, check: bool = False, diff: bool = False, **options: Any) -> Task:
    """A task with criu_image that may fail."""
    return {
        "name": f"{state}{' (check)' if check else ''}",
        "gpufleet.checkpoint.criu_image": {"state": state, **options},
        "ignore_errors": True,
        "check_mode": check,
        "diff": diff,
    }


def first(result: Result) -> dict[str, Any]:
    (only,) = result.data["images"]
    return dict(only)


@pytest.fixture(scope="module")
def host(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--vram", "2048") as (one,):
        yield one


@pytest.fixture
def lab(host: Lab) -> Iterator[Lab]:
    host.host.sh(f"rm -rf {STORE}")
    with host.watched():
        yield host
    left = host.host.sh("pgrep -l 'gpufleet|criu' || true")
    assert not left, left
    assert not host.host.sh(f"find {STORE} -name '*.partial' -o -name '.*' -mindepth 1 2>/dev/null || true")


def gone(lab: Lab, *jobs: Job) -> bool:
    return all(seen["state"] == "" for seen in lab.look(*jobs).values())


def test_to_disk_and_back_and_nothing_twice(lab: Lab) -> None:
    job = lab.one()
    path = f"{STORE}/one"
    dump: dict[str, Any] = {"pid": job.pid, "path": path, "leave_running": False}
    foreseen, made, again = lab.play(
        image("present", check=True, diff=True, **dump), image("present", **dump), image("present", **dump)
    )
    foreseen.ok(changed=True)
    assert (first(foreseen)["before"], first(foreseen)["after"]) == ("absent", "present")
    made.ok(changed=True)
    again.ok(changed=False)
    assert gone(lab, job)
    assert first(made)["device_bytes"] >= 16 << 20
    assert first(made)["bytes"] > first(made)["device_bytes"]
    assert lab.host.sh(f"stat -c '%a %U' {path}; find {path} -type f -not -perm 600") == "700 root"
    foreseen, back, again, suspended, resumed = lab.play(
        image("restored", path=path, check=True),
        image("restored", path=path),
        image("restored", path=path),
        cuda("checkpointed", [job.pid]),
        cuda("running", [job.pid]),
    )
    foreseen.ok(changed=True)
    back.ok(changed=True)
    again.ok(changed=False)
    suspended.ok(changed=True)
    resumed.ok(changed=True)
    assert first(back)["pids"] == [job.pid]
    assert lab.look(job)[job.pid]["parent"] == 1
    lab.host.run("kill", "-9", str(job.pid))
    lab.wait_for("its end", lambda: gone(lab, job))
    job.may_be_gone = "it was ended after its restore"
    (ended,) = lab.play(image("restored", path=path))
    assert first(ended.ok(changed=False))["ended"] is True
    assert gone(lab, job)


def test_what_an_image_took_here_is_what_the_next_one_is_estimated_by(lab: Lab) -> None:
    job = lab.one(vram=64)
    path = f"{STORE}/measured"
    preflight: Task = {"name": "preflight", "gpufleet.checkpoint.gpu_preflight": {"pids": [job.pid]}}
    before, made, back, after = lab.play(
        preflight,
        image("present", pid=job.pid, path=path, leave_running=False),
        image("restored", path=path),
        preflight,
    )
    results = {"criu_dump": first(made.ok(changed=True)), "criu_restore": first(back.ok(changed=True))}
    took = {name: result["seconds"] for name, result in results.items()}
    measured = f"SELECT s.* FROM image_steps s, images i WHERE i.id = s.image AND i.path = '{path}'"
    rows = {row["step"]: row for row in lab.ask("journal", measured)}
    assert set(rows) == set(took)
    for name, own in (("criu_dump", ("dump", "prove", "seal")), ("criu_restore", ("verify", "restore"))):
        assert rows[name]["seconds"] == pytest.approx(sum(took[name][step] for step in own), abs=0.001)
        assert 64 << 20 <= rows[name]["bytes"] <= results["criu_dump"]["bytes"]
    phases = {"dump": "criu_dump", "restore": "criu_restore"}
    before.ok(), after.ok()
    counted = {phase: [one.data["estimate"]["rates"][phase] for one in (before, after)] for phase in phases}
    for phase, (earlier, later) in counted.items():
        assert later["measured_steps"] == earlier["measured_steps"] + 1
        expected = after.processes[job.pid]["image_bytes"] / (later["gib_per_second"] * (1 << 30))
        assert after.processes[job.pid]["seconds"][phase] == pytest.approx(expected, rel=0.02, abs=0.01)
        if later["measured_steps"] == 1:
            row = rows[phases[phase]]
            assert later["gib_per_second"] == pytest.approx(row["bytes"] / row["seconds"] / (1 << 30), rel=0.01)


def start_tree(lab: Lab) -> int:
    """Its root."""
    lab.host.put("/var/lib/lab/tree.sh", TREE)
    lab.host.sh("cd /var/lib/lab; rm -f lines left right; setsid -f sh tree.sh </dev/null >tree.log 2>&1")
    lab.host.sh("cd /var/lib/lab; until [ -s left ] && [ -s right ] && [ -s lines ]; do sleep 0.05; done")
    return int(lab.host.sh("pgrep -of 'sh tree.sh'"))


def test_a_tree_with_a_shell_two_cuda_children_and_a_pipe(lab: Lab) -> None:
    root = start_tree(lab)
    sums = [lab.host.checksum(f"/var/lib/lab/{name}") for name in ("left", "right")]
    tree = lab.host.sh(f"pgrep -P {root} | sort -n").split()
    assert len(tree) == 4
    made, back = lab.play(
        image("present", pid=root, path=f"{STORE}/tree", leave_running=False),
        image("restored", path=f"{STORE}/tree"),
    )
    made.ok(changed=True)
    back.ok(changed=True)
    assert set(first(made)["pids"]) >= {root, *map(int, tree)}
    assert lab.host.sh(f"pgrep -P {root} | sort -n").split() == tree
    for name in ("left", "right"):
        assert lab.host.counts(f"/var/lib/lab/{name}")
    assert [lab.host.checksum(f"/var/lib/lab/{name}") for name in ("left", "right")] == sums
    time.sleep(0.5)
    # Each number once, in order: nothing of the pipe or of the file's offset is lost or doubled.
    lines = [int(line) for line in lab.host.sh("cat /var/lib/lab/lines").split()]
    assert lines == list(range(1, len(lines) + 1))
    lab.host.sh(f"pkill -9 -P {root}; kill -9 {root}; true")
    (absent,) = lab.play(image("absent", path=f"{STORE}/tree"))
    absent.ok(changed=True)


def test_three_at_once_into_a_store_and_back(lab: Lab) -> None:
    jobs = lab.start(*[Workload()] * 3)
    pids = [job.pid for job in jobs]
    made, back, again = lab.play(
        image("present", pids=pids, store=STORE, leave_running=False, parallel=2, compress="zstd"),
        image("restored", store=STORE),
        image("restored", store=STORE),
    )
    made.ok(changed=True)
    back.ok(changed=True)
    again.ok(changed=False)
    assert sorted(one["pid"] for one in back.data["images"]) == sorted(pids)


@pytest.mark.parametrize("together", [True, False])
def test_one_of_three_fails(lab: Lab, together: bool) -> None:
    """An io_uring, allowed past nothing: here a managed process that the engine is told to try."""
    *jobs, managed = lab.start(Workload(), Workload(), Workload("managed"))
    pids = [job.pid for job in (*jobs, managed)]
    (made,) = lab.play(
        image("present", pids=pids, store=STORE, leave_running=False, all_or_nothing=together, allow=["uvm_managed"])
    )
    assert made.failed
    made.says(f"pid-{managed.pid}: suspend failed", "NOT_SUPPORTED", "It was taken back, and goes on as before.")
    after = {one["pid"]: one["after"] for one in made.data["images"]}
    assert after[managed.pid] == "absent"
    assert {after[job.pid] for job in jobs} == ({"absent"} if together else {"present"})
    if not together:
        assert gone(lab, *jobs)
        lab.play(image("restored", store=STORE))[0].ok(changed=True)


def test_a_snapshot_of_one_that_goes_on(lab: Lab) -> None:
    job = lab.one()
    snap: dict[str, Any] = {"pid": job.pid, "path": f"{STORE}/snap", "leave_running": True}
    made, again, refused, absent = lab.play(
        image("present", **snap),
        image("present", **snap),
        image("restored", path=f"{STORE}/snap"),
        image("absent", path=f"{STORE}/snap"),
    )
    made.ok(changed=True)
    again.ok(changed=False)
    refused.refused("second_life", str(job.pid))
    absent.ok(changed=True)


def test_what_was_parked_with_a_guard_is_dumped_and_comes_back_running(lab: Lab) -> None:
    job = lab.one()
    suspended, made, back = lab.play(
        cuda("checkpointed", [job.pid]),
        image("present", pid=job.pid, path=f"{STORE}/parked", leave_running=False),
        image("restored", path=f"{STORE}/parked"),
    )
    suspended.ok(changed=True)
    made.ok(changed=True)
    back.ok(changed=True)


def test_an_image_that_was_not_restored_is_kept(lab: Lab) -> None:
    job = lab.one()
    path = f"{STORE}/kept"
    made, refused, pruned, back, again, absent = lab.play(
        image("present", pid=job.pid, path=path, leave_running=False),
        image("absent", path=path),
        image("absent", store=STORE, keep=0),
        image("restored", path=path),
        image("absent", store=STORE, keep=0),
        image("absent", path=path),
    )
    made.ok(changed=True)
    refused.refused(str(job.pid), "force: true")
    pruned.ok(changed=False)
    back.ok(changed=True)
    again.ok(changed=True)
    absent.ok(changed=False)


def test_what_was_restored_can_be_dumped_again_in_its_place(lab: Lab) -> None:
    job = lab.one()
    path = f"{STORE}/again"
    dump: dict[str, Any] = {"pid": job.pid, "path": path, "leave_running": False}
    results = lab.play(
        image("present", **dump),
        image("restored", path=path),
        image("present", **dump),
        image("restored", path=path),
        image("restored", path=path),
    )
    assert [result.ok().changed for result in results] == [True, True, True, True, False]
    lineages = {first(result)["lineage"] for result in results}
    assert len(lineages) == 1


def test_another_process_is_never_taken_for_the_one_in_the_image(lab: Lab) -> None:
    job, other = lab.start(Workload(), Workload())
    path = f"{STORE}/mine"
    made, refused = lab.play(
        image("present", pid=job.pid, path=path, leave_running=False),
        image("present", pid=other.pid, path=path, leave_running=False),
    )
    made.ok(changed=True)
    refused.refused(str(other.pid), path)
    lab.play(image("restored", path=path))[0].ok(changed=True)


def test_a_changed_image_is_refused(lab: Lab) -> None:
    job = lab.one()
    path = f"{STORE}/changed"
    lab.play(image("present", pid=job.pid, path=path, leave_running=False))[0].ok(changed=True)
    pages = lab.host.sh(f"ls {path}/pages-*.img | head -n 1")
    lab.host.sh(f"cp {pages} /var/lib/pages && printf X | dd of={pages} bs=1 seek=5000 conv=notrunc status=none")
    (refused,) = lab.play(image("restored", path=path))
    assert refused.failed and not refused.changed
    refused.says("pages-", "chunk")
    lab.host.sh(f"cat /var/lib/pages > {pages}")
    lab.play(image("restored", path=path))[0].ok(changed=True)


def test_a_tree_with_a_terminal_is_refused_whatever_is_allowed(lab: Lab) -> None:
    lab.host.sh("rm -f /var/lib/lab/tty; setsid -f script -qec 'exec gpusim-workload --out /var/lib/lab/tty --vram 16' "
                "/dev/null </dev/null >/dev/null 2>&1; until [ -s /var/lib/lab/tty ]; do sleep 0.05; done")  # fmt: skip
    pid = int(lab.host.sh("cat /var/lib/lab/tty.pid"))
    (refused,) = lab.play(
        image("present", pid=pid, path=f"{STORE}/tty", leave_running=False, shell_job="yes", allow=["controlling_tty"])
    )
    refused.refused(str(pid), "terminal", "setsid")
    lab.host.run("kill", "-9", str(pid))


@pytest.mark.skipif(socket_credentials() is not False, reason="the kernel refuses SO_PASSCRED from Linux 6.16 on")
@pytest.mark.parametrize("opened", ["listening", "datagrams"])
def test_a_socket_that_criu_can_not_dump_is_told_before_anything_is_stopped(lab: Lab, opened: str) -> None:
    lab.host.put("/usr/local/bin/opener", (ROOT / "tests/recorder/opener.py").read_text(), "755")
    job = lab.one(wrap=("/usr/bin/python3", "/usr/local/bin/opener", opened, "--"))
    dump: dict[str, Any] = {"pid": job.pid, "path": f"{STORE}/socket", "leave_running": False}
    before = lab.look(job)[job.pid]["start"]
    refused, allowed, ready = lab.play(
        image("present", **dump),
        image("present", **dump, allow=["socket_option"]),
        {
            "name": "preflight",
            "gpufleet.checkpoint.gpu_preflight": {"pids": [job.pid], "capabilities": ["dump"], "fail_on": "never"},
        },
    )
    refused.refused("CRIU 4.1.1", lab.host.sh("uname -r"), "descriptor ", "allow: [socket_option]")
    assert not refused.data["images"][0]["seconds"]
    # It is as it was told: the dump fails, and is undone.
    assert allowed.failed
    allowed.says("Can't get 1:16 opt", "goes on as before")
    assert "socket_option" in {one["id"] for one in ready.ok().data["findings"]}
    assert lab.look(job)[job.pid]["start"] == before


def test_what_the_kernel_may_kill_is_as_before(lab: Lab) -> None:
    """Not as of who restores it: here somebody with another oom_score_adj than any process of the image."""
    usual, first_to_go = jobs = lab.start(Workload(), Workload())
    scores = {usual.pid: "0", first_to_go.pid: "250"}
    lab.host.sh(f"echo 250 >/proc/{first_to_go.pid}/oom_score_adj")
    python = "/usr/local/bin/first-to-go"
    lab.host.put(python, '#!/bin/sh\necho 300 >/proc/$$/oom_score_adj && exec python3 "$@"\n', "755")
    made, back = lab.play(
        image("present", pids=[job.pid for job in jobs], store=STORE, leave_running=False),
        {**image("restored", store=STORE), "vars": {"ansible_python_interpreter": python}},
    )
    made.ok(changed=True)
    back.ok(changed=True)
    assert {pid: lab.host.sh(f"cat /proc/{pid}/oom_score_adj") for pid in scores} == scores


HOLD = """
import ctypes, os, sys
tid = ctypes.c_int(int(sys.argv[1]))
arguments = (ctypes.c_uint64 * 11)(*[0] * 4, 17, *[0] * 3, ctypes.addressof(tid), 1)
if ctypes.CDLL(None).syscall(435, ctypes.byref(arguments), 88) == 0:
    os.setsid()
    os.execvp("sleep", ["sleep", "600"])
"""


@pytest.fixture
def moved(lab: Lab) -> Iterator[tuple[Job, str, int]]:
    """A job that was dumped, its image, and somebody else with its PID."""
    job = lab.one("polling")
    path = f"{STORE}/moved"
    lab.play(image("present", pid=job.pid, path=path, leave_running=False))[0].ok(changed=True)
    job.may_be_gone = "another process has its PID"
    lab.host.sh(f"python3 -c '{HOLD}' {job.pid} </dev/null >/dev/null 2>&1")
    assert lab.host.sh(f"cat /proc/{job.pid}/comm") == "sleep"
    try:
        yield job, path, job.pid
    finally:
        lab.host.sh(f"kill -9 {job.pid}; pkill -9 gpufleet-init; true")
        lab.wait_for("end of the namespace", lambda: not lab.host.sh("pgrep gpufleet-init || true"))


def test_a_tree_in_a_namespace_of_its_own(lab: Lab) -> None:
    root = start_tree(lab)
    sums = [lab.host.checksum(f"/var/lib/lab/{name}") for name in ("left", "right")]
    path = f"{STORE}/tree"
    (made,) = lab.play(image("present", pid=root, path=path, leave_running=False))
    pids = first(made.ok(changed=True))["pids"]
    taken = pids[2]
    lab.host.sh(f"python3 -c '{HOLD}' {taken} </dev/null >/dev/null 2>&1")
    try:
        refused, back = lab.play(image("restored", path=path), image("restored", path=path, pid_namespace="new"))
        refused.refused(f"PID {taken} (sleep")
        told = first(back.ok(changed=True))
        known = dict(zip(told["image_pids"], told["pids"], strict=True))
        # Behind the root and its four children is the sleep of the loop in one of them: between two there is none.
        assert set(pids[:5]) <= set(known) and max(len(pids), len(known)) <= 6
        assert set(known.values()).isdisjoint({taken})
        assert lab.host.sh(f"pgrep -P {known[root]} | sort -n").split() == sorted(
            (str(known[pid]) for pid in pids[1:5]), key=int
        )
        for name in ("left", "right"):
            assert lab.host.counts(f"/var/lib/lab/{name}")
        assert [lab.host.checksum(f"/var/lib/lab/{name}") for name in ("left", "right")] == sums
        lines = [int(line) for line in lab.host.sh("cat /var/lib/lab/lines").split()]
        assert lines == list(range(1, len(lines) + 1))
    finally:
        # As a person would: everybody in it ends with its first process.
        lab.host.sh(f"kill -9 {taken}; pkill -9 gpufleet-init; true")
        lab.wait_for("end of the namespace", lambda: not lab.host.sh("pgrep 'gpufleet-init|gpusim' || true"))


def here(result: Result) -> int:
    """The PID of the only process that was restored."""
    (pid,) = first(result)["pids"]
    return int(pid)


def test_a_tree_whose_pid_is_in_use_gets_a_namespace_of_its_own(lab: Lab, moved: tuple[Job, str, int]) -> None:
    job, path, holder = moved
    refused, foreseen, back, again = lab.play(
        image("restored", path=path),
        image("restored", path=path, pid_namespace="new", check=True),
        image("restored", path=path, pid_namespace="new"),
        image("restored", path=path),
    )
    refused.refused(f"PID {holder} (sleep", "pid_namespace: new")
    foreseen.ok(changed=True)
    back.ok(changed=True)
    again.ok(changed=False)
    pid = here(back)
    assert pid != holder and first(again)["pids"] == [pid] and first(back)["image_pids"] == [holder]
    assert lab.host.sh(f"awk '/^NSpid:/ {{ print $NF }}' /proc/{pid}/status") == str(holder)
    name = f"/run/lab/{job.name}"
    assert lab.host.counts(name) and lab.host.checksum(name) == job.sum
    init = lab.host.sh(f"awk '/^PPid:/ {{ print $2 }}' /proc/{pid}/status")
    assert lab.host.sh(f"cat /proc/{init}/comm") == "gpufleet-init"
    assert lab.host.sh(f"ls -l /proc/{init}/fd | grep -c -v -e total -e /dev/null || true") == "0"
    suspended, resumed, dumped, told = lab.play(
        cuda("checkpointed", [pid]),
        cuda("running", [pid]),
        image("present", pid=pid, path=f"{STORE}/later", leave_running=False, allow=["container", "private_mounts"]),
        image("present", pid=pid, path=path, leave_running=False),
    )
    suspended.ok(changed=True)
    resumed.ok(changed=True)
    for result in (dumped, told):
        result.refused(f"PID {init} (gpufleet-init)", "PID namespace of its own", "cuda_checkpoint")
    assert lab.host.counts(name) and lab.host.checksum(name) == job.sum
    # The namespace ends with its last process, and leaves nothing behind.
    lab.host.run("kill", "-9", str(pid))
    lab.wait_for("its end", lambda: not lab.host.sh("pgrep gpufleet-init || true"))
    (ended,) = lab.play(image("restored", path=path, pid_namespace="new"))
    assert first(ended.ok(changed=False))["ended"] is True


@pytest.mark.parametrize("kilobytes", [24576, 64])
def test_a_store_that_fills_up_is_told_as_that_and_the_tree_goes_on(lab: Lab, kilobytes: int) -> None:
    """In the smaller one CRIU's log ends before it can say why."""
    job = lab.one(vram=64)
    place = "/var/lib/small"
    lab.host.sh(f"mkdir -p {place} && mount -t tmpfs -o size={kilobytes}k,mode=700 tmpfs {place}")
    dump: dict[str, Any] = {"pid": job.pid, "path": f"{place}/one", "leave_running": False}
    try:
        refused, failed = lab.play(image("present", **dump), image("present", **dump, allow=["disk_space"]))
        refused.refused(place, "are needed", "allow: [disk_space]")
        assert failed.failed and not failed.changed
        failed.says("A disk is full", "Free space there", "goes on as before")
        assert lab.host.sh(f"ls -A {place}") == ""
    finally:
        lab.host.sh(f"umount {place}")


def test_a_place_that_is_taken_is_told_before_anything_is_suspended(lab: Lab) -> None:
    job = lab.one()
    path = f"{STORE}/taken"
    lab.host.sh(f"mkdir -p -m 700 {STORE} && echo mine >{path}.partial")
    (failed,) = lab.play(image("present", pid=job.pid, path=path, leave_running=False))
    failed.refused(f"{path}.partial", "was not made by this collection", "Move it away")
    assert not lab.ask("journal", f"SELECT * FROM operations WHERE pid = {job.pid}")
    assert lab.host.sh(f"cat {path}.partial; rm {path}.partial") == "mine"


def test_bad_input_is_refused_before_anything(lab: Lab) -> None:
    job = lab.one()
    results = lab.play(
        image("present", pid=job.pid, path=f"{STORE}/x"),
        image("present", pid=job.pid, path="relative/x", leave_running=False),
        image("present", pids=[job.pid, 1], path=f"{STORE}/x", leave_running=False),
        image("present", path=f"{STORE}/x", leave_running=False),
        image("restored", pid=job.pid, path=f"{STORE}/x"),
        image("restored", path=f"{STORE}/x"),
        image("absent", store=STORE),
        image("present", pid=job.pid, path="/tmp/x", leave_running=False),
        image("present", pid=4000000, path=f"{STORE}/x", leave_running=False),
    )
    words = [
        ("leave_running",),
        ("path", "absolute"),
        ("path", "store"),
        ("pid",),
        ("path",),
        (f"{STORE}/x", "no image"),
        ("keep", "max_age"),
        ("/tmp", "write"),
        ("4000000",),
    ]
    for result, expected in zip(results, words, strict=True):
        result.refused(*expected)
