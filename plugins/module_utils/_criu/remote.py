# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One thread of a stopped process, held: its registers, and system calls in its name.

Whoever dies in the middle of this leaves nothing that is deadly: system calls are followed by stops that no signal
stands behind, and while the registers are not the thread's own, it blocks every signal.
"""

from __future__ import annotations

import struct
import time
from typing import Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.saved import Thread
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import task_state
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import parse_status
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_text

SECONDS = 10.0
EVERY_SIGNAL = (1 << 64) - 1
CLOSE, MMAP, MPROTECT, MUNMAP, RT_SIGACTION = 3, 9, 10, 11, 13
# struct user_regs_struct of x86-64: its size, and places in it.
GENERAL_BYTES = 27 * 8
_RAX, _ORIG_RAX, _RIP, _FLAGS = 10, 15, 16, 18
_ARGUMENTS = (14, 13, 12, 7, 9, 8)
_SINGLE_STEP = 0x100
_NO_CALL = (1 << 64) - 1
_PAUSE = 0.0001


class Held:
    """Held as long as this lasts; stopped before and after. Entering raises OSError: it is traced, or gone."""

    def __init__(self, pid: int, tid: int) -> None:
        self.tid = tid
        self._pid = pid

    def __enter__(self) -> Held:
        ptrace.seize(self.tid, ptrace.TRACESYSGOOD | self._seccomp())
        ptrace.interrupt(self.tid)
        self.wait()
        return self

    def _seccomp(self) -> int:
        """A filter of the process must not end it for what is called in its name."""
        return ptrace.SUSPEND_SECCOMP if self.status("Seccomp") not in ("", "0") else 0

    def __exit__(self, *_error: object) -> None:
        try:
            ptrace.detach(self.tid)
        except ProcessLookupError:
            return
        # The kernel stops it anew by itself, a moment later.
        end = time.monotonic() + SECONDS
        while task_state(self._pid, self.tid) not in ("T", "Z", "X", "") and time.monotonic() < end:
            time.sleep(_PAUSE)

    def status(self, field: str) -> str:
        return parse_status(read_text(f"/proc/{self._pid}/task/{self.tid}/status")).get(field, "")

    def wait(self) -> ptrace.Status:
        """Raises ProcessLookupError: it has ended. TimeoutError."""
        end = time.monotonic() + SECONDS
        while True:
            status = ptrace.wait(self.tid)
            if status is not None:
                if status.ended:
                    raise ProcessLookupError(3, f"thread {self.tid} has ended")
                return status
            if time.monotonic() > end:
                raise TimeoutError(110, f"thread {self.tid} does not stop")
            time.sleep(_PAUSE)

    def read(self) -> Thread:
        try:
            extended = ptrace.get_registers(self.tid, ptrace.EXTENDED)
        except OSError:
            extended = b""
        general = ptrace.get_registers(self.tid, ptrace.GENERAL)
        return Thread(self.tid, general, extended, ptrace.get_mask(self.tid))

    def write(self, thread: Thread) -> None:
        """The mask last: up to then it tells that the registers may not be the thread's own."""
        if thread.extended:
            ptrace.set_registers(self.tid, ptrace.EXTENDED, thread.extended)
        ptrace.set_registers(self.tid, ptrace.GENERAL, thread.general)
        ptrace.set_mask(self.tid, thread.mask)

    def call(self, base: Thread, place: int, number: int, arguments: Sequence[int]) -> int:
        """One system call by this thread, and what it returned, negative for an error. place: an instruction that makes
        one. base: the other registers. The caller writes the thread's own back."""
        values = list(struct.unpack(f"<{GENERAL_BYTES // 8}Q", base.general))
        values[_RAX], values[_ORIG_RAX], values[_RIP] = number, _NO_CALL, place
        values[_FLAGS] &= ~_SINGLE_STEP
        for register, argument in zip(_ARGUMENTS, arguments):
            values[register] = argument & _NO_CALL
        ptrace.set_mask(self.tid, EVERY_SIGNAL)
        ptrace.set_registers(self.tid, ptrace.GENERAL, struct.pack(f"<{len(values)}Q", *values))
        self._to_call()
        self._to_call()
        after = ptrace.get_registers(self.tid, ptrace.GENERAL)
        (result,) = struct.unpack_from("<q", after, 8 * _RAX)
        return int(result)

    def _to_call(self) -> None:
        """Its beginning, then its end. Stops of another kind come before: one that was due."""
        while True:
            ptrace.to_next_call(self.tid)
            status = self.wait()
            if status.event == 0 and status.signal == ptrace.SYSCALL_STOP:
                return


def instruction(thread: Thread) -> int:
    """The address of the next one. x86-64 only."""
    return int(struct.unpack_from("<Q", thread.general, 8 * _RIP)[0])
