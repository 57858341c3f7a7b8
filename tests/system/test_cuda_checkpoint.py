# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""cuda_checkpoint on a real host: suspend, resume, what is told before and after, and which processes are chosen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.hosts import ROOT
from tests.system.lab import Job, Lab, Workload
from tests.system.playing import Play, Result, Task, cuda, environment, info, shell

MIB = 1 << 20
BOTH = ("--check", "--diff")


@pytest.fixture(scope="module", autouse=True)
def parked_early(second_lab: Lab) -> Iterator[tuple[Job, float]]:
    """A process whose threads ask the driver all the time, suspended as the first thing here, on a host of its own."""
    with second_lab.watched():
        job = second_lab.one("polling")
        second_lab.play(cuda("checkpointed", [job.pid]))[0].ok(changed=True)
        yield job, time.monotonic()
        second_lab.play(cuda("running", [job.pid]))[0].ok()  # the last test here has done it, if it was chosen


def predicted(lab: Lab, task: Task) -> Result:
    """What `--check --diff` says of it."""
    (result,) = Play(lab.host.fleet, [task], lab.host.name, BOTH).wait()
    return result


def truth_was_told(before: Result, run: Result) -> None:
    for key in ("before", "after", "changed", "plan", "parked"):
        assert before.each(key) == run.each(key), key
    assert before.changed == run.changed
    assert before.data["diff"] == run.data["diff"]


def used_mib(lab: Lab) -> list[int]:
    return [
        int(line)
        for line in lab.host.run("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").split()
    ]


def test_eight_processes_are_suspended_by_one_task_and_resumed_by_one(lab: Lab) -> None:
    jobs = lab.start(*[Workload(gpu=number % 2) for number in range(8)])
    pids = [job.pid for job in jobs]
    held = used_mib(lab)

    suspend = {**cuda("checkpointed", pids), "diff": True}
    told = predicted(lab, {key: value for key, value in suspend.items() if key not in ("check_mode", "diff")})
    told.ok(changed=True)
    assert used_mib(lab) == held and not lab.stands_still(*jobs)
    suspended, again = lab.play(suspend, cuda("checkpointed", pids))
    suspended.ok(changed=True)
    truth_was_told(told, suspended)
    assert suspended.each("before") == ["running"] * 8 and suspended.each("after") == ["checkpointed"] * 8
    assert suspended.data["diff"] == {
        "before": "".join(f"PID {pid} (gpusim-workload): running\n" for pid in pids),
        "after": "".join(f"PID {pid} (gpusim-workload): checkpointed, parked\n" for pid in pids),
    }
    for process in suspended.data["processes"]:
        assert process["device_bytes"] == sum(gpu["bytes"] for gpu in process["gpus"]) >= 16 * MIB
        assert process["seconds"]["checkpoint"] > 0 and process["gib_per_second"]["checkpoint"] > 0
        assert process["guard"]["kind"] == "holder" and process["guard"]["pid"]
    again.ok(changed=False)
    assert again.each("plan") == [[]] * 8 and again.each("parked") == [True] * 8
    assert used_mib(lab) == [0, 0]
    assert lab.is_parked(*jobs) and lab.stands_still(*jobs)

    resume = {**cuda("running", pids), "diff": True}
    told = predicted(lab, {key: value for key, value in resume.items() if key not in ("check_mode", "diff")})
    told.ok(changed=True)
    assert lab.is_parked(*jobs)
    resumed, again = lab.play(resume, cuda("running", pids))
    resumed.ok(changed=True)
    truth_was_told(told, resumed)
    assert resumed.each("before") == ["checkpointed"] * 8 and resumed.each("after") == ["running"] * 8
    assert all(process["gib_per_second"]["restore"] > 0 for process in resumed.data["processes"])
    again.ok(changed=False)
    assert again.each("plan") == [[]] * 8
    assert used_mib(lab) == held


def test_check_mode_leaves_no_trace(lab: Lab) -> None:
    job = lab.one()
    journal = "/run/lab/trace/checkpoint.db"
    would, before, after = lab.play(
        cuda("checkpointed", [job.pid], check=True, journal=journal), info([job.pid]), info([job.pid], journal=journal)
    )
    would.ok(changed=True)
    assert before.processes[job.pid]["state"] == after.processes[job.pid]["state"] == "running"
    assert lab.host.sh("ls -d /run/lab/trace 2>&1", rc=2)
    assert not lab.ask("journal", f"SELECT * FROM operations WHERE pid = {job.pid}")


# From each state to each other one, and once more: the second time nothing is to be done.
WAY = ["locked", "checkpointed", "locked", "running", "checkpointed", "running", "locked", "running"]


def test_every_transition_takes_the_shortest_legal_path(lab: Lab) -> None:
    job = lab.one()
    pids = [job.pid]
    ask = shell(f"set -- $(cut -d' ' -f3 /proc/{job.pid}/stat); [ $1 = T -o $1 = t ] && echo parked || "
                f"cuda-checkpoint --get-state --pid {job.pid}")  # fmt: skip
    tasks = [
        task for state in WAY for task in (cuda(state, pids), cuda(state, pids, check=True), cuda(state, pids), ask)
    ]
    results = lab.play(*tasks, every=True)
    seen = "running"
    plans = {}
    for number, state in enumerate(WAY):
        first, told, second, asked = results[4 * number : 4 * number + 4]
        first.ok(changed=True)
        assert (first.each("before"), first.each("after")) == ([seen], [state])
        plans[seen, state] = first.each("plan")[0]
        assert told.ok(changed=False).each("plan") == second.ok(changed=False).each("plan") == [[]]
        assert asked.data["stdout"].strip() == {"checkpointed": "parked"}.get(state, state)
        seen = state
    driver = {
        way: [step for step in plan if step in ("lock", "checkpoint", "restore", "unlock")]
        for way, plan in plans.items()
    }
    assert driver == {
        ("running", "locked"): ["lock"],
        ("locked", "checkpointed"): ["checkpoint"],
        ("checkpointed", "locked"): ["restore"],
        ("locked", "running"): ["unlock"],
        ("running", "checkpointed"): ["lock", "checkpoint"],
        ("checkpointed", "running"): ["restore", "unlock"],
    }


def test_a_locked_process_stands_at_its_next_call_and_is_not_stopped(lab: Lab) -> None:
    job = lab.one()
    lab.play(cuda("locked", [job.pid]))[0].ok(changed=True)
    seen = lab.look(job)[job.pid]
    assert seen["devices"] and not set(seen["threads"]) & set("Tt")
    time.sleep(0.1)
    counter = lab.look(job)[job.pid]["counter"]
    time.sleep(0.3)
    assert lab.look(job)[job.pid]["counter"] == counter
    lab.play(cuda("running", [job.pid]))[0].ok(changed=True)


def test_kinds_that_can_be_suspended(lab: Lab) -> None:
    """Threads that ask the driver all the time, pinned and virtual memory, several GPUs, a child, one rank."""
    jobs = lab.start(
        Workload("polling"),
        Workload("pinned"),
        Workload("vmm"),
        Workload("multi_gpu"),
        Workload("fork"),
        Workload("nccl", options=("--ranks", "1")),
        Workload("ipc_export"),
    )
    pids = [job.pid for job in jobs]
    suspended, again = lab.play(cuda("checkpointed", pids, allow=["cuda_ipc_possible"]), cuda("checkpointed", pids))
    suspended.ok(changed=True)
    again.ok(changed=False)
    assert len(suspended.processes[jobs[3].pid]["gpus"]) == 2
    assert lab.is_parked(*jobs) and lab.stands_still(*jobs)
    lab.play(cuda("running", pids))[0].ok(changed=True)


def test_a_process_in_another_pid_namespace_goes_by_its_pid_on_the_host(lab: Lab) -> None:
    inside = lab.one(wrap=("unshare", "--pid", "--fork", "--mount-proc"))
    pid = int(lab.host.run("pgrep", "-n", "-x", "gpusim-workload"))
    assert inside.pid == 1 and pid > 1  # what the process knows about itself
    inside.pid = pid
    suspended = lab.play(cuda("checkpointed", [pid]))[0].ok(changed=True)
    assert suspended.each("after") == ["checkpointed"] and lab.is_parked(inside)
    lab.play(cuda("running", [pid]))[0].ok(changed=True)


def test_arguments_are_told_only_on_demand(lab: Lab) -> None:
    job = lab.one()
    quiet, full, told = lab.play(
        cuda("running", [job.pid]), cuda("running", [job.pid], full_command=True), info([job.pid], full_command=True)
    )
    assert "--vram" not in json.dumps({key: value for key, value in quiet.data.items() if key != "invocation"})
    assert quiet.processes[job.pid]["executable"] == "/usr/local/bin/gpusim-workload"
    assert "--vram" in full.processes[job.pid]["command"] and "--vram" in told.processes[job.pid]["command"]


def test_info_tells_state_memory_owner_and_findings_and_changes_nothing(lab: Lab) -> None:
    plain, stopped, managed, locked, parked = lab.start(
        Workload(), Workload(), Workload("managed"), Workload(gpu=1), Workload(gpu=1)
    )
    lab.play(cuda("locked", [locked.pid]), cuda("checkpointed", [parked.pid], run_id="of-the-test"))
    lab.host.run("kill", "-STOP", str(stopped.pid))
    everything, again, ad_hoc = lab.play(info(), info(select={"all": True}), info([parked.pid]))
    assert not everything.ok().changed
    states = {pid: process["state"] for pid, process in everything.processes.items()}
    assert states == {
        plain.pid: "running",
        stopped.pid: "unknown",
        managed.pid: "running",
        locked.pid: "locked",
        parked.pid: "checkpointed",
    }
    assert {pid: process["state"] for pid, process in again.processes.items()} == states
    found = {(finding["pid"], finding["id"]) for finding in everything.data["findings"]}
    assert (managed.pid, "uvm_managed") in found and (stopped.pid, "stopped_or_frozen") in found
    blocked = {finding["pid"] for finding in everything.data["findings"] if finding["severity"] == "blocking"}
    assert blocked == {managed.pid, stopped.pid}
    process = ad_hoc.processes[parked.pid]
    assert process["parked"] and process["run_id"] == "of-the-test" and process["guard"]["kind"] == "holder"
    assert process["user"] == "root" and [gpu["index"] for gpu in process["gpus"]] == [1]
    assert process["device_bytes"] >= 16 * MIB
    assert [gpu["index"] for gpu in everything.data["gpus"]] == [0, 1]
    assert everything.data["driver"] == lab.host.run(
        "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"
    )
    lab.host.run("kill", "-CONT", str(stopped.pid))
    lab.play(cuda("running", [locked.pid, parked.pid]))[0].ok(changed=True)


UNIFIED = "/sys/fs/cgroup/unified"
CONTAINER = "3f1c0e5d8a7b" + "0" * 52
GROUPS = ("/jobs/a", "/slurm/uid_0/job_90210/step_0", f"/docker/{CONTAINER}", "/system.slice/inference.service")


@pytest.fixture
def groups(lab: Lab) -> Iterator[list[str]]:
    paths = [UNIFIED + group for group in GROUPS]
    lab.host.run("mkdir", "-p", *paths)
    yield paths
    lab.end(*lab.jobs)
    lab.host.sh("cd /sys/fs/cgroup/unified && find jobs slurm docker system.slice -depth -type d -exec rmdir {} +")


def test_select(lab: Lab, groups: list[str], trainer: str) -> None:
    first, second, own, job, slurm, container, unit = lab.start(
        Workload(gpu=0),
        Workload("multi_gpu"),
        Workload(gpu=1, user=trainer, vram=17),
        *[Workload(gpu=0, cgroups=(group,)) for group in groups],
    )
    zero = {one.pid for one in (first, second, job, slurm, container, unit)}
    everyone = zero | {own.pid}
    uuid = lab.host.run("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", "-i", "1")
    uid = lab.host.run("id", "-u", trainer)
    wanted: list[tuple[dict[str, object], set[int]]] = [
        ({"all": True}, everyone),
        ({"gpus": [0]}, zero),
        ({"gpus": [uuid]}, {second.pid, own.pid}),
        ({"gpus": [1], "users": ["root"]}, {second.pid}),
        ({"users": [trainer]}, {own.pid}),
        ({"users": [uid]}, {own.pid}),
        ({"command": r"--vram 17\b"}, {own.pid}),
        ({"executable": "/usr/local/bin/gpusim-*"}, everyone),
        ({"executable": "/usr/bin/*"}, set()),
        ({"cgroup": "/jobs"}, {job.pid}),
        ({"slurm_job": "90210"}, {slurm.pid}),
        ({"container": CONTAINER[:12]}, {container.pid}),
        ({"unit": "inference.service"}, {unit.pid}),
        ({"unit": "inference"}, {unit.pid}),
        ({"gpus": [0], "users": [trainer]}, set()),
    ]
    tasks = [cuda("checkpointed", select=select, check=True, allow=["cuda_ipc_possible"]) for select, _pids in wanted]
    for result, (select, pids) in zip(lab.play(*tasks), wanted, strict=True):
        assert set(result.ok(changed=bool(pids)).processes) == pids, select
    # A suspended process still counts for the GPU that it used.
    suspended, resumed = lab.play(cuda("checkpointed", select={"gpus": [1]}), cuda("running", select={"gpus": [1]}))
    assert set(suspended.ok(changed=True).processes) == {second.pid, own.pid}
    assert set(resumed.ok(changed=True).processes) == {second.pid, own.pid}


def gpu_of(lab: Lab, job: Job) -> list[int]:
    found = []
    for index in (0, 1):
        listed = lab.host.run("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader", "-i", str(index))
        found += [index] if str(job.pid) in listed.split() else []
    return found


def test_device_map_swaps_two_gpus(lab: Lab) -> None:
    here, there, both = lab.start(Workload(gpu=0), Workload(gpu=1, vram=24), Workload("multi_gpu"))
    pids = [here.pid, there.pid, both.pid]
    swap = {"0": "1", "1": "0"}
    suspended, told, resumed = lab.play(
        cuda("checkpointed", pids, allow=["cuda_ipc_possible"]),
        cuda("running", pids, device_map=swap, check=True),
        cuda("running", pids, device_map=swap),
    )
    suspended.ok(changed=True)
    truth = resumed.ok(changed=True)
    assert told.each("plan") == truth.each("plan")
    assert (gpu_of(lab, here), gpu_of(lab, there), gpu_of(lab, both)) == ([1], [0], [0, 1])
    # From where it is now, by UUID and back.
    uuids = lab.host.run("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").split()
    back = {uuids[0]: uuids[1], uuids[1]: uuids[0]}
    lab.play(cuda("checkpointed", [here.pid]), cuda("running", [here.pid], device_map=back))[1].ok(changed=True)
    assert gpu_of(lab, here) == [0]


def test_device_map_auto_moves_only_what_has_no_room(lab: Lab) -> None:
    big, small = lab.start(Workload(vram=600), Workload(vram=16, gpu=0))
    pids = [big.pid, small.pid]
    lab.play(cuda("checkpointed", pids))[0].ok(changed=True)
    (intruder,) = lab.start(Workload(vram=600, gpu=0))
    told, moved = lab.play(cuda("running", pids, check=True), cuda("running", pids, device_map="auto"))
    assert told.failed
    told.says(f"PID {big.pid}", "MiB", "allow: [vram_short]")
    assert moved.ok(changed=True).each("after") == ["running"] * 2
    assert (gpu_of(lab, big), gpu_of(lab, small), gpu_of(lab, intruder)) == ([1], [0], [0])


@pytest.mark.parametrize("parallel, begun", [(2, 2), (0, 4)])
def test_parallel_bounds_how_many_are_worked_on_at_once(lab: Lab, parallel: int, begun: int) -> None:
    """No copy ends within the patience of the task, so whatever has begun is unknown and the others are never begun."""
    jobs = lab.start(*[Workload(rate=4) for _number in range(4)])
    pids = [job.pid for job in jobs]
    late, resumed = lab.play(
        cuda("checkpointed", pids, parallel=parallel, step_timeout=1, rollback=False), cuda("running", pids)
    )
    assert late.failed
    assert late.each("after") == ["unknown"] * begun + ["locked"] * (len(pids) - begun)
    assert resumed.ok(changed=True).each("after") == ["running"] * len(pids)


def test_the_info_module_works_ad_hoc(lab: Lab) -> None:
    job = lab.one()
    seen = ad_hoc(lab, "gpufleet.checkpoint.cuda_checkpoint_info", f"pids={job.pid}")
    assert '"state": "running"' in seen


def ad_hoc(lab: Lab, module: str, arguments: str) -> str:
    program = str(Path(sys.executable).with_name("ansible"))
    done = subprocess.run(
        [program, "-i", str(lab.host.fleet.inventory), lab.host.name, "-m", module, "-a", arguments],
        env=environment(CAPTURE_FILE="/dev/null"),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_playbooks_of_the_guide_run(lab: Lab) -> None:
    """docs/first-suspend.md, as it stands there, but for the name of the host."""
    guide = (ROOT / "docs/first-suspend.md").read_text()
    books: dict[str, str] = dict(re.findall(r"```yaml\n# (\w+)\.yml\n(.*?)```", guide, re.DOTALL))
    assert list(books) == ["look", "suspend", "resume"]
    first, second = lab.start(Workload(gpu=0), Workload(gpu=1))
    book = "".join(books[name] for name in ("look", "suspend", "look", "resume")).replace(
        "hosts: gpu1", f"hosts: {lab.host.name}"
    )
    lines = Play(lab.host.fleet, book, arguments=("-e", "ansible_become=false")).text()
    assert f"PID {first.pid} /usr/local/bin/gpusim-workload of root, GPU 0: running, 80.00 MB" in lines
    assert (
        f"PID {first.pid} /usr/local/bin/gpusim-workload of root, GPU 0: checkpointed, parked, guard holder, 80.00 MB"
        in lines
    )
    assert lines.count(f"PID {second.pid} /usr/local/bin/gpusim-workload of root, GPU 1: running, 80.00 MB") == 2


def test_without_the_module_and_without_parking_such_a_process_dies(lab: Lab) -> None:
    """Why it parks: the same workload as below, suspended by the tool alone and by the module with park: false."""
    alone, unparked = lab.start(Workload("polling"), Workload("polling"))
    for job in (alone, unparked):
        job.may_be_gone = "it asks the driver while it is suspended"
    (suspended,) = lab.play(
        cuda("checkpointed", [unparked.pid], park=False, allow=["unparked"]),
        shell(f"cuda-checkpoint --toggle --pid {alone.pid}"),
    )
    assert suspended.outcome in ("ok", "failed")  # it may be dead before its state is read again
    assert "unparked" in {finding["id"] for finding in suspended.data["findings"]}
    lab.wait_for(
        "end of both", lambda: not any(seen["state"] not in ("", "Z") for seen in lab.look(alone, unparked).values())
    )


def test_a_process_that_asks_the_driver_all_the_time_survives_a_minute(
    second_lab: Lab, parked_early: tuple[Job, float]
) -> None:
    job, since = parked_early
    time.sleep(max(0.0, since + 60 - time.monotonic()))
    assert second_lab.is_parked(job) and second_lab.stands_still(job)
    second_lab.play(cuda("running", [job.pid]))[0].ok(changed=True)
