# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads of a process that are attached: what they report, and what they are told.

A thread that is held is at rest (in a stop in which it takes orders), listening (at rest, but it reports when the
process is continued), or running. ptrace(2) says what the kernel does; why it is wanted is told in hold.py.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from typing import Callable, Dict, Optional, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import masks, process, ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import (
    HoldError,
    NotAtRestError,
    ProcessEndedError,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.pause import MOMENT, Pause
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity, task_state


class Tracees:
    """created, created_ever, restore_tid: see Hold. `_loose`: the process may not be stopped as a whole just now.
    `_masked`: the restore thread blocks signals; `_kept`: (signal, thread or 0) that came through all the same."""

    def __init__(self, identity: Identity, restore_tid: Optional[int] = None) -> None:
        self.identity = identity
        self.pid = identity.pid
        self.restore_tid = restore_tid
        self.stopped_before = False
        self.created: Set[int] = set()
        self.created_ever = 0
        self.continues = 0
        self._handle = process.Handle(identity)
        self._owner = (os.getpid(), threading.get_ident())
        self._held: Set[int] = set()
        self._running: Set[int] = set()
        self._listening: Set[int] = set()
        self._masks: Dict[int, int] = {}
        self._masked = False
        self._loose = False
        self._kept: Set[Tuple[int, int]] = set()

    @property
    def held(self) -> int:
        """How many threads are attached."""
        return len(self._held)

    @property
    def running(self) -> bool:
        """The restore thread has been let run and has not been stopped since."""
        return bool(self._running)

    @property
    def alive(self) -> bool:
        return self._handle.alive

    @property
    def name(self) -> str:
        return process.name(self.pid)

    def pending(self) -> Tuple[str, ...]:
        """Signals that it will get as soon as it runs."""
        return process.pending(self.pid)

    def close(self) -> None:
        """Of a hold that has seized nothing."""
        self._handle.close()

    def _check_owner(self) -> None:
        if self._owner != (os.getpid(), threading.get_ident()):
            raise RuntimeError("a hold was used outside the thread that made it: only that one may give orders")

    def _seize_all(self, deadline: float) -> None:
        quiet = 0
        while quiet < 2:
            new = [tid for tid in process.live_tasks(self.pid) if tid not in self._held]
            quiet = 0 if new else quiet + 1
            for tid in new:
                self._seize_one(tid, deadline)
            if new and time.monotonic() > deadline:
                raise HoldError(
                    self.name,
                    f"{len(self._held)} threads are held, and there are always new ones",
                    "One that is not held could run while the GPU memory is away",
                    "Try again when it starts fewer threads",
                )

    def _seize_one(self, tid: int, deadline: float) -> None:
        try:
            ptrace.seize(tid)
        except OSError as error:
            if error.errno == errno.ESRCH:
                return
            by = process.tracer(self.pid, tid)
            if by in (os.getpid(), threading.get_native_id()):
                self._found_attached(tid)
                return
            if by:
                raise process.traced_error(self.pid, tid, by) from None
            if task_state(self.pid, tid) in process.GONE:
                return
            raise process.refused_error(self.pid, tid, error) from None
        self._await_stop(tid, deadline)

    def _found_attached(self, tid: int) -> None:
        """By us: created by one that is, or by a hold that this thread has lost."""
        self._held.add(tid)
        if self._masked:
            self.created.add(tid)
        try:
            ptrace.get_mask(tid)
        except OSError:
            self._await_stop(tid, time.monotonic() + MOMENT)
        else:
            self._loose = True  # it stands still, and nobody knows since when

    def _await_stop(self, tid: int, deadline: float) -> None:
        self._held.add(tid)
        self._running.add(tid)
        # One that has stopped tells at once.
        status = self._poll(tid)
        if status is None or status.event != ptrace.EVENT_STOP:
            self._order(ptrace.interrupt, tid)
        while True:
            if status is not None:
                if status.ended:
                    return
                if status.event == ptrace.EVENT_STOP:
                    self._at_rest(tid, status)
                    return
                # A thread that it creates is found by the next scan.
                self._order(ptrace.cont, tid, 0 if status.event else status.signal)
                self._order(ptrace.interrupt, tid)
            status = self._next(tid, deadline)
            if status is not None:
                continue
            raise HoldError(
                self.name,
                f"a thread could not be held in time: {process.describe(self.pid, tid)}",
                "It could run while the GPU memory is away",
                "Try again; if it stays like this, look at what that thread waits for",
            )

    def _trap(self, tid: int) -> None:
        """A stop in which it takes orders. Any other stop that comes first takes the interrupt away."""
        if tid not in self._listening and tid not in self._running:
            return
        while True:
            self._order(ptrace.interrupt, tid)
            status = self._next(tid, time.monotonic() + 10 * MOMENT)
            if status is None:
                raise self._not_at_rest(tid)
            if status.event == ptrace.EVENT_STOP:
                self._at_rest(tid, status)
                return
            self._pass_on(tid, status)

    def _at_rest(self, tid: int, status: ptrace.Status) -> None:
        self._running.discard(tid)
        self._listening.discard(tid)
        self._loose = self._loose or status.signal == signal.SIGTRAP

    def _listen(self, tid: int) -> None:
        if tid not in self._listening and tid not in self._running:
            self._order(ptrace.listen, tid)
            self._listening.add(tid)

    def _poll(self, tid: int) -> Optional[ptrace.Status]:
        """A status that waits. The end of the process, or of the restore thread, is raised; the end of a thread that it
        has created is told once."""
        try:
            status = ptrace.wait(tid)
        except ChildProcessError:
            status = ptrace.Status(0)
        if status is None and tid == self.pid and task_state(tid, tid) in process.GONE:
            # The first thread can't be waited for before the others are.
            raise self._end("hold", None, certain=True)
        if status is not None and status.ended:
            by_itself = tid in self._running and not os.WIFSIGNALED(status.raw)
            self._forget(tid)
            if tid == self.restore_tid or not by_itself or not process.live_tasks(self.pid):
                raise self._end("hold", status.raw, certain=not by_itself)
        return status

    def _next(self, tid: int, deadline: float) -> Optional[ptrace.Status]:
        """As `_poll`, but waits for it. None past the deadline."""
        pause = Pause(deadline)
        while True:
            status = self._poll(tid)
            if status is not None or pause.over():
                return status

    def _order(self, request: Callable[..., None], tid: int, *arguments: int) -> None:
        try:
            request(tid, *arguments)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise
            self._killed(tid)

    def _mask_of(self, tid: int) -> int:
        try:
            return ptrace.get_mask(tid)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise
            self._killed(tid)
            return 0

    def _killed(self, tid: int) -> None:
        """A held thread that takes no orders has been killed: raised, once that is certain."""
        status = self._next(tid, time.monotonic() + MOMENT)
        if status is None or not status.ended:
            raise self._not_at_rest(tid)

    def _pass_on(self, tid: int, status: ptrace.Status) -> None:
        """Let a thread go on from a stop that it reported, with the signal that it was about to take."""
        deliver = 0 if status.event else status.signal
        try:
            if status.event == ptrace.EVENT_CLONE:
                new = ptrace.new_thread(tid)
                for group in (self._held, self.created, self._running):
                    group.add(new)
                self.created_ever += 1
            elif self._masked and deliver and masks.must_wait(deliver):
                # A SIGCONT is sent anyway when it is let run, and must not be before.
                if deliver != signal.SIGCONT:
                    self._kept.add((deliver, tid if ptrace.is_for_thread(tid) else 0))
                deliver = 0
            ptrace.cont(tid, deliver)
        except OSError as error:
            if error.errno != errno.ESRCH:  # killed in this moment: its end is reported next
                raise

    def _forget(self, tid: int) -> None:
        for group in (self._held, self._running, self._listening, self.created):
            group.discard(tid)

    def _detach_all(self) -> None:
        pause = Pause(time.monotonic() + MOMENT)
        while self._held:
            for tid in sorted(self._held):
                try:
                    ptrace.detach(tid)
                    self._forget(tid)
                except OSError as error:
                    if error.errno != errno.ESRCH:
                        raise
                    self._unstopped(tid)
            if self._held and pause.over():
                return  # the kernel detaches the rest when this thread ends

    def _unstopped(self, tid: int) -> None:
        """A thread that can't be detached: it runs, or it has ended."""
        status = self._poll(tid)
        if status is not None and not status.ended and status.event != ptrace.EVENT_STOP:
            self._pass_on(tid, status)

    def _not_at_rest(self, tid: int) -> NotAtRestError:
        return NotAtRestError(
            self.name,
            f"it did not come to rest in time: {process.describe(self.pid, tid)}",
            "It is still held, and stays stopped when the holder ends",
            "Run the task again once that thread has come out of the kernel",
        )

    def _end(self, during: str, raw: Optional[int], certain: bool = False) -> HoldError:
        """The process has ended, or (if that is not certain) only the thread that it is held for. Reaps: until its
        threads are, nobody hears of its end."""
        pause = Pause(time.monotonic() + 5 * MOMENT)
        sure = time.monotonic() + MOMENT / 5
        while not certain and read_identity(self.pid) == self.identity:
            states = process.live_tasks(self.pid)
            # A process that ends wakes all its threads, held ones too.
            if any(state in process.STOPPED for state in states.values()) and time.monotonic() > sure:
                return HoldError(
                    self.name,
                    f"its restore thread {self.restore_tid} has ended, and the process lives on",
                    "Nothing can be suspended or resumed without that thread",
                    "End the process, and start it anew",
                )
            if not states or pause.over():
                break
        status = self._reap()
        return ProcessEndedError(f"PID {self.pid}", raw if status is None else status, during)

    def _reap(self) -> Optional[int]:
        """The leader last: it can't be waited for before the others."""
        found: Optional[int] = None
        pause = Pause(time.monotonic() + 5 * MOMENT)
        for tid in sorted(self._held, key=lambda one: (one == self.pid, one)):
            while True:
                try:
                    status = ptrace.wait(tid)
                except ChildProcessError:
                    break
                if status is not None and status.ended:
                    found = status.raw
                    break
                if status is None and pause.over():
                    break
            self._forget(tid)
        return found
