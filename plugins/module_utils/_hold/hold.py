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
import errno
import os
import signal
import threading
import time
from typing import Callable, Dict, Optional, Protocol, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import masks, process, ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import (
    HoldError,
    NotAtRestError,
    ProcessEndedError,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity, task_state

# Seconds between two looks: short while something moves, long while the driver copies.
_SHORT, _LONG = 0.0002, 0.01
_MOMENT = 1.0
_TRIES = 20


class Call(Protocol):
    """A driver call on its way."""

    def poll(self) -> Optional[Reply]: ...

    def wait(self, seconds: float) -> Optional[Reply]: ...


class _Pause:
    """Sleeps a little, and longer each time."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._seconds = _SHORT

    def over(self) -> bool:
        """True past the deadline, else after a moment's sleep."""
        if time.monotonic() >= self._deadline:
            return True
        time.sleep(self._seconds)
        self._seconds = min(self._seconds * 2, _LONG / 2)
        return False


class Hold:
    """Made, used and let go by one thread: the kernel takes orders from the thread that seized, and lets everything go
    when that thread ends. Deadlines are values of time.monotonic().

    stopped_before: the process was stopped already when `stop` was called.
    created: threads that the restore thread has created while it ran alone, and that are still there; created_ever: how
    many it was. continues: how often somebody has continued the process while it was held.
    """

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

    # What is held

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

    # Stop

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
        pause = _Pause(deadline)
        again = time.monotonic() + _MOMENT / 10
        patience = time.monotonic() + _MOMENT
        while True:
            moving = self._moving()
            if not moving:
                return
            if time.monotonic() > again:
                self._handle.send(signal.SIGSTOP)
                again = time.monotonic() + _MOMENT / 10
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

    # Seize

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
            self._await_stop(tid, time.monotonic() + _MOMENT)
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

    # Masks

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

    # Let the restore thread run alone

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
        pause = _SHORT
        while True:
            reply = call.poll()
            if reply is not None:
                return reply
            pause = _SHORT if self._serve() else min(pause * 2, _LONG)
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
        seconds = _SHORT
        while self._in_transit() and seconds < _MOMENT:
            self._let_run()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._serve()
                time.sleep(_SHORT)
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
        pause = _Pause(deadline)
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

    def _not_at_rest(self, tid: int) -> NotAtRestError:
        return NotAtRestError(
            self.name,
            f"it did not come to rest in time: {process.describe(self.pid, tid)}",
            "It is still held, and stays stopped when the holder ends",
            "Run the task again once that thread has come out of the kernel",
        )

    def tend(self) -> None:
        """Between two steps: stop it again if somebody has continued it. Never blocks for long."""
        self._check_owner()
        self._serve()
        if not self._running:
            self._secure()
            self._listen(self._sentinel())

    # Let go

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
                self._keep_stopped(time.monotonic() + _MOMENT)
        except ProcessEndedError:
            self._reap()
        finally:
            self._handle.close()

    def close(self) -> None:
        """Of a hold that has seized nothing."""
        self._handle.close()

    def _detach_all(self) -> None:
        pause = _Pause(time.monotonic() + _MOMENT)
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

    def _keep_stopped(self, deadline: float) -> None:
        pause = _Pause(deadline)
        again = time.monotonic() + 0.01  # they need a moment for the stop
        while not all(state in process.STOPPED for state in process.live_tasks(self.pid).values()):
            if time.monotonic() > again:
                self._handle.send(signal.SIGSTOP)
                again = time.monotonic() + 0.01
            if pause.over():
                return

    # Tracees

    def _sentinel(self) -> int:
        """The thread that tells when the process is continued, and by which it is stopped again. Not the restore
        thread, if there is another: it may be deep in the kernel just then. Rather not the first: its end is told last.
        """
        for tid in sorted(self._held, reverse=True):
            if tid not in (self.restore_tid, self.pid) and tid not in self.created:
                return tid
        for last in (self.pid, self.restore_tid):
            if last is not None and last in self._held:
                return last
        raise self._end("hold", None)

    def _look(self) -> None:
        """Stop the process again if it has been continued since it was looked at last; nothing is listening then."""
        if not self._held:
            return
        for tid in sorted(self._listening) or [self._sentinel()]:
            if tid not in self._running:
                self._listen(tid)
            self._trap(tid)
        self._secure()

    def _secure(self) -> None:
        if self._loose:
            self._stop_group(self._sentinel())

    def _stop_group(self, tid: int) -> None:
        """Make the stop of the whole process real, with the help of one held thread, which executes no instruction.

        A SIGSTOP that nobody takes only waits, and a thread that is let go takes a waiting SIGTERM or SIGHUP before it.
        So this thread takes it: nothing but SIGSTOP can be delivered to it meanwhile, it is sent to it alone, and it is
        let go no further than to the next stop inside the kernel. A SIGCONT from elsewhere either comes later, or takes
        that SIGSTOP away, and then the thread stops because of that SIGCONT.
        """
        self._trap(tid)
        # For the case that the holder dies right here: any thread takes this one, if nothing else waits before it.
        self._handle.send(signal.SIGSTOP)
        before = self._mask_of(tid)
        self._order(ptrace.set_mask, tid, masks.STOPPING)
        self._loose = not self._take_stop(tid)
        self._order(ptrace.set_mask, tid, before)
        if self._loose:
            self._handle.send(signal.SIGSTOP)

    def _take_stop(self, tid: int) -> bool:
        """False: somebody continues it faster than it can be stopped, or it is frozen and takes no signal."""
        deliver = tries = 0
        ptrace.signal_thread(self.pid, tid, signal.SIGSTOP)
        while tries < _TRIES:
            self._order(ptrace.cont, tid, deliver)
            status = self._next(tid, time.monotonic() + _MOMENT)
            if status is None:
                self._running.add(tid)
                self._trap(tid)
                return False
            deliver = 0
            if status.event != ptrace.EVENT_STOP:
                deliver = status.signal
            elif status.signal != signal.SIGTRAP:
                return True
            else:
                tries += 1
                ptrace.signal_thread(self.pid, tid, signal.SIGSTOP)
        return False

    def _trap(self, tid: int) -> None:
        """A stop in which it takes orders. Any other stop that comes first takes the interrupt away."""
        if tid not in self._listening and tid not in self._running:
            return
        while True:
            self._order(ptrace.interrupt, tid)
            status = self._next(tid, time.monotonic() + 10 * _MOMENT)
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

    def _serve(self) -> bool:
        """Answer what the tracees report; True if there was anything."""
        moved = self._serve_listening()
        for tid in sorted(self._running):
            while True:
                status = self._poll(tid)
                if status is None:
                    break
                moved = True
                if status.ended:
                    break
                if status.event == ptrace.EVENT_STOP and status.signal == signal.SIGTRAP and not self._listening:
                    self._handle.send(signal.SIGSTOP)  # it was continued, and this thread is the only one to take it
                self._pass_on(tid, status)
        return moved

    def _serve_listening(self) -> bool:
        """Once for each: while it is continued again and again, the others have their turn."""
        moved = False
        for tid in sorted(self._listening):
            status = self._poll(tid)
            if status is None:
                continue
            moved = True
            self._listening.discard(tid)
            if status.signal == signal.SIGTRAP:
                self.continues += 1
                self._stop_group(tid)
            self._listen(tid)
        return moved

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
        pause = _Pause(deadline)
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
        status = self._next(tid, time.monotonic() + _MOMENT)
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

    def _end(self, during: str, raw: Optional[int], certain: bool = False) -> HoldError:
        """The process has ended, or (if that is not certain) only the thread that it is held for. Reaps: until its
        threads are, nobody hears of its end."""
        pause = _Pause(time.monotonic() + 5 * _MOMENT)
        sure = time.monotonic() + _MOMENT / 5
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
        pause = _Pause(time.monotonic() + 5 * _MOMENT)
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

    def _check_owner(self) -> None:
        if self._owner != (os.getpid(), threading.get_ident()):
            raise RuntimeError("a hold was used outside the thread that made it: only that one may give orders")
