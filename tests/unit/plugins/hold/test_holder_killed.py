# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGKILL of the holder, anywhere: no thread runs before the GPU memory is back, and another holder finishes."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any, Callable, List, Optional, Tuple

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import park
from tests.unit.plugins.hold.helpers import (
    CHECKPOINTED,
    CREATED_SUM,
    GATE,
    HANDLED,
    RESTORE_TID,
    RUNNING,
    STATE,
    Holder,
    Target,
    bring_back,
    held,
    states,
    status,
    suspend,
    until,
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Life:
    """What a holder has told before it died."""

    def __init__(self, holder: Holder) -> None:
        self.mask: Optional[str] = None
        self.steps: List[str] = []
        try:
            while True:
                what, value = holder.next()
                if what == "mask":
                    self.mask = value
                elif what == "step":
                    self.steps.append(value)
                else:
                    raise AssertionError((what, value))
        except EOFError:
            assert os.WTERMSIG(holder.wait()) == signal.SIGKILL


def until_step(last: str, tell: Callable[[Any], None]) -> Callable[[str], None]:
    def step(name: str) -> None:
        tell(("step", name))
        if name == last:
            die()

    return step


def telling(tell: Callable[[Any], None]) -> Callable[[str], None]:
    return lambda text: tell(("mask", text))


def assert_whole_afterwards(target: Target, mask: Optional[str]) -> None:
    target.assert_runs()
    tid = target.slot(RESTORE_TID)
    assert int(status(target.pid, "SigBlk", tid), 16) == 1 << (signal.SIGUSR2 - 1)
    assert int(status(target.pid, "ShdPnd"), 16) == int(status(target.pid, "SigPnd", tid), 16) == 0


@pytest.mark.parametrize("last", park.SUSPEND_STEPS)
def test_at_each_step_of_a_suspend(last: str) -> None:
    with Target(12, "mask", signal.SIGUSR2) as target:
        with Holder(
            lambda tell: park.suspend(target.target, target.call("c", 3), until_step(last, tell), mask=telling(tell))
        ) as holder:
            life = Life(holder)
        assert life.steps[-1] == last
        if last == "stop":
            target.assert_runs()
        else:
            target.assert_parked()
        assert (target.slot(STATE) == CHECKPOINTED) == (last == "settle")
        bring_back(target, life.mask)
        assert_whole_afterwards(target, life.mask)


@pytest.mark.parametrize("last", park.RESUME_STEPS)
def test_at_each_step_of_a_resume(last: str) -> None:
    def work(tell: Callable[[Any], None]) -> None:
        step = until_step(last, tell)
        _replies, hold = park.resume(target.target, target.resuming(), step, mask=telling(tell))
        step("continue")
        park.let_go(hold, run=True)
        step("unlock")

    with Target(12, "mask", signal.SIGUSR2) as target:
        held(lambda: suspend(target))
        with Holder(work) as holder:
            life = Life(holder)
        assert life.steps[-1] == last
        if last == "unlock":
            target.assert_runs()
        else:
            target.assert_parked()
        assert (target.slot(STATE) == CHECKPOINTED) == (last not in ("settle", "continue", "unlock"))
        bring_back(target, life.mask)
        assert_whole_afterwards(target, life.mask)


@pytest.mark.parametrize("what", ["c", "r"])
@pytest.mark.parametrize("options", [(), ("alone",), ("exit-main",), ("storm", 3)])
def test_in_the_middle_of_the_call(what: str, options: Tuple[object, ...]) -> None:
    """The driver finishes on its own once the restore thread is let run again."""

    def work(tell: Callable[[Any], None]) -> None:
        if what == "c":
            park.suspend(target.target, target.call("c"), mask=telling(tell))
        else:
            park.resume(target.target, [("restore", target.call("r"))], mask=telling(tell))

    with Target(0 if "alone" in options else 12, "mask", signal.SIGUSR2, *options) as target:
        if what == "r":
            held(lambda: suspend(target))
        with target.gate_shut(), Holder(work) as holder:
            target.await_work()
            holder.kill()
            until(target.all_stopped, f"every thread is T: {states(target.pid)}")
            target.assert_still()
        mask = next(iter(told(holder)), None)
        target.assert_parked()
        assert (target.slot(STATE) == CHECKPOINTED) == (what == "r")
        bring_back(target, mask)
        assert target.slot(STATE) == RUNNING
        assert_whole_afterwards(target, mask)


def told(holder: Holder) -> List[str]:
    return [value for what, value in holder.messages() if what == "mask"]


def test_in_the_middle_of_a_call_that_has_created_threads() -> None:
    def work(tell: Callable[[Any], None]) -> None:
        _reply, hold = park.suspend(target.target, target.call("T", 4), mask=telling(tell))
        hold.mask()
        hold.go()
        tell(("step", "they run"))
        time.sleep(30)

    with Target(5, "mask", signal.SIGUSR2) as target, Holder(work) as holder:
        mask = holder.next()[1]
        assert holder.next() == ("step", "they run")
        before = target.slot(CREATED_SUM)
        until(lambda: target.slot(CREATED_SUM) > before, "they run")
        holder.kill()
        target.assert_parked()
        before = target.slot(CREATED_SUM)
        target.assert_still()
        assert target.slot(CREATED_SUM) == before
        bring_back(target, mask)
        assert_whole_afterwards(target, mask)
        assert {status(target.pid, "SigBlk", tid) for tid in states(target.pid)} <= {f"{n:016x}" for n in (0, 1 << 11)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_with_a_deadly_signal_waiting(number: int) -> None:
    """It waits on, in place of being the first thing that the threads take when the holder dies."""
    with Target(12) as target:
        with target.gate_shut(), Holder(lambda tell: suspend(target)) as holder:
            target.await_work()
            os.kill(target.pid, number)
            for _number in range(20):
                os.kill(target.pid, signal.SIGCONT)
            target.await_work()
            time.sleep(0.3)  # the holder has to answer the last one first
            holder.kill()
            target.assert_parked()
        bring_back(target, unlock=False)
        assert target.popen.wait(10) == -number


@pytest.mark.parametrize("busy", [False, True])
def test_after_it_has_been_continued_by_somebody_during_the_call(busy: bool) -> None:
    """Also where the restore thread is deep in the kernel, and takes no signal: the others stop the process again."""
    with Target(12, *(["uninterruptible"] if busy else [])) as target:
        with target.gate_shut(), Holder(lambda tell: suspend(target)) as holder:
            target.await_work()
            for _number in range(100):
                os.kill(target.pid, signal.SIGCONT)
            time.sleep(0.05)
            holder.kill()
            until(
                lambda: all(
                    state == "T" for tid, state in states(target.pid).items() if tid != target.slot(RESTORE_TID)
                ),
                f"every thread is T: {states(target.pid)}",
            )
            target.assert_still()
        target.assert_parked()
        bring_back(target)
        target.assert_runs()


@pytest.mark.parametrize("storm", [False, True])
@pytest.mark.parametrize("options", [("alone",), ("alone", "handlers", "ppoll"), ("handlers", "ppoll")])
def test_after_it_has_been_continued_and_has_come_to_rest(options: Tuple[str, ...], storm: bool) -> None:
    """Neither a SIGCONT that gets through to the restore thread nor the SIGSTOP in answer is lost or sent again."""

    def work(tell: Callable[[Any], None]) -> None:
        reply, _hold = park.suspend(target.target, target.call("c"))
        assert reply is not None and reply.ok
        tell("suspended")
        time.sleep(30)

    with Target(0 if "alone" in options else 12, *options) as target:
        for _round in range(3):
            with target.gate_shut(), Holder(work) as holder:
                target.await_work()
                for number in range(300 if storm else 3):
                    os.kill(target.pid, signal.SIGCONT)
                    if number == 100:
                        target.set_slot(GATE, 1)
                if not storm:
                    target.await_work()
                target.set_slot(GATE, 1)
                assert holder.next() == "suspended"
                if storm:
                    # What has come since the last look of a holder that does not guard is not answered by it.
                    os.kill(target.pid, signal.SIGSTOP)
                holder.kill()
            target.assert_parked()
            bring_back(target)
            target.assert_runs()
            if "handlers" in options:
                until(lambda: target.slot(HANDLED + signal.SIGCONT) > 0, "its handler has run")


def test_at_any_moment() -> None:
    """A seeded walk over moments that no callback names."""
    moments = random.Random(4)

    def work(tell: Callable[[Any], None]) -> None:
        reply, hold = park.suspend(target.target, target.call("c", 2), mask=telling(tell))
        assert reply is not None and reply.ok
        _replies, hold = park.resume(target.target, target.resuming(), mask=telling(tell), hold=hold)
        park.let_go(hold, run=True)

    with Target(12, "mask", signal.SIGUSR2) as target:
        for _round in range(20):
            with Holder(work) as holder:
                time.sleep(moments.random() * 0.04)
                holder.kill()
            time.sleep(0.003)
            if target.slot(STATE) == CHECKPOINTED:
                target.assert_parked()
            bring_back(target, next(iter(told(holder)), None))
            assert_whole_afterwards(target, None)
