# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every thread of a process in our hands, and one of them, CUDA's restore thread, let run alone while the driver works.

The rule behind each line: whoever holds may be killed at any moment, and then no thread may run. What the kernel does
when a tracer dies is to put every thread back into the stop of the whole process, if there is one. So the process is
stopped (SIGSTOP) before it is held, is kept stopped while it is held (a held thread can be let run in spite of it), and
is stopped anew at once when somebody continues it meanwhile. docs/hold-and-park.md tells it in order.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Dict, Optional, Protocol, Set

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import masks, process, ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import (
    HoldError,
    NotAtRestError,
    ProcessEndedError,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.group_stop import GroupStop
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.pause import LONG, MOMENT, SHORT, Pause
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity


class Call(Protocol):
    """A driver call on its way."""

    def poll(self) -> Optional[Reply]:
        """The reply, if it is there."""

    def wait(self, seconds: float) -> Optional[Reply]:
        """The reply as soon as it is there; None after `seconds`."""


class Hold(GroupStop):
    """Made, used and let go by one thread: the kernel takes orders from the thread that seized, and lets everything go
    when that thread ends. Deadlines are values of time.monotonic().

    stopped_before: the process was stopped already when `stop` was called.
    created: threads that the restore thread has created while it ran alone, and that are still there; created_ever: how
    many it was. continues: how often somebody has continued the process while it was held.
    """

    def stop(self, deadline: float, undo: bool = True, frozen: bool = False) -> None:
        """SIGSTOP, and wait until no thread moves. HoldError past the deadline, naming the thread. undo: then continue
        it, unless it was stopped before; else, one that somebody continues again and again is no error: `seize` stops
        it all the same. frozen: by the freezer: no thread moves, nor takes the signal before it is thawed."""
        self._check_owner()
        tid, by = process.foreign_tracer(self.pid)
        if by:
            raise process.traced_error(self.pid, tid, by)
        moving = self._moving()
        self.stopped_before = any(state == "T" for state in process.live_tasks(self.pid).values())
        if not moving:
            return
        self._handle.send(signal.SIGSTOP)
        if frozen:
            return
        pause = Pause(deadline)
        again = time.monotonic() + MOMENT / 10
        patience = time.monotonic() + MOMENT
        while True:
            moving = self._moving()
            if not moving:
                return
            if time.monotonic() > again:
                self._handle.send(signal.SIGSTOP)
                again = time.monotonic() + MOMENT / 10
            if not undo and time.monotonic() > patience and set(moving.values()) <= {"R", "S"}:
                return
            if pause.over():
                undo = undo and not self.stopped_before
                error = self._unstoppable(moving, undo)
                if undo:
                    self._handle.send(signal.SIGCONT)
                raise error

    def _moving(self) -> Dict[int, str]:
        states = process.live_tasks(self.pid)
        if not states:
            raise self._end("stop", None)
        return {tid: state for tid, state in states.items() if state not in process.STOPPED}

    def _unstoppable(self, moving: Dict[int, str], undo: bool) -> HoldError:
        tid = next((tid for tid, state in moving.items() if state not in "RS"), min(moving))
        words = process.describe(self.pid, tid)
        more = f" (and {len(moving) - 1} more)" if len(moving) > 1 else ""
        reason = "A thread that can't be stopped could run while the GPU memory is away"
        if "freezer" in words:
            reason = "Its control group is frozen, and a frozen thread takes no signal"
        elif "vfork" in words:
            reason = "It waits for a child that it has made with vfork to start its program, and can't stop before"
        elif moving[tid] in "RS":
            reason = "Either somebody continues it again and again, or it is the first process of this PID namespace"
        return HoldError(
            self.name,
            f"it did not stop in time: {words}{more}",
            f"{reason}; it {'runs on, unchanged' if undo else 'has been sent SIGSTOP'}",
            "Try again; if it stays like this, look at what that thread waits for (a file system, a device, a child)",
        )

    def seize(self, deadline: float) -> None:
        """Attach to every thread, until the kernel lists none but those that are held. Afterwards all are stopped, and
        stay so if the holder dies. Raises HoldError where that fails; `detach` then."""
        self._check_owner()
        self._seize_all(deadline)
        if not self._held or read_identity(self.pid) != self.identity:
            raise self._end("seize", None)
        if self.restore_tid is not None and self.restore_tid not in self._held:
            raise HoldError(
                self.name,
                f"the driver names thread {self.restore_tid} as its restore thread, and it has none with that id",
                "Without it nothing can be suspended or resumed while the others are held",
                "Look whether the process has just been restored or is in another PID namespace, then try again",
            )
        if self._loose:
            self._handle.send(signal.SIGSTOP)

    def leave_stop_open(self) -> None:
        """Before anything is suspended only: for one moment the process is held, but not stopped.

        A process group that is orphaned (its shell ends, somebody logs out) gets SIGHUP and SIGCONT from the kernel if
        a process of it has stopped, and would die of the SIGHUP when it is resumed. A stop that begins while its
        threads are held does not come to its end before they are let go, and until then does not count as one. It needs
        three threads: the two by which the stop is kept up take part in it.
        """
        self._check_owner()
        self._look()
        self._handle.send(signal.SIGCONT)
        self._stop_group(self._sentinel())

    def read_masks(self) -> str:
        """The signal masks that will be changed, as text for the journal."""
        for tid in (self._sentinel(), self.restore_tid):
            if tid is not None and tid not in self._masks:
                self._trap(tid)
                self._masks[tid] = self._mask_of(tid)
        return masks.to_text(self._masks)

    def mend_masks(self, text: str) -> None:
        """Put back what a dead holder has changed. text: of its `read_masks`. A mask that is not ours is left alone."""
        try:
            known = masks.from_text(text)
        except ValueError:
            return  # nothing to go by; a restore thread that blocks signals does no harm
        fallback = known.get(self.restore_tid or 0)
        for tid in sorted(self._held):
            self._trap(tid)
            if self._mask_of(tid) not in masks.OURS:
                continue
            # A thread that the restore thread has created had its mask from it.
            mask = known.get(tid, fallback)
            if mask is not None:
                self._order(ptrace.set_mask, tid, mask)

    def mask(self) -> None:
        """Let the restore thread take no signal but those of its own making."""
        self.read_masks()
        if self.restore_tid is not None:
            self._order(ptrace.set_mask, self.restore_tid, masks.ALONE)
            self._masked = True

    def _unmask(self) -> None:
        """As it was before, the signals that had to wait among what is pending."""
        for number, tid in sorted(self._kept):
            if tid in self._held:
                ptrace.signal_thread(self.pid, tid, number)
            else:
                self._handle.send(number)
        self._kept.clear()
        if not self._masked or self.restore_tid is None:
            return
        before = self._masks[self.restore_tid]
        for tid in sorted(self._alone()):
            if self._mask_of(tid) == masks.ALONE:
                self._order(ptrace.set_mask, tid, before)
        self._masked = False

    def go(self) -> None:
        """Let the restore thread, and what it has created, run; nobody else."""
        self._check_owner()
        if self.restore_tid is None:
            raise ValueError("no restore thread is known: nothing can be let run alone")
        if self._running:
            return
        self._look()
        if self._sentinel() != self.restore_tid:
            self._listen(self._sentinel())
        self._let_run()

    def _alone(self) -> Set[int]:
        """The threads that run when nobody else does."""
        return ({self.restore_tid or 0} | self.created) & self._held

    def _let_run(self) -> None:
        for tid in sorted(self._alone()):
            self._running.add(tid)
            self._order(ptrace.cont, tid)

    def run(self, call: Call, deadline: float) -> Optional[Reply]:
        """The reply of a call, while the restore thread runs. None past the deadline: the call goes on, and so does the
        restore thread; call `run` again, or end without another word (the process stays stopped then)."""
        self._check_owner()
        pause = SHORT
        while True:
            reply = call.poll()
            if reply is not None:
                return reply
            pause = SHORT if self._serve() else min(pause * 2, LONG)
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            reply = call.wait(min(pause, left))
            if reply is not None:
                return reply

    def settle(self, deadline: float) -> None:
        """Stop what `go` let run, and leave everything held and stopped. HoldError past the deadline: still held."""
        self._check_owner()
        self._settle_all(deadline)
        # One that is about to set the mask that it found, ours: that could not be mended any more.
        seconds = SHORT
        while self._in_transit() and seconds < MOMENT:
            self._let_run()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._serve()
                time.sleep(SHORT)
            self._settle_all(deadline)
            seconds *= 2
        self._look()
        self._unmask()

    def _in_transit(self) -> bool:
        return self._masked and any(self._mask_of(tid) == masks.IN_TRANSIT for tid in self._alone())

    def _settle_all(self, deadline: float) -> None:
        while self._running:
            for tid in sorted(self._running):
                self._order(ptrace.interrupt, tid)
            self._settle_running(deadline)
            self._seize_all(deadline)

    def _settle_running(self, deadline: float) -> None:
        pause = Pause(deadline)
        while self._running:
            self._serve_listening()
            before = set(self._running)
            for tid in sorted(before):
                status = self._poll(tid)
                if status is None or status.ended:
                    continue
                if status.event == ptrace.EVENT_STOP:
                    self._at_rest(tid, status)
                else:
                    self._pass_on(tid, status)
                    self._order(ptrace.interrupt, tid)
            for tid in self._running - before:
                self._order(ptrace.interrupt, tid)
            if self._running and pause.over():
                raise self._not_at_rest(min(self._running))

    def tend(self) -> None:
        """Between two steps: stop it again if somebody has continued it. Never blocks for long."""
        self._check_owner()
        self._serve()
        if not self._running:
            self._secure()
            self._listen(self._sentinel())

    def detach(self, run: bool) -> None:
        """Let go of every thread. run: continue the process, else leave it stopped (State T), also if somebody
        continues it in this very moment. Nothing is left to do where it has ended."""
        self._check_owner()
        try:
            with contextlib.suppress(NotAtRestError):
                if not run:
                    self._look()
                for tid in sorted(self._listening):
                    self._trap(tid)
                self._unmask()
            if run:
                self._handle.send(signal.SIGCONT)
            self._detach_all()
            if not run:
                self._keep_stopped(time.monotonic() + MOMENT)
        except ProcessEndedError:
            self._reap()
        finally:
            self._handle.close()

    def _keep_stopped(self, deadline: float) -> None:
        pause = Pause(deadline)
        again = time.monotonic() + 0.01  # they need a moment for the stop
        while not all(state in process.STOPPED for state in process.live_tasks(self.pid).values()):
            if time.monotonic() > again:
                self._handle.send(signal.SIGSTOP)
                again = time.monotonic() + 0.01
            if pause.over():
                return
