# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A parked process stays parked, whoever wants it to run; and what is done where it could not be kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.lab import Job, Lab, Workload
from tests.system.playing import Play, Result, cuda, info

CONTINUE = "import os, signal, sys\nfor _number in range(1000): os.kill(int(sys.argv[1]), signal.SIGCONT)"
UNIFIED = "/sys/fs/cgroup/unified"


def continue_often(lab: Lab, job: Job) -> None:
    lab.host.run("python3", "-c", CONTINUE, str(job.pid))


def suspend(lab: Lab, job: Job, **options: Any) -> dict[str, object]:
    """What guards it then."""
    (result,) = lab.play(cuda("checkpointed", [job.pid], **options))
    guard: dict[str, object] = result.ok(changed=True).processes[job.pid]["guard"]
    return guard


def resume(lab: Lab, job: Job) -> Result:
    (result,) = lab.play(cuda("running", [job.pid]))
    return result.ok(changed=True)


def kill_guard(lab: Lab, guard: dict[str, object]) -> None:
    lab.host.sh(f"kill -9 {guard['pid']}; while [ -e /proc/{guard['pid']} ]; do sleep 0.02; done")


def pending(lab: Lab, job: Job) -> int:
    return int(lab.host.sh(f"sed -n 's/^ShdPnd:.//p' /proc/{job.pid}/status"), 16)


def test_a_thousand_continues_run_no_instruction(lab: Lab) -> None:
    """One that would die of a single one: its threads ask the driver for memory that is not there."""
    job = lab.one("polling")
    guard = suspend(lab, job)
    assert guard["kind"] == "holder"
    before = lab.look(job)[job.pid]
    ticks = lab.host.sh(f"cut -d' ' -f14,15 /proc/{guard['pid']}/stat")
    continue_often(lab, job)
    assert lab.is_parked(job) and lab.stands_still(job)
    after = lab.look(job)[job.pid]
    assert before["counter"] == after["counter"]
    assert after["ticks"] - before["ticks"] <= 3, "the kernel's own time for a thousand stops"
    assert lab.stands_still(job, seconds=0.5)
    spent = sum(map(int, lab.host.sh(f"cut -d' ' -f14,15 /proc/{guard['pid']}/stat").split())) - sum(
        map(int, ticks.split())
    )
    assert spent < 50  # ticks of 10 ms: it waits, and does not look again and again
    resume(lab, job)


def test_a_group_that_loses_its_shell_stays_parked(lab: Lab) -> None:
    """The kernel sends SIGHUP and SIGCONT to a stopped process group that becomes an orphan."""
    job = lab.one("polling", wrap=("bash", "-c", 'set -m; nohup "$@" & exec sleep 1000', "-"))
    suspend(lab, job)
    shell = lab.look(job)[job.pid]["parent"]
    lab.host.sh(
        f"grep -qx sleep /proc/{shell}/comm && kill -9 {shell}; while [ -e /proc/{shell} ]; do sleep 0.02; done"
    )
    assert lab.stands_still(job) and lab.is_parked(job)
    resume(lab, job)


def test_a_signal_to_end_waits_and_a_kill_does_not(lab: Lab) -> None:
    term, kill = lab.start(Workload("polling"), Workload("polling"))
    for job in (term, kill):
        job.may_be_gone = "it was told to end"
    lab.play(cuda("checkpointed", [term.pid, kill.pid]))[0].ok(changed=True)
    lab.host.run("kill", str(term.pid))
    lab.host.run("kill", "-9", str(kill.pid))
    lab.wait_for("end of the killed one", lambda: not lab.look(kill)[kill.pid]["state"])
    assert lab.is_parked(term) and pending(lab, term) & 1 << 14
    told, seen, resumed = lab.play(
        cuda("running", [term.pid], check=True), info([term.pid]), cuda("running", [term.pid])
    )
    assert any("SIGTERM" in warning for warning in told.ok().processes[term.pid]["warnings"])
    assert any("SIGTERM" in warning for warning in seen.ok().processes[term.pid]["warnings"])
    assert resumed.outcome in ("ok", "failed")  # it ends as soon as it runs, maybe before that is looked at
    lab.wait_for("its end", lambda: not lab.look(term)[term.pid]["state"])


def test_a_debugger_can_not_attach_while_it_is_guarded(lab: Lab) -> None:
    job = lab.one("polling")
    guard = suspend(lab, job)
    attach = (
        "import ctypes, sys; libc = ctypes.CDLL(None, use_errno=True); "
        "libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2; "
        "print(libc.ptrace(0x4206, int(sys.argv[1]), None, None), ctypes.get_errno())"
    )
    assert lab.host.run("python3", "-c", attach, str(job.pid)) == "-1 1"
    assert lab.look(job)[job.pid]["tracer"] == guard["pid"]
    resume(lab, job)


def test_a_debugger_in_place_of_the_guard_is_named_and_the_next_run_goes_on_without_it(lab: Lab) -> None:
    job = lab.one()
    kill_guard(lab, suspend(lab, job))
    debugger = int(lab.background("python3", "-c", HOLD, str(job.pid)))
    try:
        refused, seen = lab.play(cuda("running", [job.pid]), info([job.pid]))
        refused.refused(f"PID {job.pid}", str(debugger))
        assert "traced" in seen.ok().processes[job.pid]["findings"]
        assert lab.is_parked(job)
    finally:
        lab.host.sh(f"kill -9 {debugger}; while [ -e /proc/{debugger} ]; do sleep 0.02; done")
    assert lab.is_parked(job)
    resume(lab, job)


HOLD = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0
print(os.getpid(), flush=True)
signal.sigwait([signal.SIGTERM])
"""


def test_a_lost_guard_is_told_and_mended_by_the_next_run(lab: Lab) -> None:
    job = lab.one("polling")
    guard = suspend(lab, job)
    kill_guard(lab, guard)
    assert lab.is_parked(job)
    seen, told, mended, again = lab.play(
        info([job.pid]),
        cuda("checkpointed", [job.pid], check=True),
        cuda("checkpointed", [job.pid]),
        cuda("checkpointed", [job.pid]),
    )
    assert seen.ok().processes[job.pid]["state"] == "checkpointed"
    assert seen.processes[job.pid]["guard"] == {"kind": "none", "pid": None}
    assert told.ok(changed=True).each("plan") == mended.ok(changed=True).each("plan") == [["guard"]]
    new = mended.processes[job.pid]["guard"]
    assert new["kind"] == "holder" and new["pid"] not in (None, guard["pid"])
    again.ok(changed=False)
    continue_often(lab, job)
    assert lab.is_parked(job)
    resume(lab, job)


def test_a_guard_hears_also_where_ansible_was_started_by_who_ignores_its_children(lab: Lab) -> None:
    """An ignored SIGCHLD is inherited, and the kernel tells a tracer by that signal that its process was continued."""
    start = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, sys.argv)"
    lab.host.put("/usr/local/bin/deaf-python", f"#!/bin/sh\nexec /usr/bin/python3 -c '{start}' \"$@\"\n", "755")
    job = lab.one("polling")
    task = cuda("checkpointed", [job.pid]) | {"vars": {"ansible_python_interpreter": "/usr/local/bin/deaf-python"}}
    (suspended,) = lab.play(task)
    guard = suspended.ok(changed=True).processes[job.pid]["guard"]
    lab.host.run("kill", "-CONT", str(job.pid))
    # A SIGCONT that nobody has answered waits; the answer, a SIGSTOP, takes it away.
    lab.wait_for("answer to a SIGCONT", lambda: not pending(lab, job) & 1 << 17, seconds=5)
    kill_guard(lab, guard)
    assert lab.is_parked(job)
    resume(lab, job)


def test_a_guard_that_is_stopped_itself_lets_go(lab: Lab) -> None:
    job = lab.one("polling")
    guard = suspend(lab, job)
    lab.host.run("kill", "-STOP", str(guard["pid"]))
    resume(lab, job)


@pytest.mark.parametrize("guard", ["killed", "none"])
def test_what_runs_without_its_gpu_is_told_and_stopped_by_the_next_run(lab: Lab, guard: str) -> None:
    """Plain threads wait for the driver; the run does what can be done before they no longer do."""
    job = lab.one()
    if guard == "killed":
        kill_guard(lab, suspend(lab, job))
    else:
        assert suspend(lab, job, guard="none") == {"kind": "none", "pid": None}
    lab.host.run("kill", "-CONT", str(job.pid))
    assert not lab.is_parked(job)
    seen, mended, after = lab.play(info([job.pid]), cuda("checkpointed", [job.pid]), info([job.pid]))
    assert seen.ok().processes[job.pid]["state"] == "running_without_gpu"
    assert mended.ok(changed=True).processes[job.pid]["before"] == "running_without_gpu"
    assert mended.processes[job.pid]["after"] == "checkpointed" and mended.processes[job.pid]["parked"]
    assert after.ok().processes[job.pid]["state"] == "checkpointed"
    assert lab.is_parked(job) and lab.stands_still(job)
    resume(lab, job)


def test_what_runs_without_its_gpu_is_resumed_as_well(lab: Lab) -> None:
    job = lab.one()
    suspend(lab, job, guard="none")
    lab.host.run("kill", "-CONT", str(job.pid))
    assert resume(lab, job).processes[job.pid]["before"] == "running_without_gpu"


def test_a_frozen_cgroup_holds_without_the_guard(lab: Lab) -> None:
    job = lab.one("polling")
    guard = suspend(lab, job, guard="cgroup")
    assert guard["kind"] == "cgroup"
    group = lab.host.sh(f"sed -n 's/^0:://p' /proc/{job.pid}/cgroup")
    assert lab.host.sh(f"cat {UNIFIED}{group}/cgroup.freeze") == "1"
    kill_guard(lab, guard)
    continue_often(lab, job)
    assert lab.stands_still(job, seconds=0.5)
    assert lab.play(info([job.pid]))[0].ok().processes[job.pid]["state"] == "checkpointed"
    resume(lab, job)
    assert lab.host.sh(f"sed -n 's/^0:://p' /proc/{job.pid}/cgroup") != group
    lab.host.sh(f"! ls -d {UNIFIED}{group} 2>&1")


@pytest.fixture
def huge_pages(lab: Lab) -> Iterator[str]:
    """The file, writable in this host; the machine's own setting is put back afterwards."""
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    lab.host.run("mount", "-o", "remount,rw", "/sys")
    before = lab.host.sh(f"sed 's/.*\\[//; s/\\].*//' {path}")
    lab.host.sh(f"echo madvise >{path}")
    try:
        yield path
        assert "[madvise]" in lab.host.run("cat", path)
    finally:
        lab.host.sh(f"echo {before} >{path}; mount -o remount,ro /sys")


def test_huge_pages_are_on_while_it_is_suspended_and_put_back(lab: Lab, huge_pages: str) -> None:
    job, managed = lab.start(Workload(rate=32), Workload("managed"))
    play = Play(lab.host.fleet, [cuda("checkpointed", [job.pid])], lab.host.name)
    lab.wait_for("huge pages", lambda: "[always]" in lab.host.run("cat", huge_pages))
    (result,) = play.wait()
    assert "always" in result.ok(changed=True).data["huge_pages"]
    assert "[madvise]" in lab.host.run("cat", huge_pages)
    failed, kept, resumed = lab.play(
        cuda("checkpointed", [managed.pid], allow=["uvm_managed"]),
        cuda("running", [job.pid], huge_pages="keep", check=True),
        cuda("running", [job.pid], huge_pages="keep"),
    )
    failed.refused(f"PID {managed.pid}")
    assert "[madvise]" in lab.host.run("cat", huge_pages)
    assert kept.ok() and "always" not in resumed.ok(changed=True).data["huge_pages"]


def test_huge_pages_are_put_back_by_the_next_run_after_a_kill(lab: Lab, huge_pages: str) -> None:
    job, other = lab.start(Workload(rate=32), Workload())
    play = Play(lab.host.fleet, [cuda("checkpointed", [job.pid])], lab.host.name)
    lab.wait_for("huge pages", lambda: "[always]" in lab.host.run("cat", huge_pages))
    lab.host.sh("kill -9 $(pgrep -x gpufleet-hold)")
    (failed,) = play.wait()
    assert failed.failed
    lab.play(cuda("running", [other.pid]))[0].ok(changed=False)
    assert "[madvise]" in lab.host.run("cat", huge_pages)
    lab.play(cuda("running", [job.pid]))[0].ok()


def test_huge_pages_that_can_not_be_set_are_told_and_nothing_fails(lab: Lab) -> None:
    """The file is read-only in a test host, as it is in many a container."""
    job = lab.one()
    suspended, resumed = lab.play(cuda("checkpointed", [job.pid], huge_pages="always"), cuda("running", [job.pid]))
    assert "ead-only" in suspended.ok(changed=True).data["huge_pages"] + str(suspended.data.get("warnings"))
    resumed.ok(changed=True)
