# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Opens what it is told to, and becomes another program that has it open: `opener.py WHAT ARGUMENT... -- PROGRAM`."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import sys
from typing import Callable, Dict, List

_IO_URING_SETUP = 425


def ring() -> int:
    """A descriptor of io_uring. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.syscall(_IO_URING_SETUP, 4, ctypes.byref(ctypes.create_string_buffer(256))))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def file(path: str, count: str = "4096") -> List[int]:
    """For writing, with so many bytes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(descriptor, int(count))
    return [descriptor]


def deleted(path: str, count: str) -> List[int]:
    found = file(path, count)
    os.unlink(path)
    return found


def flock(path: str) -> List[int]:
    found = file(path)
    fcntl.flock(found[0], fcntl.LOCK_EX)
    return found


def lockf(path: str) -> List[int]:
    found = file(path)
    fcntl.lockf(found[0], fcntl.LOCK_EX)
    return found


def rotated(path: str) -> List[int]:
    found = file(path)
    os.rename(path, f"{path}.1")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    return found


def unix(path: str) -> List[int]:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return [connection.detach()]


OPEN: Dict[str, Callable[..., List[int]]] = {
    "file": file,
    "read": lambda path: [os.open(path, os.O_RDONLY)],
    "deleted": deleted,
    "flock": flock,
    "lockf": lockf,
    "rotated": rotated,
    "pipe": lambda: list(os.pipe()),
    "unix": unix,
    "tcp": lambda port: [socket.create_connection(("127.0.0.1", int(port))).detach()],
    "listening": lambda: [socket.create_server(("127.0.0.1", 0)).detach()],
    "datagrams": lambda: [socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()],
    "ring": lambda: [ring()],
}


def main(arguments: List[str]) -> None:
    at = arguments.index("--")
    for descriptor in OPEN[arguments[0]](*arguments[1:at]):
        os.set_inheritable(descriptor, True)
    os.execvp(arguments[at + 1], arguments[at + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
