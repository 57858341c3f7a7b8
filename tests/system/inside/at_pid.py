# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in a test host: starts a program in a session of its own, under the PID that the documentation writes of.

usage: at_pid.py PID USER OUT COMMAND...      OUT.log has its output
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys
import time
from typing import NoReturn

CLONE3 = 435


class Arguments(ctypes.Structure):
    """struct clone_args."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls"),
            *("set_tid", "set_tid_size", "cgroup"),
        )
    )


def fork(pid: int) -> int:
    """As os.fork, under this PID. Raises OSError, EEXIST while somebody has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = (ctypes.c_int * 1)(pid)
    arguments = Arguments(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
    child = int(libc.syscall(CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)))
    if child < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return child


def become(user: str, out: str, command: list[str]) -> NoReturn:
    os.setsid()
    who = pwd.getpwnam(user)
    os.setgid(who.pw_gid)
    os.setuid(who.pw_uid)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(f"{out}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 64)
    os.chdir("/")
    os.execvp(command[0], command)


def main() -> int:
    pid, user, out, command = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    end = time.monotonic() + 10
    while True:
        try:
            child = fork(pid)
            break
        except FileExistsError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    if child == 0:
        become(user, out, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
