# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stop of the whole process while its threads are held: keep it in effect, whoever continues the process."""

from __future__ import annotations

import signal
import time

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import masks, ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.pause import MOMENT
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.tracees import Tracees

_TRIES = 20


class GroupStop(Tracees):
    """continues: see Hold."""

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
            status = self._next(tid, time.monotonic() + MOMENT)
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
