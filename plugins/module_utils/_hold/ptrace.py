# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ptrace(2) and the few system calls beside it that Python lacks. No decision is made here.

Only the thread that seized a thread may give it orders, and it must be stopped for all of them but `interrupt`. Every
failure is an OSError: ESRCH says that the tracee is gone, not stopped, or another's.
"""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from typing import FrozenSet, Iterable, Optional, Set

EVENT_CLONE = 3
EVENT_EXIT = 6
EVENT_STOP = 128
#: Of a status: stopped at the beginning or the end of a system call, for a tracee seized with TRACESYSGOOD.
SYSCALL_STOP = 0x85

_CONT, _DETACH, _SYSCALL, _POKEUSER = 7, 17, 24, 6
_GETEVENTMSG, _GETSIGINFO = 0x4201, 0x4202
_SEIZE, _INTERRUPT, _LISTEN = 0x4206, 0x4207, 0x4208
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_GETREGSET, _SETREGSET = 0x4204, 0x4205
#: Kinds of registers: general, and everything else that x86 has.
GENERAL, EXTENDED = 1, 0x202
_REGISTER_BYTES = 1 << 16
#: What a tracee can be seized for: its new threads, its end, its system calls; without what it has under seccomp.
TRACESYSGOOD, TRACECLONE, TRACEEXIT, SUSPEND_SECCOMP = 0x1, 0x8, 0x40, 0x200000
# Of struct user, x86-64.
_DEBUG_CONTROL = 904
#: waitpid(2): tracees too.
WALL = 0x40000000
_MASK_BYTES = 8

_TGKILL = {"x86_64": 234, "aarch64": 131}
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN, _PIDFD_GETFD = 424, 434, 438
_SFD_CLOEXEC, _SFD_NONBLOCK = 0o2000000, 0o4000
_SIGSET_BYTES, _SIGINFO_BYTES = 128, 128
_SI_TKILL = -6

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Status:
    """What wait(2) told of a tracee."""

    raw: int

    @property
    def ended(self) -> bool:
        return not os.WIFSTOPPED(self.raw)

    @property
    def event(self) -> int:
        """EVENT_CLONE, EVENT_EXIT, EVENT_STOP; 0: it is stopped because of a signal that is about to be delivered."""
        return self.raw >> 16

    @property
    def signal(self) -> int:
        """The signal. With EVENT_STOP: the one that stopped the whole process, SIGTRAP if it is not stopped."""
        return os.WSTOPSIG(self.raw)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _ptrace(request: int, tid: int, address: int = 0, data: Optional[int] = 0) -> None:
    _check(_libc.ptrace(ctypes.c_long(request), ctypes.c_long(tid), ctypes.c_void_p(address), ctypes.c_void_p(data)))


def seize(tid: int, options: int = TRACECLONE) -> None:
    """Attach without stopping it. With TRACECLONE threads that it creates are attached as well, and start stopped."""
    _ptrace(_SEIZE, tid, 0, options)


def interrupt(tid: int) -> None:
    """Makes it stop with EVENT_STOP as soon as it can."""
    _ptrace(_INTERRUPT, tid)


def cont(tid: int, number: int = 0) -> None:
    """Let it run, in spite of a stop of the whole process. number: the signal to deliver."""
    _ptrace(_CONT, tid, 0, number)


def listen(tid: int) -> None:
    """From EVENT_STOP: it stays stopped, and stops anew (a new status) as soon as the process is continued."""
    _ptrace(_LISTEN, tid)


def detach(tid: int) -> None:
    """Only from EVENT_STOP: from the stop before a delivery it would swallow that signal."""
    _ptrace(_DETACH, tid)


def to_next_call(tid: int) -> None:
    """Let it run up to the beginning or the end of a system call, or another stop before."""
    _ptrace(_SYSCALL, tid)


def new_thread(tid: int) -> int:
    """After EVENT_CLONE: the id of the thread that was created."""
    value = ctypes.c_ulong(0)
    _ptrace(_GETEVENTMSG, tid, 0, ctypes.addressof(value))
    return int(value.value)


def is_for_thread(tid: int) -> bool:
    """Before a delivery: the signal was sent to this very thread, not to its process."""
    data = ctypes.create_string_buffer(_SIGINFO_BYTES)
    _ptrace(_GETSIGINFO, tid, 0, ctypes.addressof(data))
    return int.from_bytes(data.raw[8:12], "little", signed=True) == _SI_TKILL


def get_mask(tid: int) -> int:
    """The signals that it blocks; bit 0 is signal 1. Inside sigsuspend and the like: those that it blocks otherwise."""
    value = ctypes.c_uint64(0)
    _ptrace(_GETSIGMASK, tid, _MASK_BYTES, ctypes.addressof(value))
    return int(value.value)


def set_mask(tid: int, mask: int) -> None:
    value = ctypes.c_uint64(mask)
    _ptrace(_SETSIGMASK, tid, _MASK_BYTES, ctypes.addressof(value))


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def get_registers(tid: int, kind: int) -> bytes:
    """kind: GENERAL or EXTENDED. EINVAL where the machine has none of that kind."""
    data = ctypes.create_string_buffer(_REGISTER_BYTES)
    vector = _Vector(ctypes.cast(data, ctypes.c_void_p), _REGISTER_BYTES)
    _ptrace(_GETREGSET, tid, kind, ctypes.addressof(vector))
    return data.raw[: vector.length]


def set_registers(tid: int, kind: int, values: bytes) -> None:
    data = ctypes.create_string_buffer(values, len(values))
    vector = _Vector(ctypes.cast(data, ctypes.c_void_p), len(values))
    _ptrace(_SETREGSET, tid, kind, ctypes.addressof(vector))


def no_breakpoints(tid: int) -> None:
    """Of the processor's own, which outlive the tracer that has set them. x86-64 only."""
    _ptrace(_POKEUSER, tid, _DEBUG_CONTROL, 0)


def wait(tid: int) -> Optional[Status]:
    """What it has to tell; None: nothing. Never blocks. Raises ChildProcessError: not (any more) a tracee."""
    got, status = os.waitpid(tid, WALL | os.WNOHANG)
    return Status(status) if got else None


def signal_thread(pid: int, tid: int, number: int) -> None:
    """tgkill(2)."""
    call = _TGKILL.get(platform.machine())
    if call is None:
        raise OSError(38, f"tgkill on {platform.machine()}")
    _check(_libc.syscall(ctypes.c_long(call), ctypes.c_long(pid), ctypes.c_long(tid), ctypes.c_long(number)))


def pidfd_open(pid: int) -> int:
    """A descriptor that means this process also after its PID is used again. ENOSYS before Linux 5.3."""
    return _check(_libc.syscall(ctypes.c_long(_PIDFD_OPEN), ctypes.c_long(pid), ctypes.c_long(0)))


def pidfd_getfd(descriptor: int, number: int) -> int:
    """A duplicate of a descriptor of that process. ENOSYS before Linux 5.6."""
    return _check(
        _libc.syscall(ctypes.c_long(_PIDFD_GETFD), ctypes.c_long(descriptor), ctypes.c_long(number), ctypes.c_long(0))
    )


def pidfd_send_signal(descriptor: int, number: int) -> None:
    _check(
        _libc.syscall(
            ctypes.c_long(_PIDFD_SEND_SIGNAL),
            ctypes.c_long(descriptor),
            ctypes.c_long(number),
            ctypes.c_void_p(None),
            ctypes.c_long(0),
        )
    )


def signal_descriptor(numbers: Iterable[int]) -> int:
    """A descriptor that is readable while one of these signals is pending; block them first."""
    mask = sum(1 << (number - 1) for number in numbers)
    data = ctypes.create_string_buffer(mask.to_bytes(8, "little"), _SIGSET_BYTES)
    return _check(_libc.signalfd(ctypes.c_int(-1), data, ctypes.c_int(_SFD_CLOEXEC | _SFD_NONBLOCK)))


def read_signals(descriptor: int) -> FrozenSet[int]:
    """Takes the signals that are pending at `signal_descriptor`."""
    found: Set[int] = set()
    while True:
        try:
            data = os.read(descriptor, _SIGINFO_BYTES)
        except BlockingIOError:
            return frozenset(found)
        found.add(int.from_bytes(data[:4], "little"))
