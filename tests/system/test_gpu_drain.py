# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_drain over SSH: phases that are proved, one run per host, one attempt per run, and what a killed one leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.lab import Lab, Workload, labs
from tests.system.playing import Play, Result, Task, cuda, shell
from tests.unit.plugins.documentation.returned import problems

BASE = "/var/lib/drained"
JOURNAL = "/var/lib/gpufleet/checkpoint.db"
FIRST = "one admin 10:20:30"
WORK = ["scheduler", "before_suspend", "suspend", "maintenance", "restore", "after_restore", "release"]


def drain(phase: str, *, check: bool = False, diff: bool = False, **options: Any) -> Task:
    """A task with gpu_drain that may fail."""
    return {
        "name": f"{phase}{' (check)' if check else ''}",
        "gpufleet.checkpoint.gpu_drain": {"phase": phase, "run_id": "r1", **options},
        "ignore_errors": True,
        "check_mode": check,
        "diff": diff,
        "register": f"drain_{phase}{'_check' if check else ''}",
    }


def info(**options: Any) -> Task:
    return {"name": "drain info", "gpufleet.checkpoint.gpu_drain_info": options, "ignore_errors": True}


def image(state: str, **options: Any) -> Task:
    return {
        "name": f"image {state}",
        "gpufleet.checkpoint.criu_image": {"state": state, "run_id": "r1", **options},
        "ignore_errors": True,
    }


def resume(run: str = "r1") -> Task:
    """What is its own, by the journal: as the role does it."""
    return {
        "name": "resume",
        "gpufleet.checkpoint.cuda_checkpoint": {
            "state": "running",
            "pids": "{{ drain_restoring.pids | default(drain_undoing.pids) }}",
            "run_id": run,
        },
        "ignore_errors": True,
    }


def suspend(run: str = "r1", **options: Any) -> Task:
    return cuda("checkpointed", select={"all": True}, run_id=run, **options)


@pytest.fixture(scope="module")
def host(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--gpus", "2", "--vram", "1024") as (one,):
        yield one


@pytest.fixture
def lab(host: Lab) -> Iterator[Lab]:
    """Afterwards every job counts on, and no drain is open."""
    host.host.sh(f"rm -rf {BASE}")
    with host.watched():
        yield host
    (left,) = host.play(info())
    host.host.sh(f"rm -f {JOURNAL}*")
    assert left.ok().data["drain"] is None or left.data["drain"]["closed"], left.data["drain"]


def states(result: Result) -> dict[int, str]:
    return states_of(result.data)


def states_of(data: dict[str, Any]) -> dict[int, str]:
    return {one["identity"]["pid"]: one["state"] for one in data["processes"]}


def of(results: list[Result], *names: str) -> list[Result]:
    """Those of gpu_drain and gpu_drain_info, each as RETURN describes it."""
    found = [one for one in results if "timeline" in one.data or "history" in one.data or one.task in names]
    for one in found:
        assert not problems("gpu_drain_info" if "history" in one.data else "gpu_drain", one.data)
    return found


def test_a_drain_in_memory(lab: Lab) -> None:
    jobs = lab.start(*[Workload()] * 2)
    pids = sorted(job.pid for job in jobs)
    first: dict[str, Any] = {"controller": FIRST, "attempt": 1}
    results = lab.play(
        info(),
        drain("claimed", check=True, **first),
        drain("claimed", declares=["gpu_reset"], **first),
        drain("claimed", **first),
        drain("suspending", scheduler={"kind": "command", "ours": True}, note="by hand", **first),
        suspend(),
        drain("suspended", diff=True, check=True, **first),
        drain("suspended", diff=True, **first),
        info(),
        drain("suspended", **first),
        drain("maintenance", **first),
        drain("restoring", **first),
        resume(),
        drain("restored", **first),
        drain("restoring", **first),
        drain("released", **first),
        drain("released", **first),
        drain("claimed", **first),
        info(),
    )
    before, foreseen, claimed, again, suspending, would, suspended, told, proved, maintenance, restoring, *rest = of(
        results
    )
    restored, back, released, finished, claimed_again, last = rest
    assert before.ok(changed=False).data["drain"] is None and before.data["history"] == []
    assert [one["state"] for one in before.data["cuda"]] == ["running"] * 2
    assert foreseen.ok(changed=True).data["phase"] == "claimed"
    claimed.ok(changed=True)
    assert (claimed.data["todo"], claimed.data["phase_before"]) == (WORK, "")
    assert states(claimed) == dict.fromkeys(pids, "running")
    again.ok(changed=False)
    suspending.ok(changed=True)
    assert suspending.data["todo"] == WORK[2:]
    would.ok(changed=True)
    suspended.ok(changed=True)
    assert suspended.data["diff"]["before"].startswith("phase: suspending\n")
    assert suspended.data["diff"]["after"].startswith("phase: suspended\n")
    assert states(suspended) == dict.fromkeys(pids, "suspended")
    assert [one["pid"] for one in suspended.data["pids"]] == pids
    assert all(one["device_bytes"] >= 16 << 20 for one in suspended.data["processes"])
    assert suspended.data["holders"] == []
    assert told.data["drain"]["phase"] == "suspended" and told.data["drain"]["closed"] is None
    assert [(one["state"], one["run_id"]) for one in told.data["cuda"]] == [("suspended", "r1")] * 2
    proved.ok(changed=False)
    assert maintenance.ok(changed=True).data["todo"] == WORK[3:]
    assert restoring.ok(changed=True).data["todo"] == WORK[4:]
    assert sorted(one["pid"] for one in restoring.data["pids"]) == pids
    assert restored.ok(changed=True).data["todo"] == WORK[5:]
    assert states(restored) == dict.fromkeys(pids, "running") and restored.data["pids"] == []
    assert back.ok(changed=False).data["phase"] == "restored"
    released.ok(changed=True)
    assert (released.data["todo"], released.data["declares"]) == ([], ["gpu_reset"])
    assert [one["phase"] for one in released.data["timeline"]] == [
        "claimed", "suspending", "suspended", "maintenance", "restoring", "restored", "released",
    ]  # fmt: skip
    assert released.data["timeline"][1]["message"] == "by hand"
    assert released.data["scheduler"] == {"kind": "command", "ours": True}
    assert finished.ok(changed=False).data["phase"] == "released"
    assert claimed_again.ok(changed=False).data["todo"] == []
    assert last.data["drain"]["closed"] and [one["run_id"] for one in last.data["history"]] == ["r1"]
    assert states_of(last.data["drain"]) == dict.fromkeys(pids, "running")


def test_a_suspend_by_itself_needs_no_name(lab: Lab) -> None:
    job = lab.one()
    alone: dict[str, Any] = {"run_id": "", "kind": "suspend"}
    (suspending,) = of(lab.play(drain("suspending", **alone)))
    name = suspending.ok(changed=True).data["run_id"]
    results = of(
        lab.play(
            suspend(run=name),
            drain("suspended", run_id=name, kind="suspend", attempt=1),
            drain("suspending", **alone),
            drain("suspending", run_id="d2"),
            drain("restoring", **alone),
            resume(run=name),
            drain("restored", **alone),
            drain("released", **alone),
            drain("restoring", **alone),
            drain("released", **alone),
            drain("undoing", **alone),
        )
    )
    suspended, adopted, other, restoring, restored, released, *idle = results
    suspended.ok(changed=True)
    assert adopted.ok(changed=False).data["run_id"] == name
    assert (adopted.data["phase"], adopted.data["attempt"]) == ("suspended", 2)
    other.refused(f"it belongs to the suspend of run {name}", f"gpu_drain_take_over: {name}")
    assert [one["pid"] for one in restoring.ok(changed=True).data["pids"]] == [job.pid]
    restored.ok(changed=True)
    released.ok(changed=True)
    for one in idle:
        assert one.ok(changed=False).data["phase"] == "released"


def test_what_is_not_suspended_is_not_called_so(lab: Lab) -> None:
    first, second = lab.start(*[Workload()] * 2)
    foreign = lab.one()
    tasks = [
        cuda("checkpointed", [foreign.pid], run_id="somebody"),
        drain("suspending"),
        cuda("checkpointed", [first.pid], run_id="r1"),
        drain("suspended"),
        drain("claimed", failure="Prove it: no room"),
        drain("undone"),
        suspend(),
        shell(f"pkill -9 -x gpufleet-hold; sleep 0.3; kill -CONT {second.pid}"),
        drain("suspended"),
        info(),
        cuda("checkpointed", [second.pid], run_id="r1"),
        drain("suspended"),
        drain("undoing"),
        drain("released"),
        drain("restoring"),
        drain("restored"),
        resume(),
        drain("restored"),
        drain("released"),
        cuda("running", [foreign.pid], run_id="somebody"),
    ]
    _one, early, failed, hasty, loose, told, good, undoing, released, restoring, not_yet, restored, done = of(
        lab.play(*tasks)
    )
    early.refused(f"PID {second.pid} (/usr/local/bin/gpusim-workload) runs with its GPU", "Run the same command again")
    assert early.data["phase"] == "suspending" and early.data["message"] in early.msg
    assert [(one["phase"], one["message"]) for one in early.data["failures"]] == [("suspending", early.msg)]
    failed.ok(changed=False)
    assert (failed.data["phase"], failed.data["message"]) == ("suspending", "Prove it: no room")
    assert [one["message"] for one in failed.data["failures"]] == [early.msg, "Prove it: no room"]
    hasty.refused("it is at suspending, and undone was asked for")
    loose.refused(f"PID {second.pid} (/usr/local/bin/gpusim-workload) is suspended, but its threads run")
    loose_now = {one["pid"]: one["state"] for one in told.data["cuda"]}
    assert loose_now == {first.pid: "suspended", second.pid: "running_without_gpu", foreign.pid: "suspended"}
    good.ok(changed=True)
    assert good.data["others"] == [foreign.pid]
    assert sorted(states(good)) == sorted([first.pid, second.pid])
    assert [one["id"] for one in good.data["findings"]] == ["suspended_by_others"]
    undoing.refused("it is at suspended", "a host is never released by itself then")
    released.refused("it is at suspended, and released was asked for")
    restoring.ok(changed=True)
    assert sorted(one["pid"] for one in restoring.data["pids"]) == sorted([first.pid, second.pid])
    not_yet.refused(f"PID {first.pid} (/usr/local/bin/gpusim-workload) is suspended still")
    restored.ok(changed=True)
    done.ok(changed=True)
    assert done.data["message"] == ""


def test_a_failure_that_is_told_of_a_drain_that_has_ended_begins_no_other_one(lab: Lab) -> None:
    phases = ("claimed", "undoing", "undone")
    (*_before, late, told) = of(lab.play(*map(drain, phases), drain("claimed", failure="too late"), info()))
    late.ok(changed=False)
    assert (told.data["drain"]["phase"], told.data["drain"]["failures"]) == ("undone", [])


def test_one_run_at_a_time_and_one_attempt_of_it(lab: Lab) -> None:
    job = lab.one()
    other: dict[str, Any] = {"run_id": "r2", "controller": "two admin 40:50:60"}
    tasks = [
        drain("suspending", controller=FIRST, attempt=1, scheduler={"run_id": "r1"}),
        suspend(),
        drain("suspended", controller=FIRST, attempt=1),
        drain("claimed", **other),
        drain("claimed", take_over="r3", **other),
        drain("claimed", check=True, take_over="r1", **other),
        drain("restoring", controller="two admin 40:50:60", attempt=2),
        drain("maintenance", controller="one admin 11:21:31", attempt=1),
        drain("maintenance", controller="one admin 11:21:31", attempt=2),
        drain("restoring", controller=FIRST, attempt=1),
        drain("claimed", take_over="r1", attempt=1, **other),
        drain("restoring", controller="one admin 11:21:31", attempt=2),
        drain("restoring", take_over="r1", attempt=1, **other),
        resume(run="r2"),
        drain("restored", take_over="r1", attempt=1, **other),
        drain("released", take_over="r1", attempt=1, **other),
    ]
    results = of(lab.play(*tasks), "claimed", "restoring", "maintenance")
    (
        _one,
        _two,
        refused,
        wrong,
        would,
        elsewhere,
        shared,
        resumed,
        late,
        taken,
        robbed,
        restoring,
        restored,
        released,
    ) = results
    refused.refused("it belongs to the drain of run r1 (attempt 1, by admin on one, process 10), which is at suspended")
    refused.says("gpu_drain_run_id: r1", "gpu_drain_take_over: r1")
    wrong.refused("it belongs to the drain of run r1")
    assert would.ok(changed=True).data["run_id"] == "r2"
    elsewhere.refused("it belongs to the drain of run r1")
    shared.refused("its attempt 1 belongs to another ansible-playbook, by admin on one, process 10")
    assert resumed.ok(changed=True).data["attempt"] == 2
    late.refused("attempt 2 of this run has taken over, by admin on one, process 11")
    taken.ok(changed=True)
    assert (taken.data["phase"], taken.data["runs"], taken.data["todo"]) == ("maintenance", ["r1", "r2"], WORK[3:])
    assert taken.data["scheduler"] == {"run_id": "r1"}
    assert states(taken) == {job.pid: "suspended"}
    robbed.refused("it belongs to the drain of run r2, which took it over from run r1")
    assert [one["pid"] for one in restoring.ok(changed=True).data["pids"]] == [job.pid]
    restored.ok(changed=True)
    released.ok(changed=True)


def test_who_dies_while_suspended_is_lost_and_named(lab: Lab) -> None:
    kept, killed = lab.start(*[Workload()] * 2)
    killed.may_be_gone = "it was killed"
    tasks = [
        drain("suspending"),
        suspend(),
        drain("suspended"),
        shell(f"kill -9 {killed.pid}; sleep 0.5"),
        info(),
        drain("restoring"),
        resume(),
        drain("restored"),
        drain("released"),
        drain("released", accept_loss=True),
    ]
    _one, _two, told, restoring, restored, early, released = of(lab.play(*tasks))
    assert [one["what"] for one in told.data["drain"]["lost"]] == [f"PID {killed.pid} (/usr/local/bin/gpusim-workload)"]
    assert [one["pid"] for one in restoring.ok().data["pids"]] == [kept.pid]
    assert states(restoring) == {kept.pid: "suspended", killed.pid: "gone"}
    restored.refused(
        f"lost is PID {killed.pid} (/usr/local/bin/gpusim-workload): it ended while it was suspended",
        "gpu_drain_accept_loss: true",
    )
    assert restored.data["phase"] == "restoring"
    early.refused("it is at restoring, and released was asked for")
    released.ok(changed=True)
    assert "accepted as lost" in released.data["timeline"][-1]["message"]


def test_a_gpu_reset_waits_for_everybody_who_has_the_gpu_open(lab: Lab) -> None:
    lab.one()
    holder = int(lab.background("sh", "-c", "exec 3</dev/nvidiactl; echo $$; exec sleep 600"))
    tasks = [
        drain("suspending"),
        suspend(),
        drain("suspended"),
        drain("maintenance"),
        drain("undoing"),
        drain("restoring"),
        resume(),
        drain("restored"),
        drain("released"),
        drain("suspending", run_id="r2", declares=["gpu_reset"]),
        suspend(run="r2"),
        drain("suspended", run_id="r2"),
        shell(f"kill {holder}; sleep 0.2"),
        drain("suspended", run_id="r2"),
        drain("restoring", run_id="r2"),
        resume(run="r2"),
        drain("restored", run_id="r2"),
        drain("released", run_id="r2"),
    ]
    results = of(lab.play(*tasks))
    told, maintenance, refused, good = results[1], results[2], results[8], results[9]
    (one,) = told.ok(changed=True).data["holders"]
    assert one == {"pid": holder, "executable": "/usr/bin/sleep", "user": "root", "files": ["/dev/nvidiactl"]}
    assert [(found["id"], found["severity"]) for found in told.data["findings"]] == [("device_holder", "warning")]
    assert maintenance.ok(changed=True).data["holders"] == [one]
    refused.refused("gpu_drain_declares: it has gpu_reset", f"PID {holder} (/usr/bin/sleep) of root (/dev/nvidiactl)")
    assert refused.data["phase"] == "suspending"
    good.ok(changed=True)
    results[-1].ok(changed=True)


def test_declared_work_that_would_lose_a_process_is_refused_before_anything_is_written(lab: Lab) -> None:
    job = lab.one()
    tasks = [
        drain("claimed", declares=["reboot"]),
        drain("claimed", declares=["driver_change"], mode="disk"),
        drain("claimed", declares=["driver_change"]),
        info(),
        drain("claimed", declares=["driver_change"], select={"users": ["daemon"]}),
        drain("undoing"),
        drain("undone"),
    ]
    reboot, image_driver, driver, nothing, other, undoing, undone = of(lab.play(*tasks), "claimed")
    reboot.refused("gpu_drain_declares: it has reboot, and gpu_drain_mode is memory", "Set gpu_drain_mode: disk")
    image_driver.refused("An image needs exactly its driver")
    driver.refused(f"PID {job.pid} is selected", "keeps the library of the old driver mapped")
    assert nothing.data["drain"] is None
    assert other.ok(changed=True).data["processes"] == []
    undoing.ok(changed=True)
    assert undone.ok(changed=True).data["todo"] == WORK


def disk(phase: str, **options: Any) -> Task:
    return drain(phase, **{"mode": "disk", "store": BASE, **options})


def test_a_drain_on_disk(lab: Lab) -> None:
    jobs = lab.start(*[Workload()] * 2)
    pids = sorted(job.pid for job in jobs)
    store = f"{BASE}/r1"
    tasks = [
        disk("suspending", declares=["reboot"]),
        image("present", select={"all": True}, store=store, leave_running=False),
        disk("suspended", mode="memory"),
        shell(f"mv {store}/pid-{pids[0]} /var/lib/aside; printf x >>{store}/pid-{pids[1]}/pages-1.img"),
        drain("restoring"),
        shell(f"mv /var/lib/aside {store}/pid-{pids[0]}; truncate -s -1 {store}/pid-{pids[1]}/pages-1.img"),
        drain("restored"),
        image("restored", store=store),
        drain("restored"),
        info(),
        drain("released"),
    ]
    suspending, suspended, damaged, early, restored, told, released = of(lab.play(*tasks))
    assert suspending.ok(changed=True).data["store"] == store
    suspended.ok(changed=True)
    assert (suspended.data["mode"], states(suspended)) == ("disk", dict.fromkeys(pids, "suspended"))
    assert [(one["pid"], one["state"]) for one in suspended.data["images"]] == [(pid, "unspent") for pid in pids]
    assert all(one["bytes"] > 16 << 20 for one in suspended.data["images"]) and suspended.data["pids"] == []
    damaged.ok(changed=True)
    assert sorted(one["state"] for one in damaged.data["images"]) == ["damaged", "missing"]
    assert len(damaged.data["lost"]) == 2
    early.refused(
        f"image {store}/pid-{pids[0]} is unspent", f"PID {pids[1]} (/usr/local/bin/gpusim-workload) is suspended"
    )
    restored.ok(changed=True)
    assert states(restored) == dict.fromkeys(pids, "running")
    assert {one["state"] for one in restored.data["images"]} == {"spent"}
    now = {one["identity"]["pid"]: one["identity"] for one in restored.data["processes"]}
    before = {one["identity"]["pid"]: one["identity"] for one in suspended.data["processes"]}
    assert all(now[pid]["start_ticks"] > before[pid]["start_ticks"] for pid in pids), "they are who came back"
    assert told.data["drain"]["lost"] == [] and states_of(told.data["drain"]) == dict.fromkeys(pids, "running")
    assert released.ok(changed=True).data["processes"] == restored.data["processes"]


def test_on_disk_nothing_may_stay_in_memory(lab: Lab) -> None:
    first, second = lab.start(*[Workload()] * 2)
    store = f"{BASE}/r1"
    tasks = [
        disk("claimed"),
        drain("suspending", store=BASE),
        image("present", pid=first.pid, path=f"{store}/one", leave_running=False),
        cuda("checkpointed", [second.pid], run_id="r1"),
        disk("suspended"),
        drain("suspending", mode="memory"),
        drain("undoing"),
        resume(),
        drain("undone"),
        image("restored", store=store),
        drain("undone"),
    ]
    claimed, suspending, suspended, other_mode, undoing, early, undone = of(lab.play(*tasks))
    assert claimed.ok(changed=True).data["store"] == ""
    assert (suspending.data["mode"], suspending.data["store"]) == ("disk", store), "as it was claimed"
    suspended.refused(f"PID {second.pid} (/usr/local/bin/gpusim-workload) is suspended in memory, and in no image")
    other_mode.refused("gpu_drain_mode: it is memory, and this run has begun to suspend this host in mode disk")
    assert [one["pid"] for one in undoing.ok(changed=True).data["pids"]] == [second.pid]
    assert undoing.data["todo"] == ["undo"] and undoing.data["lost"] == []
    early.refused(
        f"PID {first.pid} (/usr/local/bin/gpusim-workload) is suspended still", f"image {store}/one is unspent"
    )
    assert undone.ok(changed=True).data["closed"]


PACKAGE = r"""
mkdir -p /tmp/fake/$1/DEBIAN
printf 'Package: %s\nVersion: 580.1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n' "$1" \
    >/tmp/fake/$1/DEBIAN/control
dpkg-deb -b /tmp/fake/$1 /tmp/fake/$1.deb && dpkg -i /tmp/fake/$1.deb
"""


def test_packages_of_the_driver_are_held_and_let_go(lab: Lab) -> None:
    for name in ("nvidia-driver-580", "libnvidia-compute-580", "nvidia-settings"):
        lab.host.run("sh", "-c", PACKAGE, "-", name)
    lab.host.sh("apt-mark hold libnvidia-compute-580")
    tasks = [
        drain("suspending", hold_packages=True, check=True),
        drain("suspending", hold_packages=True, diff=True),
        drain("suspending", hold_packages=True),
        drain("restoring"),
        drain("restored"),
        drain("released", diff=True),
    ]
    would, held, again, _one, _two, released = of(lab.play(*tasks[:1]) + lab.play(*tasks[1:3]), "x") + of(
        lab.play(*tasks[3:])
    )
    would.ok(changed=True)
    packages = held.ok(changed=True).data["packages"]
    assert packages == {
        "manager": "apt", "held": ["nvidia-driver-580"], "already": ["libnvidia-compute-580"], "why": "",
    }  # fmt: skip
    assert held.data["diff"]["after"] == "phase: suspending\nheld packages: nvidia-driver-580\n"
    assert again.ok(changed=False).data["packages"] == packages
    assert released.ok(changed=True).data["packages"]["held"] == []
    assert lab.host.sh("apt-mark showhold") == "libnvidia-compute-580"
    lab.host.sh(
        "apt-mark unhold libnvidia-compute-580; dpkg -P libnvidia-compute-580 nvidia-driver-580 nvidia-settings"
    )
    tasks = [
        drain("suspending", run_id="r2", hold_packages=True),
        *(drain(to, run_id="r2") for to in ("undoing", "undone")),
    ]
    none, *_rest = of(lab.play(*tasks))
    assert none.ok(changed=True).data["packages"]["why"] == "no package of the NVIDIA driver is installed"
    assert "no package of the driver is held" in str(none.data["warnings"])


def test_it_waits_for_what_a_killed_attempt_still_does(lab: Lab) -> None:
    job = lab.one(vram=64, rate=32)
    lab.play(drain("suspending"))
    running = Play(lab.host.fleet, [suspend()], lab.host.name)
    lab.wait_for("a worker", lambda: lab.ask("journal", "SELECT 1 FROM operations WHERE step = 'checkpoint'"))
    running.kill()
    undoing, undone = of(lab.play(drain("undoing"), resume(), drain("undone")))
    assert [one["pid"] for one in undoing.ok(changed=True).data["pids"]] == [job.pid]
    undone.ok(changed=True)


def test_an_image_that_was_broken_off_is_undone(lab: Lab) -> None:
    """Its worker is dead, members of the tree are stopped, and half an image lies there."""
    job = lab.one(vram=32)
    store = f"{BASE}/r1"
    lab.play(disk("suspending"))
    shim = "/run/slow-criu"
    lab.host.put(shim, '#!/bin/sh\n[ "$1" = dump ] && sleep 60\nexec "$(command -v criu)" "$@"\n', "755")
    task = image("present", select={"all": True}, store=store, leave_running=False, criu_executable=shim)
    running = Play(lab.host.fleet, [task], lab.host.name)
    at_work = "SELECT worker_pid FROM images WHERE step = 'dump'"
    lab.wait_for("the dump", lambda: lab.ask("journal", at_work))
    (row,) = lab.ask("journal", at_work)
    running.kill()
    # The worker first, so that nobody is left who could take it back; then the module and criu.
    lab.host.sh(f"parent=$(ps -o ppid= -p {row['worker_pid']}); kill -9 {row['worker_pid']} $parent")
    lab.host.sh("pkill -9 -f '[s]low-criu'; pkill -9 -x gpufleet-hold; sleep 0.5")
    assert lab.host.sh(f"ls -d {store}/*.partial")
    undoing, undone = of(lab.play(disk("undoing"), resume(), disk("undone")))
    assert [one["pid"] for one in undoing.ok(changed=True).data["pids"]] == [job.pid]
    assert "was removed: its dump was broken off" in str(undoing.data["warnings"])
    undone.ok(changed=True)
    assert not lab.host.sh(f"ls -A {store}")
    assert not lab.ask("journal", "SELECT 1 FROM images WHERE finished = 0")


def test_without_root_and_without_a_journal(lab: Lab) -> None:
    lab.host.sh(f"rm -f {JOURNAL}*")
    nobody = {
        **drain("claimed"),
        "become": True,
        "become_user": "nobody",
        "vars": {"ansible_remote_tmp": "/tmp/nobody"},
    }
    told, would, refused = lab.play(info(), drain("claimed", check=True), nobody)
    assert told.ok(changed=False).data["drain"] is None
    would.ok(changed=True)
    refused.refused("it runs as user id", "Set become: true")
    assert lab.host.sh(f"ls {JOURNAL} 2>&1 || true").startswith("ls: cannot access")
