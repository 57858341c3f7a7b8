# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process as a whole: signals that can't hit another one, its tasks, and words about why one does not stop."""

from __future__ import annotations

import errno
import os
import signal
import threading
from typing import Dict, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import HoldError, ProcessEndedError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import (
    Identity,
    read_identity,
    task_state,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, natural

GONE = ("", "Z", "X")
STOPPED = ("T", "t")
# What stops it, what lets it go on again, and what acts at any time.
_NO_NEWS = (signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL)


def read(pid: int, name: str, tid: Optional[int] = None) -> str:
    """A file of /proc/PID, or of one of its threads; "" where it can't be read."""
    path = f"/proc/{pid}/{name}" if tid is None else f"/proc/{pid}/task/{tid}/{name}"
    try:
        with open(path, "rb") as stream:
            return stream.read().decode(errors="replace").strip()
    except OSError:
        return ""


def status_field(pid: int, field: str, tid: Optional[int] = None) -> str:
    """A value of /proc/PID/status, "" where there is none."""
    for line in kernel_lines(read(pid, "status", tid)):
        if line.startswith(field + ":"):
            return line[len(field) + 1 :].strip()
    return ""


def tasks(pid: int) -> Dict[int, str]:
    """Thread id to state letter. A listing can be cut short while threads end: read it again until it is stable."""
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    found = {}
    for name in names:
        state = task_state(pid, int(name))
        if state:
            found[int(name)] = state
    return dict(sorted(found.items()))


def live_tasks(pid: int) -> Dict[int, str]:
    """Those that have not ended. A process whose first thread has ended lives on while this is not empty."""
    return {tid: state for tid, state in tasks(pid).items() if state not in GONE}


def name(pid: int) -> str:
    return f"PID {pid} ({read(pid, 'comm') or 'gone'})"


def thread_name(pid: int, tid: int) -> str:
    return f"thread {tid} ({read(pid, 'comm', tid) or 'gone'})"


def tracer(pid: int, tid: int) -> int:
    """PID of whoever traces this thread, 0 for nobody."""
    value = status_field(pid, "TracerPid", tid)
    return natural(value) or 0


def foreign_tracer(pid: int) -> Tuple[int, int]:
    """(thread, tracer) of a thread that somebody else traces; (0, 0) where there is none."""
    for tid in tasks(pid):
        found = tracer(pid, tid)
        if found and found != os.getpid() and found != threading.get_native_id():
            return tid, found
    return 0, 0


def traced_error(pid: int, tid: int, by: int) -> HoldError:
    return HoldError(
        name(pid),
        f"{thread_name(pid, tid)} is traced by PID {by} ({read(by, 'comm') or 'gone'})",
        "A process can have one tracer only, and without holding its threads it can't be suspended safely",
        f"Let PID {by} detach (a debugger, strace, or another run's guard), then run the task again",
    )


def refused_error(pid: int, tid: int, error: OSError) -> HoldError:
    """Why ptrace was refused although nobody is seen to trace it."""
    scope = read_host("/proc/sys/kernel/yama/ptrace_scope")
    owner = status_field(pid, "Uid", tid).partition("\t")[0] or "?"
    evidence = f"the kernel does not let UID {os.geteuid()} trace {thread_name(pid, tid)}, which runs as UID {owner}"
    evidence += f" ({error.strerror})"
    if scope:
        evidence += f"; kernel.yama.ptrace_scope is {scope}"
    if task_state(pid, tid) == "t":
        evidence += "; its state is t, so somebody traces it who can't be seen from this PID namespace"
    return HoldError(
        name(pid),
        evidence,
        "Without holding its threads it can't be suspended safely. The same user is not enough where groups or "
        "capabilities differ",
        "Run as root (become: true); in a container that takes CAP_SYS_PTRACE. ptrace_scope 3 forbids it to everybody",
    )


def read_host(path: str) -> str:
    try:
        with open(path) as stream:
            return stream.read().strip()
    except OSError:
        return ""


def describe(pid: int, tid: int) -> str:
    """A thread that does not stop: its name, state, and where in the kernel it is."""
    words = [f"state {task_state(pid, tid) or 'gone'}"]
    wchan = read(pid, "wchan", tid)
    if wchan not in ("", "0"):
        words.append(f"waits in {wchan}")
    call = read(pid, "syscall", tid).partition(" ")[0]
    if call.isdigit():
        words.append(f"system call {call}")
    return f"{thread_name(pid, tid)}: {', '.join(words)}"


def pending(pid: int) -> Tuple[str, ...]:
    """Names of the signals that wait for the process, or for one of its threads, until it runs. SIGSTOP, SIGCONT
    and SIGKILL are left out: nobody waits for those."""
    mask = int(status_field(pid, "ShdPnd") or "0", 16)
    for tid in tasks(pid):
        mask |= int(status_field(pid, "SigPnd", tid) or "0", 16)
    found = []
    for number in range(1, 65):
        if mask >> (number - 1) & 1 and number not in _NO_NEWS:
            try:
                found.append(signal.Signals(number).name)
            except ValueError:
                found.append(f"signal {number}")
    return tuple(found)


class Handle:
    """Signals for exactly this process: through a pidfd where the kernel has them (5.3), so that a PID that is used
    again is never hit; else after a look at its start time."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._descriptor = -1
        try:
            self._descriptor = ptrace.pidfd_open(identity.pid)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise self._ended("before it was held") from None
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
        if read_identity(identity.pid) != identity:
            self.close()
            raise self._ended("before it was held")

    def _ended(self, during: str) -> ProcessEndedError:
        return ProcessEndedError(f"PID {self.identity.pid}", None, during)

    def send(self, number: int) -> None:
        """Raises ProcessEndedError when it is gone, HoldError where it is not allowed."""
        try:
            if self._descriptor >= 0:
                ptrace.pidfd_send_signal(self._descriptor, number)
                return
            if read_identity(self.identity.pid) != self.identity:
                raise ProcessLookupError
            os.kill(self.identity.pid, number)
        except ProcessLookupError:
            raise self._ended("a signal did not reach it") from None
        except PermissionError:
            raise HoldError(
                name(self.identity.pid),
                f"UID {os.geteuid()} may not send it signals",
                "It has to be stopped while it is suspended",
                "Run as its owner or as root (become: true)",
            ) from None

    @property
    def alive(self) -> bool:
        """The same process, with a thread that has not ended."""
        return read_identity(self.identity.pid) == self.identity and bool(live_tasks(self.identity.pid))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
