# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for the end of a criu that dumps, as its tracer, so that its end can be held up for a moment.

CRIU has its code run in a process while it talks with it over a socket. When CRIU dies, the kernel closes its socket
first, and stops what CRIU has traced a little later. In between, CRIU's code in the process sees the other end gone,
puts the process's registers back and lets it run: a process that is to stand still. So CRIU's sockets are duplicated
before the kernel takes its descriptors, and kept until everything that it has traced is stopped again.

Should this process die as well, CRIU is not traced any more and goes on.
"""

from __future__ import annotations

import os
import signal
import time
from typing import List

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import task_state
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import parse_status
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_stat, read_text

SECONDS = 5.0
_PAUSE = 0.001
_TERMINAL_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


def wait(criu: int) -> int:
    """Its status, as waitpid(2) tells it. criu: a child of this process."""
    try:
        ptrace.seize(criu, ptrace.TRACEEXIT)
    except OSError:
        return os.waitpid(criu, 0)[1]
    kept: List[int] = []
    tracees: List[int] = []
    while True:
        _pid, raw = os.waitpid(criu, ptrace.WALL)
        status = ptrace.Status(raw)
        if status.ended:
            break
        if status.event == ptrace.EVENT_EXIT:
            tracees = _tracees(criu)
            kept = _duplicate(criu) if tracees else []
        _go_on(criu, status)
    _end_session(criu)
    _wait_stopped(tracees)
    for number in kept:
        os.close(number)
    return raw


def _go_on(criu: int, status: ptrace.Status) -> None:
    try:
        if status.event == ptrace.EVENT_STOP and status.signal in _TERMINAL_STOPS:
            ptrace.listen(criu)  # somebody has stopped it, and may continue it
        else:
            ptrace.cont(criu, 0 if status.event else status.signal)
    except ProcessLookupError:
        return  # killed meanwhile


def _tracees(criu: int) -> List[int]:
    return [pid for pid in _processes() if _tracer(pid) == criu]


def _processes() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _tracer(pid: int) -> int:
    try:
        return int(parse_status(read_text(f"/proc/{pid}/status")).get("TracerPid", "0"))
    except OSError:
        return 0


def _duplicate(criu: int) -> List[int]:
    """Its sockets. What can't be had is left out: it is dying."""
    found: List[int] = []
    try:
        process = ptrace.pidfd_open(criu)
    except OSError:
        return found
    for name in os.listdir(f"/proc/{criu}/fd"):
        try:
            if os.readlink(f"/proc/{criu}/fd/{name}").startswith("socket:"):
                found.append(ptrace.pidfd_getfd(process, int(name)))
        except OSError:
            continue
    os.close(process)
    return found


def _end_session(criu: int) -> None:
    """Children of CRIU's own, which would stay behind: stopped, with nobody to continue them."""
    for pid in _processes():
        stat = read_stat(f"/proc/{pid}/stat")
        if stat is not None and stat.session == criu:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _wait_stopped(pids: List[int]) -> None:
    end = time.monotonic() + SECONDS
    while any(task_state(pid, pid) not in ("T", "t", "Z", "X", "") for pid in pids) and time.monotonic() < end:
        time.sleep(_PAUSE)
