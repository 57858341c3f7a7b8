# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Suspend, resume, ask and adopt, with real processes."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import masks, park, process
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import HoldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.guard import guard
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.hold import Hold
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._step_names import ProcessStep
from tests.unit.plugins.hold.helpers import (
    CHECKPOINTED,
    CREATED,
    CREATED_SUM,
    GATE,
    HANDLED,
    HANDLED_BY,
    RESTORE_TID,
    STATE,
    Failed,
    FakeCall,
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

SHORT = park.Deadlines(stop=0.4, seize=0.4, settle=0.4)


def blocked(target: Target, tid: Optional[int] = None) -> int:
    return int(status(target.pid, "SigBlk", tid or target.slot(RESTORE_TID)), 16)


@pytest.mark.parametrize(("threads", "options"), [(0, ()), (1, ("spin",)), (60, ()), (20, ("spin",))])
def test_suspended_is_parked_and_comes_back(threads: int, options: Tuple[str, ...]) -> None:
    with Target(threads, *options) as target:
        for _round in range(3):
            held(lambda: suspend(target))
            target.assert_parked()
            held(lambda: resume(target))
            target.assert_runs()


def test_a_process_of_one_thread() -> None:
    with Target(0, "alone") as target:
        assert target.slot(RESTORE_TID) == target.pid
        held(lambda: suspend(target))
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


def test_every_thread_is_held_until_it_is_let_go() -> None:
    """Between the checkpoint and the guard there is no gap."""

    def work(tell: Callable[[Any], None]) -> None:
        _reply, hold = park.suspend(target.target, target.call("c", 5))
        tell((hold.held, hold.running, hold.alive))
        time.sleep(0.05)
        park.let_go(hold, run=False)

    with Target(8) as target, Holder(work) as holder:
        count, running, alive = holder.next()
        assert (count, running, alive) == (10, False, True)
        for tid, state in states(target.pid).items():
            assert (state, status(target.pid, "TracerPid", tid)) == ("t", str(holder.pid))
        target.assert_still()
        holder.result()
        target.assert_parked()


def test_steps_and_masks_are_told_before_they_happen() -> None:
    def work() -> List[Tuple[str, bool, int, str]]:
        told: List[Tuple[str, bool, int, str]] = []
        mask: List[str] = []

        def step(name: str) -> None:
            others = {tid: state for tid, state in states(target.pid).items() if tid != target.slot(RESTORE_TID)}
            stopped = set(others.values()) <= {"T", "t"}
            told.append((name, stopped, blocked(target), ",".join(mask)))

        _reply, hold = park.suspend(target.target, target.call("c", 5), step, mask=mask.append)
        step("guard")
        _replies, hold = park.resume(target.target, target.resuming(), step, mask=mask.append, hold=hold)
        step("continue")
        park.let_go(hold, run=True)
        target.unlock()
        return told

    with Target(4, "mask", signal.SIGUSR1) as target:
        tid = target.slot(RESTORE_TID)
        own = 1 << (signal.SIGUSR1 - 1)
        assert blocked(target) == own
        told = held(work)
        assert [name for name, *_rest in told] == [
            *park.SUSPEND_STEPS,
            "guard",
            *(name for name in park.RESUME_STEPS if name not in ("stop", "seize", "unlock")),
        ]
        assert [stopped for _name, stopped, _mask, _told in told] == [False] + [True] * 9
        # The other one is the thread by which the stop is kept up.
        text = f"{max(other for other in states(target.pid) if other != tid)}=0000000000000000,{tid}={own:016x}"
        by_name = {name: (mask, journalled) for name, _stopped, mask, journalled in told}
        assert by_name["seize"] == (own, "")
        assert by_name["checkpoint"] == (masks.ALONE, text)
        assert by_name["guard"] == (own, text)
        assert by_name["restore"][0] == by_name["settle"][0] == masks.ALONE
        assert by_name["continue"][0] == own
        assert blocked(target) == own
        target.assert_runs()


def test_a_refused_checkpoint_leaves_it_held_and_the_caller_decides() -> None:
    def work() -> Tuple[Any, Any, bool]:
        reply, hold = park.suspend(target.target, target.call("q", ok=False))
        still = all(state == "t" for state in states(target.pid).values())
        answer = park.ask(hold, target.call("q"))
        park.let_go(hold, run=True)
        return reply, answer, still

    with Target(4) as target:
        reply, answer, still = held(work)
        assert (reply.ok, reply.code, answer.state, still) == (False, 801, "running", True)
        target.assert_runs()


def test_calls_end_at_the_first_refusal() -> None:
    def work() -> Tuple[List[Any], List[str]]:
        steps: List[str] = []
        calls: List[Tuple[Optional[ProcessStep], Callable[[], FakeCall]]] = [
            ("restore", target.call("q", ok=False)),
            ("unlock", target.call("u")),
        ]
        replies, hold = park.resume(target.target, calls, steps.append)
        park.let_go(hold, run=False)
        return replies, steps

    with Target(2) as target:
        held(lambda: suspend(target))
        replies, steps = held(work)
        assert [reply.ok for reply in replies] == [False]
        assert steps == ["stop", "seize", "mask", "restore", "settle"]
        assert target.slot(STATE) == CHECKPOINTED
        target.assert_parked()


def test_no_answer_within_the_time_is_no_end_of_the_call() -> None:
    def work(tell: Callable[[Any], None]) -> Tuple[Any, Any, bool]:
        calls: List[FakeCall] = []

        def start() -> FakeCall:
            calls.append(target.call("c")())
            return calls[-1]

        reply, hold = park.suspend(target.target, start, deadlines=park.Deadlines(call=0.05))
        running = hold.running
        tell("late")
        again = hold.run(calls[0], math.inf)
        park.let_go(hold, run=False)
        return reply, again, running

    with Target(4) as target, target.gate_shut(), Holder(work) as holder:
        assert holder.next() == "late"
        target.await_work()
        target.set_slot(GATE, 1)
        reply, again, running = holder.result()
        assert (reply, running) == (None, True)
        assert again.ok and again.state == "checkpointed"
        target.assert_parked()


def test_each_call_has_its_own_time() -> None:
    deadlines = park.Deadlines(call=5, calls={"unlock": 0.25})
    assert [deadlines.of(name) for name in ("restore", "unlock")] == [5, 0.25]
    assert park.DEFAULT.of("checkpoint") == math.inf


def test_waiting_for_a_long_call_costs_next_to_nothing() -> None:
    def work() -> Tuple[int, float]:
        calls: List[FakeCall] = []

        def start() -> FakeCall:
            calls.append(target.call("c", 400)())
            return calls[-1]

        before = time.process_time()
        _reply, hold = park.suspend(target.target, start)
        spent = time.process_time() - before
        park.let_go(hold, run=False)
        return calls[0].polls, spent

    with Target(1) as target:
        polls, spent = held(work)
        assert polls < 150
        assert spent < 0.1


# What holding may meet


def test_a_debugger_that_was_first_is_named_and_the_process_goes_on() -> None:
    def trace_one(tell: Callable[[Any], None]) -> None:
        from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace

        ptrace.seize(max(states(target.pid)))
        tell("attached")
        time.sleep(30)

    with Target(6) as target, Holder(trace_one) as debugger:
        assert debugger.next() == "attached"
        for work in (lambda: suspend(target), lambda: park.adopt(target.target)):
            with pytest.raises(Failed) as caught:
                held(work)
            assert caught.value.kind == "HoldError"
            assert f"is traced by PID {debugger.pid} (" in caught.value.text
            assert "one tracer only" in caught.value.text and "detach" in caught.value.text
        debugger.kill()
        target.assert_runs()
        held(lambda: suspend(target))
        target.assert_parked()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_user_without_rights_is_told_so_and_nothing_changes() -> None:
    with Target(2) as target:
        with pytest.raises(Failed) as caught:
            held(lambda: suspend(target), uid=65534)
        assert caught.value.kind == "HoldError"
        assert "UID 65534 may not send it signals" in caught.value.text and "become: true" in caught.value.text
        target.assert_runs()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_the_owner_may_without_root() -> None:
    with Target(4, argv=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")) as target:
        held(lambda: suspend(target), uid=65534)
        target.assert_parked()
        held(lambda: resume(target), uid=65534)
        target.assert_runs()


def test_a_thread_in_vfork_is_named_with_its_state_and_the_process_goes_on() -> None:
    with Target(3, "vfork", 1500) as target:
        until(lambda: "D" in states(target.pid).values(), "a thread waits for its vfork")
        (tid,) = [tid for tid, state in states(target.pid).items() if state == "D"]
        with pytest.raises(Failed) as caught:
            held(lambda: suspend(target, deadlines=SHORT))
        assert caught.value.kind == "HoldError"
        assert f"thread {tid} (target): state D, waits in " in caught.value.text
        assert "runs on, unchanged" in caught.value.text
        target.assert_runs()
        held(lambda: suspend(target))  # with time enough for the child to end
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


def test_a_process_that_was_stopped_before_stays_stopped_where_holding_fails() -> None:
    with Target(3) as target:
        os.kill(target.pid, signal.SIGSTOP)
        until(target.all_stopped, "stopped")
        with pytest.raises(Failed) as caught:
            held(lambda: park.suspend(park.Target(target.identity, 1), target.call("c", 1)))
        assert "names thread 1 as its restore thread" in caught.value.text
        target.assert_parked()
        os.kill(target.pid, signal.SIGCONT)
        target.assert_runs()


def test_a_restore_thread_that_is_none_of_its_threads() -> None:
    ours = os.getpid()
    with Target(3) as target:
        with pytest.raises(Failed) as caught:
            held(lambda: park.suspend(park.Target(target.identity, ours), target.call("c", 1)))
        assert f"names thread {ours} as its restore thread" in caught.value.text
        target.assert_runs()


def test_a_first_thread_that_has_ended() -> None:
    with Target(6, "exit-main") as target:
        until(lambda: states(target.pid)[target.pid] == "Z", "the first thread is a zombie")
        held(lambda: suspend(target))
        assert states(target.pid).pop(target.pid) == "Z"
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


def test_threads_that_come_and_go() -> None:
    with Target(2, "storm", 6) as target:
        for _round in range(5):
            held(lambda: suspend(target))
            target.assert_parked()
            held(lambda: resume(target))
            target.threads = 8
            target.assert_runs()


def test_threads_that_the_restore_thread_creates_run_with_it_and_are_held_with_it() -> None:
    def work(tell: Callable[[Any], None]) -> int:
        _reply, hold = park.suspend(target.target, target.call("T", 5))
        tell(sorted(hold.created))
        time.sleep(0.05)
        park.let_go(hold, run=False)
        return len(hold.created)

    with Target(3, "mask", signal.SIGUSR1) as target, Holder(work) as holder:
        created = holder.next()
        assert len(created) == 5 and set(created) <= set(states(target.pid))
        sums = target.slot(CREATED_SUM)
        target.assert_still()
        assert target.slot(CREATED_SUM) == sums
        holder.result()
        target.assert_parked()
        assert target.slot(CREATED_SUM) == sums
        # They have had the restore thread's mask from it, not ours.
        assert [blocked(target, tid) for tid in created] == [1 << (signal.SIGUSR1 - 1)] * 5
        held(lambda: resume(target))
        target.assert_runs()
        until(lambda: target.slot(CREATED_SUM) > sums, "they go on")


def test_threads_that_the_restore_thread_creates_and_joins() -> None:
    def work() -> Tuple[int, int]:
        _reply, hold = park.suspend(target.target, target.call("t", 8))
        park.let_go(hold, run=False)
        return hold.created_ever, len(hold.created)

    with Target(3) as target:
        for _round in range(3):
            assert held(work) == (8, 0)
            target.assert_parked()
            held(lambda: resume(target))
        assert target.slot(CREATED) == 24
        target.assert_runs()


def test_a_listing_of_threads_that_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel's can be while threads end. Twice in a row, the same thread is missing."""
    whole = process.live_tasks
    cut = [0]

    def listing(pid: int) -> Dict[int, str]:
        found = whole(pid)
        if cut[0] < 2 and found and set(found.values()) <= {"T", "t"}:
            cut[0] += 1
            found.pop(max(found))
        return found

    def work() -> int:
        hold = Hold(target.identity)
        hold.stop(time.monotonic() + 5)
        cut[0] = 0
        hold.seize(time.monotonic() + 5)
        count = hold.held
        hold.detach(run=True)
        return count

    monkeypatch.setattr(process, "live_tasks", listing)
    with Target(6) as target:
        assert held(work) == 8
        target.assert_runs()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a PID namespace")
def test_the_first_process_of_a_container() -> None:
    """Its namespace's init takes no SIGSTOP from inside, but does from here."""
    with Target(4, argv=("unshare", "--pid", "--fork", "--kill-child"), pid_is_ours=False) as target:
        (inner,) = [
            int(tid) for tid in open(f"/proc/{target.popen.pid}/task/{target.popen.pid}/children").read().split()
        ]
        assert status(inner, "NSpid").split() == [str(inner), "1"]
        target.pid = inner
        restore = next(
            tid for tid in states(inner) if status(inner, "NSpid", tid).split()[1] == str(target.slot(RESTORE_TID))
        )
        target.set_slot(RESTORE_TID, restore)
        held(lambda: suspend(target))
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


# Signals meanwhile


@pytest.mark.parametrize("options", [("handlers",), ("handlers", "ppoll")])
def test_handlers_do_not_run_before_the_gpu_memory_is_back(options: Tuple[str, ...]) -> None:
    numbers = (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT, signal.SIGRTMIN + 1)

    def work(tell: Callable[[Any], None]) -> Tuple[str, ...]:
        _reply, hold = park.suspend(target.target, target.call("c"))
        tell("suspended")
        _replies, hold = park.resume(target.target, [("restore", target.call("r", 60))], hold=hold)
        tell("restored")
        pending = hold.pending()
        time.sleep(0.05)
        park.let_go(hold, run=True)
        return pending

    with Target(4, *options) as target, target.gate_shut(), Holder(work) as holder:
        target.await_work()
        for number in numbers:
            os.kill(target.pid, number)
        target.await_work()
        target.set_slot(GATE, 1)
        assert holder.next() == "suspended"
        assert [target.slot(HANDLED + number) for number in numbers] == [0] * 5
        assert holder.next() == "restored"
        assert [target.slot(HANDLED + number) for number in numbers] == [0] * 5
        assert set(holder.result()) == {"SIGUSR1", "SIGTERM", "SIGHUP", f"signal {signal.SIGRTMIN + 1}"}
        until(lambda: all(target.slot(HANDLED + number) == 1 for number in numbers), "each handler has run once")
        target.assert_runs()


def test_a_signal_for_the_restore_thread_itself_stays_one() -> None:
    """Also where it comes through in spite of the mask."""
    from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace

    with Target(4, "handlers", "ppoll") as target:
        with target.gate_shut(), Holder(lambda tell: suspend(target)) as holder:
            target.await_work()
            ptrace.signal_thread(target.pid, target.slot(RESTORE_TID), signal.SIGUSR2)
            target.await_work()
            target.set_slot(GATE, 1)
            holder.result()
        assert target.slot(HANDLED + signal.SIGUSR2) == 0
        held(lambda: resume(target))
        until(lambda: target.slot(HANDLED + signal.SIGUSR2) == 1, "its handler has run")
        assert target.slot(HANDLED_BY + signal.SIGUSR2) == target.slot(RESTORE_TID)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_deadly_signal_waits_until_it_is_resumed(number: int) -> None:
    with Target(4) as target:
        with target.gate_shut(), Holder(lambda tell: suspend(target)) as holder:
            target.await_work()
            os.kill(target.pid, number)
            target.await_work()
            target.set_slot(GATE, 1)
            holder.result()
        target.assert_parked()
        assert target.slot(STATE) == CHECKPOINTED
        held(lambda: resume(target, unlock=False))
        assert target.popen.wait(10) == -number


def test_continues_during_the_checkpoint_change_nothing() -> None:
    with Target(30, "spin") as target, target.gate_shut(), Holder(lambda tell: suspend(target)) as holder:
        target.await_work()
        before = target.counters()
        for _number in range(200):
            os.kill(target.pid, signal.SIGCONT)
            time.sleep(0.0003)
        target.set_slot(GATE, 1)
        holder.result()
        assert target.counters() == before
        target.assert_parked()


@pytest.mark.parametrize("options", [(), ("alone",)])
def test_a_signal_about_to_be_delivered_is_not_taken_for_rest(options: Tuple[str, ...]) -> None:
    """To let go of a thread in that moment would swallow the signal."""

    def work() -> None:
        def step(name: str) -> None:
            if name == "settle":
                os.kill(target.pid, signal.SIGSTOP)
                until(lambda: states(target.pid)[target.slot(RESTORE_TID)] == "t", "it is about to take it")

        suspend(target, step=step)

    with Target(0 if options else 4, *options) as target:
        held(work)
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


# A process that ends


@pytest.mark.parametrize(("what", "argument", "end"), [("d", 0, -signal.SIGSEGV), ("x", 3, 3)])
def test_a_process_that_ends_in_the_call(what: str, argument: int, end: int) -> None:
    with Target(4) as target:
        with pytest.raises(Failed) as caught:
            held(lambda: park.suspend(target.target, target.call(what, argument)))
        assert caught.value.kind == "ProcessEndedError"
        told = f"exit status {end}" if end > 0 else f"killed by signal {-end}"
        assert f"PID {target.pid}: it ended while it was held" in caught.value.text and told in caught.value.text
        assert target.popen.wait(5) == end


def test_a_process_that_is_killed_while_it_is_held_is_reaped_while_the_holder_lives() -> None:
    def work(tell: Callable[[Any], None]) -> str:
        _reply, hold = park.suspend(target.target, target.call("c", 1))
        tell("held")
        time.sleep(0.1)
        try:
            park.ask(hold, target.call("q"))
        except HoldError as error:
            tell(str(error))
        park.let_go(hold, run=True)
        time.sleep(5)
        return "left"

    with Target(20) as target, Holder(work) as holder:
        assert holder.next() == "held"
        os.kill(target.pid, signal.SIGKILL)
        assert "killed by signal 9" in holder.next()
        assert target.popen.wait(5) == -signal.SIGKILL


def test_a_restore_thread_that_ends_alone() -> None:
    with Target(3) as target:
        with pytest.raises(Failed) as caught:
            held(lambda: park.suspend(target.target, target.call("e")))
        assert caught.value.kind == "HoldError"
        assert "has ended, and the process lives on" in caught.value.text
        until(target.all_stopped, "it stays stopped")


def test_a_process_that_has_ended_or_is_another_one() -> None:
    with Target(2) as target:
        there = target.identity
        other = Identity(there.pid, there.start_ticks + 1, there.boot_id)
        for work in (
            lambda: park.suspend(park.Target(other, target.slot(RESTORE_TID)), target.call("c", 1)),
            lambda: park.adopt(park.Target(other, target.slot(RESTORE_TID))),
            lambda: park.continued(other).__enter__(),
        ):
            with pytest.raises(Failed) as caught:
                held(work)
            assert caught.value.kind == "ProcessEndedError"
        target.assert_runs()
        os.kill(target.pid, signal.SIGKILL)
        until(lambda: set(states(target.pid).values()) <= {"Z"}, "a zombie")
        with pytest.raises(Failed) as caught:
            held(lambda: park.suspend(park.Target(there, target.slot(RESTORE_TID)), target.call("c", 1)))
        assert caught.value.kind == "ProcessEndedError"


# Callbacks that fail


@pytest.mark.parametrize("failing", park.SUSPEND_STEPS)
def test_a_journal_that_fails(failing: str) -> None:
    """Before the checkpoint everything is as before; after it the process stays stopped, for whoever comes next."""

    def step(name: str) -> None:
        if name == failing:
            raise OSError("disk full")

    with Target(4) as target:
        with Holder(lambda tell: wait_after(tell, lambda: suspend(target, step=step))) as holder:
            kind, text = holder.next()
            assert (kind, text) == ("OSError", "disk full")
            # While the holder lives on.
            if failing == "settle":
                target.assert_parked()
            else:
                target.assert_runs()
        if failing == "settle":
            held(lambda: resume(target))
            target.assert_runs()
        assert blocked(target) == 0


def wait_after(tell: Callable[[Any], None], work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:
        tell((type(error).__name__, str(error)))
    time.sleep(5)


def test_masks_that_can_not_be_journalled_are_not_changed() -> None:
    def refuse(text: str) -> None:
        raise OSError("disk full")

    with Target(4) as target:
        with pytest.raises(Failed, match="disk full"):
            held(lambda: suspend(target, mask=refuse))
        target.assert_runs()
        assert blocked(target) == 0


def test_a_call_that_can_not_be_started() -> None:
    def start() -> FakeCall:
        raise OSError("no such tool")

    with Target(4) as target:
        with Holder(lambda tell: wait_after(tell, lambda: park.suspend(target.target, start) and None)) as holder:
            assert holder.next() == ("OSError", "no such tool")
            target.assert_parked()
        bring_back(target)
        target.assert_runs()


@pytest.mark.parametrize("failing", ["mask", "restore", "settle"])
def test_a_journal_that_fails_while_resuming_leaves_it_stopped(failing: str) -> None:
    def step(name: str) -> None:
        if name == failing:
            raise OSError("disk full")

    with Target(4) as target:
        held(lambda: suspend(target))
        with Holder(lambda tell: wait_after(tell, lambda: resume(target, step=step))) as holder:
            assert holder.next() == ("OSError", "disk full")
            target.assert_parked()
        assert blocked(target) == 0
        bring_back(target)
        target.assert_runs()


# Those that come later


def test_asking_a_parked_process_leaves_it_parked() -> None:
    def work() -> Any:
        hold = park.adopt(target.target)
        reply = park.ask(hold, target.call("q"))
        park.let_go(hold, run=False)
        return reply

    with Target(10) as target:
        held(lambda: suspend(target))
        before = target.counters()
        assert held(work).state == "checkpointed"
        assert target.counters() == before
        target.assert_parked()


def test_a_guard_makes_room_once_everything_is_told() -> None:
    """What is told is written to a disk, which may take a second; nobody guards the process from then on."""

    def stay(tell: Callable[[Any], None]) -> None:
        kept = park.adopt(target.target)
        tell(kept.held)
        time.sleep(30)

    def make_room() -> None:
        steps.append("room")
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: set(states(target.pid).values()) == {"T"}, "let go")

    def work() -> List[str]:
        park.let_go(park.adopt(target.target, step=steps.append, make_room=make_room), run=False)
        return steps

    steps: List[str] = []
    with Target(6) as target:
        held(lambda: suspend(target))
        with Holder(stay) as first:
            assert first.next() > 0
            assert held(work) == ["stop", "seize", "room"]
        target.assert_parked()


def test_a_process_that_should_be_stopped_and_runs_is_stopped_first() -> None:
    def work() -> Tuple[bool, int]:
        hold = park.adopt(target.target)
        before = hold.stopped_before
        park.let_go(hold, run=False)
        return before, hold.held

    with Target(10) as target:
        assert held(work) == (False, 0)
        target.assert_parked()
        assert held(work) == (True, 0)
        target.assert_parked()


def test_adopting_does_not_continue_what_it_can_not_stop() -> None:
    with Target(3, "vfork", 1200) as target:
        until(lambda: "D" in states(target.pid).values(), "a thread waits for its vfork")
        with pytest.raises(Failed) as caught:
            held(lambda: park.adopt(target.target, SHORT))
        assert "has been sent SIGSTOP" in caught.value.text
        until(target.all_stopped, "it stops as soon as it can")
        target.assert_parked()


def test_the_same_hold_goes_all_the_way() -> None:
    """Rolled back at once: no gap between suspend, question and resume."""

    def work() -> List[Optional[str]]:
        answers: List[Optional[str]] = []
        _reply, hold = park.suspend(target.target, target.call("c", 1))
        for _round in range(3):
            answers.append(park.ask(hold, target.call("q")).state)  # type: ignore[union-attr]
            _replies, hold = park.resume(target.target, target.resuming(), hold=hold)
            answers.append(park.ask(hold, target.call("q")).state)  # type: ignore[union-attr]
            _reply, hold = park.suspend(target.target, target.call("c", 1), hold=hold)
        _replies, hold = park.resume(target.target, target.resuming(), hold=hold)
        park.let_go(hold, run=True)
        target.unlock()
        return answers

    with Target(20) as target:
        assert held(work) == ["checkpointed", "locked"] * 3
        target.assert_runs()


def test_a_hold_that_was_lost_is_taken_up_again() -> None:
    """By the same holder, after an error in its own code: only it could."""

    def work() -> None:
        park.suspend(target.target, target.call("c", 1))
        hold = park.adopt(target.target)
        replies, hold = park.resume(target.target, target.resuming(), hold=hold)
        assert [reply is not None and reply.ok for reply in replies] == [True]
        park.let_go(hold, run=True)
        target.unlock()

    with Target(10) as target:
        held(work)
        target.assert_runs()


def test_one_that_is_continued_again_and_again_is_stopped_where_it_must_not_run() -> None:
    def continue_it(tell: Callable[[Any], None]) -> None:
        while True:
            os.kill(target.pid, signal.SIGCONT)

    def adopt(tell: Callable[[Any], None]) -> None:
        hold = park.adopt(target.target)
        tell("held")
        guard(hold)

    with Target(10) as target, Holder(continue_it) as other, Holder(adopt) as holder:
        assert holder.next() == "held"
        target.assert_still(0.2)
        other.kill()
        holder.signal(signal.SIGTERM)
        holder.result()
        target.assert_parked()


def test_one_that_is_continued_again_and_again_is_not_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    with Target(3) as target:
        monkeypatch.setattr(process, "live_tasks", lambda pid: {pid: "S", pid + 1: "R"})
        hold = Hold(target.identity)
        with pytest.raises(HoldError) as caught:
            hold.stop(time.monotonic() + 0.15)
        hold.close()
        monkeypatch.undo()
        assert f"thread {target.pid} (target): state" in caught.value.evidence and "(and 1 more)" in str(caught.value)
        assert "somebody continues it again and again" in caught.value.reason
        target.assert_runs()


def test_a_stopped_process_is_continued_for_a_moment() -> None:
    def work(tell: Callable[[Any], None]) -> None:
        with park.continued(target.identity):
            tell("runs")
            time.sleep(0.1)
            raise ValueError("the lock failed")

    with Target(5) as target:
        os.kill(target.pid, signal.SIGSTOP)
        until(target.all_stopped, "stopped")
        with Holder(work) as holder:
            assert holder.next() == "runs"
            target.assert_runs()
            with pytest.raises(Failed, match="the lock failed"):
                holder.result()
        target.assert_parked()
        os.kill(target.pid, signal.SIGCONT)
        target.assert_runs()


def test_only_the_thread_that_holds_may_give_orders() -> None:
    def work() -> List[str]:
        _reply, hold = park.suspend(target.target, target.call("c", 1))
        caught: List[str] = []

        def elsewhere() -> None:
            for order in (hold.go, hold.tend, lambda: hold.detach(True), lambda: hold.settle(math.inf)):
                try:
                    order()
                except RuntimeError as error:
                    caught.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return caught

    with Target(2) as target:
        caught = held(work)
        assert len(caught) == 4 and all("only that one may give orders" in text for text in caught)
        target.assert_parked()


def test_without_a_restore_thread_nothing_runs_alone() -> None:
    def work() -> None:
        hold = Hold(target.identity)
        hold.stop(time.monotonic() + 5)
        hold.seize(time.monotonic() + 5)
        try:
            hold.go()
        finally:
            hold.detach(run=True)

    with Target(2) as target:
        with pytest.raises(Failed, match="no restore thread is known"):
            held(work)
        target.assert_runs()
