# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps a process alive whose tracer is killed when one of its threads has just come to a trap.

Such a thread is about to be given a SIGTRAP, which its tracer takes away once wait(2) has told it. When the tracer dies
before, the kernel delivers it, and the process ends; nothing that comes later can prevent that. With a handler for
SIGTRAP the thread only gets other registers, and is stopped by the stop of the whole process before it executes the
first instruction with them; then `lifeline` writes its own back. So each process has a handler while CRIU is at work in
it, at an address that no process can have. `actions` takes it out of CRIU's image again.
"""

from __future__ import annotations

import signal
import struct
from dataclasses import replace

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import remote
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.remote import Held
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.saved import Saved, Thread

PAGE = 4096
_READ_WRITE = 3
#: Private, anonymous, at that address, and only if nothing is there.
_MAP_HERE = 0x2 | 0x20 | 0x100000
_SIGSET_BYTES = 8
#: struct sigaction of the kernel: handler, flags, restorer, mask.
ACTION = "<4Q"
ACTION_BYTES = struct.calcsize(ACTION)
# With a restorer, without which the kernel does not deliver it; on the signal stack, where a thread has one: the stack
# that it is on may be short. SA_NODEFER only because the number gets as long as any in an image, see `actions`.
_FLAGS = 0x04000000 | 0x08000000 | 0x40000000
_NOWHERE = 0x8010_0000_0000_0000
#: As the kernel keeps it.
_ALL_BUT_TWO = remote.EVERY_SIGNAL & ~(1 << (signal.SIGKILL - 1) | 1 << (signal.SIGSTOP - 1))


def ours(pid: int) -> bytes:
    """It blocks every signal, which marks the thread as one without its own registers."""
    return struct.pack(ACTION, _NOWHERE + pid, _FLAGS, _NOWHERE, _ALL_BUT_TWO)


def can_arm(saved: Saved) -> bool:
    return bool(saved.call and saved.room and saved.threads)


def read(saved: Saved) -> Saved:
    """With what the process does on SIGTRAP. Its threads are stopped before and after. Raises OSError."""
    tid = saved.threads[0].tid
    with Held(saved.identity.pid, tid) as held:
        own = held.read()
        try:
            return replace(saved, action=_exchange(saved, held, own, b""))
        finally:
            held.write(own)


def arm(saved: Saved) -> None:
    """saved: of `read`, and on the disk. Raises OSError."""
    with Held(saved.identity.pid, saved.threads[0].tid) as held:
        own = held.read()
        try:
            _exchange(saved, held, own, ours(saved.identity.pid))
        finally:
            held.write(own)


def disarm(saved: Saved, held: Held, own: Thread) -> None:
    """held: a thread of the process, with its own registers. Raises OSError."""
    if not saved.action:
        return
    try:
        if _exchange(saved, held, own, b"") == ours(saved.identity.pid):
            _exchange(saved, held, own, saved.action)
    finally:
        held.write(own)


def _exchange(saved: Saved, held: Held, own: Thread, new: bytes) -> bytes:
    """What it did on SIGTRAP. new: what it does from now on; b"": the same."""

    def call(number: int, *arguments: int) -> None:
        result = held.call(own, saved.call, number, arguments)
        if -PAGE < result < 0:
            raise OSError(-result, f"system call {number} in the name of thread {held.tid}")

    call(remote.MMAP, saved.room, PAGE, _READ_WRITE, _MAP_HERE, -1, 0)
    with open(f"/proc/{saved.identity.pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(saved.room)
        memory.write(new)
        call(remote.RT_SIGACTION, signal.SIGTRAP, saved.room if new else 0, saved.room + ACTION_BYTES, _SIGSET_BYTES)
        memory.seek(saved.room + ACTION_BYTES)
        old = bytes(memory.read(ACTION_BYTES))
    call(remote.MUNMAP, saved.room, PAGE)
    return old
