# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One of several fails: away from running all end as they began, towards running the others go on; answers that come
too late."""

from __future__ import annotations

from tests.system.lab import Job, Lab, Workload
from tests.system.playing import Play, cuda, info

ALLOWED = ["uvm_managed", "cuda_ipc_possible"]


def states(lab: Lab, *jobs: Job) -> list[str]:
    """As the driver tells them."""
    return [lab.host.state(str(job.pid)) for job in jobs]


def test_one_of_eight_can_not_be_locked(lab: Lab) -> None:
    *others, busy = lab.start(*[Workload()] * 7, Workload("longkernel", options=("--kernel-ms", "6000"), sum=False))
    busy.sum = others[0].sum  # the same memory, and it would take its time to answer
    pids = [job.pid for job in (*others, busy)]
    (failed,) = lab.play(cuda("checkpointed", pids, lock_timeout=0.5))
    failed.refused(f"PID {busy.pid}", "lock", "NOT_READY", "lock_timeout")
    assert failed.each("after") == failed.each("before") == ["running"] * 8
    assert failed.processes[busy.pid]["error"]["step"] == "lock"
    assert failed.processes[busy.pid]["error"]["code"] == 600
    assert [pid for pid, process in failed.processes.items() if "error" in process] == [busy.pid]
    assert not any(seen["tracer"] or set(seen["threads"]) & set("Tt") for seen in lab.look(*others, busy).values())
    assert states(lab, *others) == ["running"] * 7


def test_one_of_eight_can_not_be_checkpointed(lab: Lab) -> None:
    """What the driver refuses at the checkpoint: the gate knows it, so it has to be overridden here."""
    *others, managed = lab.start(*[Workload()] * 7, Workload("managed"))
    pids = [job.pid for job in (*others, managed)]
    refused, failed, info_ = lab.play(cuda("checkpointed", pids), cuda("checkpointed", pids, allow=ALLOWED), info(pids))
    refused.refused(f"PID {managed.pid}", "allow: [uvm_managed]")
    failed.refused(f"PID {managed.pid}", "checkpoint", "NOT_SUPPORTED")
    assert [line.split(":")[0] for line in failed.msg.splitlines() if " failed " in line] == [
        f"PID {managed.pid} (gpusim-workload)"
    ]
    assert failed.each("after") == failed.each("before") == ["running"] * 8
    error = failed.processes[managed.pid]["error"]
    assert (error["step"], error["code"], error["name"]) == ("checkpoint", 801, "NOT_SUPPORTED") and error["remedy"]
    assert [process["state"] for process in info_.processes.values()] == ["running"] * 8
    assert states(lab, *others, managed) == ["running"] * 8


def test_a_list_goes_back_to_where_each_was(lab: Lab) -> None:
    """One was locked, one suspended before: neither is run by the way back."""
    locked, parked, running, managed = lab.start(Workload(), Workload(), Workload(), Workload("managed"))
    pids = [locked.pid, parked.pid, running.pid, managed.pid]
    prepared = lab.play(cuda("locked", [locked.pid]), cuda("checkpointed", [parked.pid]))
    assert all(result.ok(changed=True) for result in prepared)
    (failed,) = lab.play(cuda("checkpointed", pids, allow=ALLOWED))
    failed.refused(f"PID {managed.pid}")
    assert [failed.processes[pid]["after"] for pid in pids] == ["locked", "checkpointed", "running", "running"]
    assert states(lab, locked, running, managed) == ["locked", "running", "running"] and lab.is_parked(parked)
    lab.play(cuda("running", [locked.pid, parked.pid]))[0].ok(changed=True)


def test_without_rollback_everything_stays_for_a_person_to_look_at(lab: Lab) -> None:
    other, managed = lab.start(Workload(), Workload("managed"))
    pids = [other.pid, managed.pid]
    failed, told = lab.play(cuda("checkpointed", pids, allow=ALLOWED, rollback=False), info(pids))
    assert failed.failed and failed.changed
    failed.says(f"PID {managed.pid}", "NOT_SUPPORTED")
    after = {pid: process["after"] for pid, process in failed.processes.items()}
    assert after == {other.pid: "checkpointed", managed.pid: "locked"}
    assert {pid: process["state"] for pid, process in told.processes.items()} == after
    lab.play(cuda("running", pids))[0].ok(changed=True)


def test_one_of_eight_does_not_come_back(lab: Lab) -> None:
    """The importer of shared memory: seven run, and the message says what can still be done for the eighth."""
    *others, exporter, importer = lab.start(*[Workload()] * 6, Workload("ipc", siblings=("importer",)))
    importer.may_be_gone = "its memory was another process'"
    pids = [job.pid for job in (*others, exporter, importer)]
    suspended, resumed, again = lab.play(
        cuda("checkpointed", pids, allow=["cuda_ipc_possible"]), cuda("running", pids), cuda("running", pids)
    )
    suspended.ok(changed=True)
    assert resumed.failed and resumed.changed
    resumed.says(f"PID {importer.pid}", "restore", "SIGKILL", "image")
    assert not any(f"PID {job.pid}" in resumed.msg for job in (*others, exporter))
    after = {pid: process["after"] for pid, process in resumed.processes.items()}
    assert after == {**dict.fromkeys(pids, "running"), importer.pid: "checkpointed"}
    # Once more: the seven are left alone, the eighth is told again.
    again.refused(f"PID {importer.pid}")
    assert [pid for pid, process in again.processes.items() if process["changed"]] == []
    lab.host.run("kill", "-9", str(importer.pid))
    lab.wait_for("its end", lambda: lab.look(importer)[importer.pid]["state"] in ("", "Z"))


def test_an_answer_that_comes_too_late_is_unknown_and_the_next_run_carries_on(lab: Lab) -> None:
    """A checkpoint of two seconds with a patience of half a second; then the same for the way back."""
    job, other = lab.start(Workload(rate=16, vram=32), Workload())
    pids = [job.pid, other.pid]
    (late,) = lab.play(cuda("checkpointed", pids, step_timeout=0.5, rollback=False))
    assert late.failed
    late.says(f"PID {job.pid}", "no answer of the driver within 0.5 s", "Run the task again")
    assert late.processes[job.pid]["after"] == "unknown"
    assert lab.look(job)[job.pid]["state"] not in ("", "Z")
    (carried_on,) = lab.play(cuda("checkpointed", pids))
    carried_on.ok()
    assert carried_on.each("after") == ["checkpointed"] * 2 and lab.is_parked(job, other)
    (late,) = lab.play(cuda("running", pids, step_timeout=0.5))
    assert late.failed and late.changed
    late.says(f"PID {job.pid}", "no answer of the driver within 0.5 s")
    assert late.processes[other.pid]["after"] == "running"
    (carried_on,) = lab.play(cuda("running", pids))
    assert carried_on.ok().each("after") == ["running"] * 2


def test_a_late_answer_takes_the_others_back(lab: Lab) -> None:
    job, other = lab.start(Workload(rate=16, vram=32), Workload())
    pids = [job.pid, other.pid]
    (late,) = lab.play(cuda("checkpointed", pids, step_timeout=0.5))
    assert late.failed and late.processes[job.pid]["after"] == "unknown"
    assert late.processes[other.pid]["after"] == "running" and states(lab, other) == ["running"]
    assert lab.play(cuda("running", pids))[0].ok().each("after") == ["running"] * 2


def test_two_runs_at_once_on_the_same_processes(lab: Lab) -> None:
    jobs = lab.start(*[Workload(rate=64)] * 3)
    pids = [job.pid for job in jobs]
    for state, driver in (("checkpointed", "checkpoint"), ("running", "restore")):
        plays = [Play(lab.host.fleet, [cuda(state, pids)], lab.host.name) for _number in range(2)]
        results = [play.wait()[0].ok() for play in plays]
        assert all(result.each("after") == [state] * 3 for result in results), results
        done = [sum(driver in process["seconds"] for process in result.data["processes"]) for result in results]
        assert sum(done) == 3, results  # each process once, by one of them
    assert not lab.is_parked(*jobs)


def test_suspend_and_resume_at_once_end_in_one_of_both(lab: Lab) -> None:
    job = lab.one(rate=64)
    plays = [Play(lab.host.fleet, [cuda(state, [job.pid])], lab.host.name) for state in ("checkpointed", "running")]
    for play in plays:
        play.wait()[0].ok()
    told, resumed = lab.play(info([job.pid]), cuda("running", [job.pid]))
    assert told.processes[job.pid]["state"] in ("checkpointed", "running")
    resumed.ok(changed=told.processes[job.pid]["state"] == "checkpointed")


def test_two_restores_share_out_the_room_that_is_left(lab: Lab) -> None:
    """Each fits alone, both do not: one is refused before its first call, and comes back once there is room."""
    jobs = lab.start(Workload(vram=300, rate=300), Workload(vram=300, rate=300))
    lab.play(cuda("checkpointed", [job.pid for job in jobs]))[0].ok(changed=True)
    (intruder,) = lab.start(Workload(vram=450))
    plays = [Play(lab.host.fleet, [cuda("running", [job.pid])], lab.host.name) for job in jobs]
    results = [play.wait()[0] for play in plays]
    assert sorted(result.outcome for result in results) == ["failed", "ok"], results
    (refused,) = [result for result in results if result.failed]
    refused.refused("GPU 0", "MiB")
    assert refused.each("after") == ["checkpointed"]
    lab.end(intruder)
    lab.play(cuda("running", [job.pid for job in jobs]))[0].ok(changed=True)
