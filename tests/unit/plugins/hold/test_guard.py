# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A guarded process runs no instruction, whoever continues it."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from typing import Any, Callable, Dict, Optional

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import park, process, ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.guard import guard
from tests.unit.plugins.hold.helpers import (
    HANDLED,
    READS,
    Failed,
    Holder,
    Target,
    bring_back,
    held,
    resume,
    states,
    status,
    suspend,
    until,
)

# Makes a process group of its own for the program, in its own session: a job as a shell starts it.
SHELL = """
import os, signal, sys
if os.fork() == 0:
    os.setpgid(0, 0)
    os.execv(sys.argv[1], sys.argv[1:])
signal.pause()
"""


def guarding(target: Target, adopt: bool = False, block: bool = False, linger: bool = False, **options: Any) -> Holder:
    """A holder that suspends (or takes over) and guards; it has said "guarding" when this returns."""

    def work(tell: Callable[[Any], None]) -> Dict[str, Any]:
        if block:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)
        if adopt:
            hold = park.adopt(target.target)
        else:
            reply, hold = park.suspend(target.target, target.call("c", 2))
            assert reply is not None and reply.ok
        tell("guarding")
        before = resource.getrusage(resource.RUSAGE_SELF)
        reason = guard(hold, **options)
        after = resource.getrusage(resource.RUSAGE_SELF)
        if linger:
            tell(reason)
            time.sleep(30)
        held_on = hold.held
        if reason == "unwanted":
            park.let_go(hold, run=False)
        return {
            "reason": reason,
            "continues": hold.continues,
            "held": held_on,
            "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "switches": after.ru_nvcsw - before.ru_nvcsw,
        }

    holder = Holder(work)
    try:
        assert holder.next() == "guarding"
    except BaseException:
        holder.kill()
        raise
    return holder


def release(holder: Holder) -> Dict[str, Any]:
    holder.signal(signal.SIGTERM)
    found = holder.result()
    assert isinstance(found, dict)
    return found


def test_a_thousand_foreign_continues_and_no_instruction() -> None:
    with Target(60, "spin") as target, guarding(target) as holder:
        before = target.counters()
        for _number in range(1000):
            os.kill(target.pid, signal.SIGCONT)
            time.sleep(0.0002)
        time.sleep(0.05)
        assert target.counters() == before
        found = release(holder)
        assert found["reason"] == "released"
        assert 1 <= found["continues"] <= 1000
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


def test_a_guard_that_is_killed_leaves_it_parked() -> None:
    with Target(20, "spin") as target, guarding(target) as holder:
        for _number in range(50):
            os.kill(target.pid, signal.SIGCONT)
        time.sleep(0.05)
        holder.kill()
        target.assert_parked()
        bring_back(target)
        target.assert_runs()


def test_a_process_of_one_thread_is_guarded_as_well() -> None:
    """Its loop reads: were it let run, it would take what has been written to it."""
    with Target(0, "alone") as target, guarding(target) as holder:
        reads = target.slot(READS)
        os.write(target.requests, b"1 q 0\n")
        for _number in range(100):
            os.kill(target.pid, signal.SIGCONT)
            time.sleep(0.0005)
        assert target.slot(READS) == reads
        release(holder)
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


def test_an_idle_guard_sleeps() -> None:
    with Target(8) as target, guarding(target) as holder:
        time.sleep(1)
        found = release(holder)
        assert found["reason"] == "released"
        # One that looks every 10 ms would be at 100.
        assert found["switches"] < 50
        assert found["cpu"] < 0.3


def test_the_process_group_is_orphaned() -> None:
    """The shell that started it is gone: the kernel would send SIGHUP and SIGCONT to a stopped job. A guarded one does
    not count as stopped, so that it does not die when it is resumed."""
    with Target(12, argv=(sys.executable, "-c", SHELL)) as target, guarding(target) as holder:
        before = target.counters()
        target.popen.kill()
        target.popen.wait()
        time.sleep(0.1)
        assert process.pending(target.pid) == ()
        assert target.counters() == before
        release(holder)
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


def test_the_process_group_of_one_that_was_parked_before_is_orphaned() -> None:
    """It gets both, and runs no instruction all the same; the SIGHUP is acted on when it is resumed."""
    with Target(12, "handlers", argv=(sys.executable, "-c", SHELL)) as target:
        held(lambda: suspend(target))
        with guarding(target, adopt=True) as holder:
            before = target.counters()
            target.popen.kill()
            target.popen.wait()
            until(lambda: process.pending(target.pid) == ("SIGHUP",), "SIGHUP waits")
            time.sleep(0.05)
            assert target.counters() == before
            release(holder)
        target.assert_parked()
        assert target.slot(HANDLED + signal.SIGHUP) == 0
        held(lambda: resume(target))
        until(lambda: target.slot(HANDLED + signal.SIGHUP) == 1, "its handler has run")
        target.assert_runs()


def test_a_kill_of_a_process_of_two_threads() -> None:
    """The first thread is the one that is watched, and its end can be waited for last."""
    with Target(0) as target, guarding(target) as holder:
        time.sleep(0.05)
        os.kill(target.pid, signal.SIGKILL)
        assert target.popen.wait(5) == -signal.SIGKILL
        assert holder.result()["reason"] == "process ended"


@pytest.mark.parametrize("threads", [0, 30])
@pytest.mark.parametrize("early", [True, False])
def test_a_kill_acts_at_once_and_is_reaped(threads: int, early: bool) -> None:
    """While its guard lives on. Of two threads, the first is the one that is watched, and its end is told last."""
    with Target(threads) as target, guarding(target, linger=True) as holder:
        if not early:
            time.sleep(0.05)
        os.kill(target.pid, signal.SIGKILL)
        assert target.popen.wait(5) == -signal.SIGKILL
        assert holder.next() == "process ended"


@pytest.mark.parametrize("kill", [True, False])
def test_a_termination_as_systemd_sends_it_waits(kill: bool) -> None:
    """SIGTERM, then SIGCONT; also when the guard ends, or is killed."""
    with Target(12) as target, guarding(target) as holder:
        before = target.counters()
        os.kill(target.pid, signal.SIGTERM)
        os.kill(target.pid, signal.SIGCONT)
        time.sleep(0.05)
        assert target.counters() == before
        if kill:
            holder.kill()
        else:
            release(holder)
        target.assert_parked()
        assert process.pending(target.pid) == ("SIGTERM",)
        held(lambda: resume(target, unlock=False))
        assert target.popen.wait(10) == -signal.SIGTERM


def test_another_guard_takes_over() -> None:
    with Target(20) as target, guarding(target) as first:
        with pytest.raises(Failed) as caught:
            held(lambda: park.adopt(target.target))
        assert f"is traced by PID {first.pid} (" in caught.value.text
        before = target.counters()
        release(first)
        with guarding(target, adopt=True) as second:
            assert status(target.pid, "TracerPid") == str(second.pid)
            for _number in range(50):
                os.kill(target.pid, signal.SIGCONT)
                time.sleep(0.0005)
            assert target.counters() == before
            assert release(second)["reason"] == "released"
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


def test_a_release_that_came_before_the_guard_is_not_lost() -> None:
    with Target(4) as target, guarding(target, block=True, linger=True) as holder:
        assert holder.next() == "released"
        target.assert_parked()


def test_a_deadly_signal_for_one_thread_waits_as_well() -> None:
    """Also for the thread by which the process is stopped again."""
    with Target(6) as target, guarding(target) as holder:
        for tid in states(target.pid):
            ptrace.signal_thread(target.pid, tid, signal.SIGUSR1)
        for _number in range(20):
            os.kill(target.pid, signal.SIGCONT)
            time.sleep(0.001)
        time.sleep(0.02)
        release(holder)
        target.assert_parked()
        held(lambda: resume(target, unlock=False))
        assert target.popen.wait(10) == -signal.SIGUSR1


@pytest.mark.parametrize("why", ["wake", "wanted", "deadline"])
def test_a_guard_that_is_not_wanted_any_more_still_holds(why: str) -> None:
    read, write = os.pipe()
    ended = time.monotonic() + 0.1
    options: Dict[str, Dict[str, Any]] = {
        "wake": {"wake": read},
        "wanted": {"wanted": lambda: time.monotonic() < ended, "look": 0.02},
        "deadline": {"deadline": ended},
    }
    with Target(6) as target, guarding(target, **options[why]) as holder:
        if why == "wake":
            os.write(write, b"x")
        found = holder.result()
        assert (found["reason"], found["held"]) == ("unwanted", 8)
        target.assert_parked()
    os.close(read)
    os.close(write)


def test_between_two_guards_nothing_is_missed() -> None:
    """A SIGCONT that comes while the holder does something else is answered as soon as it guards again."""

    def work(tell: Callable[[Any], None]) -> Optional[str]:
        _reply, hold = park.suspend(target.target, target.call("c", 1))
        for _round in range(3):
            os.kill(target.pid, signal.SIGCONT)
            reason = guard(hold, deadline=time.monotonic() + 0.05)
            assert reason == "unwanted"
        tell("guarded")
        time.sleep(30)
        return None

    with Target(12) as target, Holder(work) as holder:
        assert holder.next() == "guarded"
        holder.kill()
        target.assert_parked()
