# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Suspend, resume and ask a process while all its threads but the restore thread are held. "Stop first": SIGSTOP comes
before the first seize, SIGCONT after the restore, so that a holder that is killed at any step leaves a stopped process,
which another one takes over.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from dataclasses import dataclass, field
from typing import Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import freezer, process
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import HoldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.hold import Call, Hold
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._step_names import ProcessStep

#: In order. All but the last two of RESUME_STEPS are told here; those are the caller's: a process that is held can't be
#: unlocked (a thread that is held inside a call of CUDA keeps the driver from answering), so it goes on, locked and
#: with its memory back, before it is.
SUSPEND_STEPS: Tuple[ProcessStep, ...] = ("stop", "seize", "mask", "checkpoint", "settle")
RESUME_STEPS: Tuple[ProcessStep, ...] = ("stop", "seize", "mask", "restore", "settle", "continue", "unlock")

Step = Callable[[ProcessStep], None]
Start = Callable[[], Call]
TellMask = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """restore_tid: the thread id of CUDA's restore thread, as seen in /proc/PID/task by the holder."""

    identity: Identity
    restore_tid: int


@dataclass(frozen=True)
class Deadlines:
    """Seconds for each step, from its own beginning.

    stop: until every thread has stopped. seize: until every thread is held. call: for a driver call whose name is not
    in `calls`. settle: until the restore thread has stopped after the last call.
    """

    stop: float = 10.0
    seize: float = 10.0
    call: float = math.inf
    settle: float = 60.0
    calls: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str) -> float:
        return self.calls.get(name, self.call)


DEFAULT = Deadlines()


def _nothing(text: str) -> None:
    """For a step or a mask that nobody wants to know of."""


def _no_room() -> None:
    """Where nobody guards it."""


def _take(
    target: Target,
    step: Step,
    deadlines: Deadlines,
    mask: Optional[str],
    undo: bool,
    make_room: Callable[[], None] = _no_room,
) -> Hold:
    """Stop and seize. undo: on failure everything is as before; else it is left stopped."""
    hold = Hold(target.identity, target.restore_tid)
    try:
        frozen = freezer.is_frozen(target.identity)
        step("stop")
        if not undo:
            # Both are told before: until it is seized nobody guards it, and to tell may take a disk its time.
            step("seize")
            make_room()
        # Its restore thread may still be deep in the driver, copying for a holder that is gone.
        patience = deadlines.stop if undo else max(deadlines.stop, deadlines.settle)
        hold.stop(time.monotonic() + patience, undo, frozen)
    except BaseException:
        hold.close()
        raise
    try:
        if undo:
            step("seize")
        hold.seize(time.monotonic() + deadlines.seize)
        # Not before: what has been continued while it was frozen runs as soon as it is thawed.
        freezer.thaw(target.identity)
        if mask:
            hold.mend_masks(mask)
        if not undo:
            hold.tend()
    except BaseException:
        hold.detach(run=undo and not hold.stopped_before)
        raise
    return hold


def _calls(
    hold: Hold,
    calls: Sequence[Tuple[Optional[ProcessStep], Start]],
    step: Step,
    deadlines: Deadlines,
    mask: TellMask,
    leave_open: bool = False,
) -> List[Optional[Reply]]:
    """One after another, behind its step if it has one, up to the first that is refused or gives no answer. Settled
    unless there was no answer."""
    if not hold.running:
        step("mask")
        mask(hold.read_masks())
        hold.mask()
        if leave_open:
            hold.leave_stop_open()
    replies: List[Optional[Reply]] = []
    try:
        for name, start in calls:
            if name is not None:
                step(name)
            hold.go()
            reply = hold.run(start(), time.monotonic() + deadlines.of(name or ""))
            replies.append(reply)
            if reply is None:
                return replies
            if not reply.ok:
                break
        step("settle")
    except HoldError:
        raise
    except BaseException:
        # The journal, or the start of a call, failed. Whatever has been done, no thread may run.
        hold.settle(time.monotonic() + deadlines.settle)
        raise
    hold.settle(time.monotonic() + deadlines.settle)
    return replies


def suspend(
    target: Target,
    checkpoint: Start,
    step: Step = _nothing,
    deadlines: Deadlines = DEFAULT,
    mask: TellMask = _nothing,
    hold: Optional[Hold] = None,
) -> Tuple[Optional[Reply], Hold]:
    """Checkpoint a locked process. Whatever the reply, it is held and stopped afterwards: let it go, or guard it.

    checkpoint: starts the call. step: told the name of each step before it. mask: told the signal masks that are about
    to be changed, to be given to `adopt` if this holder dies. Both should be durable when they return. hold: where the
    process is held already. No reply (None): the call is on its way still and the restore thread runs; `Hold.run` goes
    on waiting for it.

    Raises HoldError, and what `step`, `mask` and `checkpoint` raise: before the call the process is continued and let
    go, after it the process stays stopped. A hold that was passed in is kept.
    """
    taken = hold
    hold = taken or _take(target, step, deadlines, None, undo=True)
    begun = False

    def start() -> Call:
        nonlocal begun
        begun = True
        return checkpoint()

    try:
        leave_open = taken is None and not hold.stopped_before
        replies = _calls(hold, [("checkpoint", start)], step, deadlines, mask, leave_open)
    except BaseException as error:
        if taken is None and not begun:
            hold.detach(run=not hold.stopped_before)
        elif taken is None and not isinstance(error, HoldError):
            hold.detach(run=False)
        raise
    return replies[-1], hold


def resume(
    target: Target,
    calls: Sequence[Tuple[Optional[ProcessStep], Start]],
    step: Step = _nothing,
    deadlines: Deadlines = DEFAULT,
    mask: TellMask = _nothing,
    hold: Optional[Hold] = None,
) -> Tuple[List[Optional[Reply]], Hold]:
    """Make these calls (name, start), in order, up to the first that is refused: the restore, as a rule. A running
    process is stopped first. Afterwards it is held and stopped: re-read its state, `let_go`, and unlock it then.
    Errors: as `suspend`, but what has been stopped is never continued."""
    taken = hold
    hold = taken or adopt(target, deadlines, step=step)
    try:
        return _calls(hold, calls, step, deadlines, mask), hold
    except HoldError:
        raise
    except BaseException:
        if taken is None:
            hold.detach(run=False)
        raise


def adopt(
    target: Target,
    deadlines: Deadlines = DEFAULT,
    mask: Optional[str] = None,
    step: Step = _nothing,
    make_room: Callable[[], None] = _no_room,
) -> Hold:
    """Hold a process that is parked, that a dead holder left, or that runs although it should not. It stays stopped,
    also where this fails. mask: the masks that the dead holder told; they are put back at once. make_room: asks a guard
    to let go, at the last moment.

    Raises HoldError: another tracer, its name in the evidence (a guard is asked with SIGTERM to make room).
    """
    return _take(target, step, deadlines, mask, undo=False, make_room=make_room)


def ask(hold: Hold, query: Start, seconds: float = math.inf) -> Optional[Reply]:
    """A call on a held process, made while only the restore thread runs. It is held and stopped afterwards. None: no
    answer within the time; the call goes on, and so does the restore thread. One that is not locked may never answer.
    """
    return _calls(hold, [(None, query)], _nothing, Deadlines(call=seconds), _nothing)[-1]


def let_go(hold: Hold, run: bool) -> None:
    """End a hold. run: the process goes on, with whatever signals have come meanwhile (`Hold.pending`); else it is left
    stopped. Nothing happens to a process that has ended."""
    if hold.running:
        hold.settle(time.monotonic() + DEFAULT.settle)
    hold.detach(run)


@contextlib.contextmanager
def continued(identity: Identity, deadline: float = 10.0) -> Iterator[None]:
    """Let a process that somebody else has stopped run for a while, and stop it again however this ends."""
    handle = process.Handle(identity)
    try:
        handle.send(signal.SIGCONT)
        try:
            yield
        finally:
            _stop_again(handle, time.monotonic() + deadline)
    finally:
        handle.close()


def _stop_again(handle: process.Handle, deadline: float) -> None:
    pid = handle.identity.pid
    handle.send(signal.SIGSTOP)
    while True:
        moving = [tid for tid, state in process.live_tasks(pid).items() if state not in process.STOPPED]
        if not moving:
            return
        if time.monotonic() > deadline:
            raise HoldError(
                process.name(pid),
                f"it was stopped before, has been continued for its lock, and does not stop again: "
                f"{process.describe(pid, moving[0])}",
                "Whoever had stopped it expects it to be stopped",
                "It has been sent SIGSTOP; look at what that thread waits for",
            )
        time.sleep(0.001)
