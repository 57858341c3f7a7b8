# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A PID namespace for a tree whose PIDs are in use on this host.

Inside, every process has the PID that it had; this host knows it by another one. CRIU starts inside, and finds a /proc
of that namespace, in mounts of its own that follow those of the host. The namespace's first process is a small one of
ours: it is the parent of the tree and of its orphans, ends with the last of them, and is not to be killed, because the
kernel ends everybody in the namespace with it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Callable, Dict, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around_parse import descendants
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import NAMESPACE_INIT
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import parse_status
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_stat, read_text

READY = b"ready"
_NEW_MOUNTS, _NEW_PIDS = 0x00020000, 0x20000000
_RECURSIVE, _SLAVE = 1 << 14, 1 << 19
_NO_SUID_DEV_EXEC = 2 | 4 | 8
#: What the first process becomes: of this program it would keep all the memory. Nothing but its last child may end it.
_REAPER = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
tell, criu = int(sys.argv[1]), int(sys.argv[2])
try:
    with open("/proc/self/comm", "w") as name:
        name.write("{NAMESPACE_INIT}")
except OSError:
    pass
while True:
    try:
        pid, status = os.wait()
    except ChildProcessError:
        break
    if pid == criu:
        try:
            os.write(tell, b"%d\\n" % (-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)))
        except OSError:
            pass
        os.close(tell)
"""


def start(become: Callable[[], None], tell: int, environment: Mapping[str, str]) -> int:
    """Returns the PID of the first process of a new namespace, of which `become` is the first child. The first process
    writes READY to `tell` when that is there, and its exit status when it has ended. The caller has one thread. Raises
    OSError."""
    _call("unshare", _NEW_PIDS | _NEW_MOUNTS)
    first = os.fork()
    if first:
        return first
    try:
        os.setsid()
        _call("mount", b"none", b"/", None, _RECURSIVE | _SLAVE, None)
        _call("mount", b"proc", b"/proc", b"proc", _NO_SUID_DEV_EXEC, None)
        criu = os.fork()
        if criu == 0:
            become()
            os._exit(1)
        os.write(tell, READY + b"\n")
        os.dup2(0, 1)
        os.dup2(0, 2)
        os.set_inheritable(tell, True)
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", _REAPER, str(tell), str(criu)], dict(environment))
    except OSError as error:
        os.write(2, f"a PID namespace can't be made: {error}\n".encode())
    finally:
        os._exit(1)


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def child_of(first: int) -> int:
    """PID of its only child, 0 for none."""
    for name in os.listdir("/proc"):
        stat = read_stat(f"/proc/{name}/stat") if name.isdigit() else None
        if stat is not None and stat.parent == first:
            return int(name)
    return 0


def inside(first: int) -> Dict[int, int]:
    """Of the namespace of which `first`, a PID of this host, is the first process: PID there to PID here."""
    parents: Dict[int, int] = {}
    for name in os.listdir("/proc"):
        stat = read_stat(f"/proc/{name}/stat") if name.isdigit() else None
        if stat is not None:
            parents[int(name)] = stat.parent
    numbers = {pid: _numbers(pid) for pid in descendants(first, parents)}
    level = len(numbers.get(first, ())) - 1
    return {names[level]: pid for pid, names in numbers.items() if 0 < level < len(names)}


def _numbers(pid: int) -> Tuple[int, ...]:
    """Its PIDs in this namespace and in those below."""
    try:
        text: Optional[str] = parse_status(read_text(f"/proc/{pid}/status")).get("NSpid")
    except OSError:
        return ()
    return tuple(int(word) for word in (text or "").split())
