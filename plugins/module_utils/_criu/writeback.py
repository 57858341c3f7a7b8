# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has the kernel write the pages of an image to the disk while CRIU still makes them.

By itself it begins only once a tenth of the memory waits to be written, and holds back whoever writes on the way to a
fifth: a disk that has nothing to do at first is waited for at the end.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from types import TracebackType
from typing import Callable, Dict, Optional, Type

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import close_all

#: What is handed over at once, and so how long it takes to notice that it is over.
PIECE = 16 << 20
_PAUSE = 0.05
_PAGES = re.compile(r"pages-\d+\.img\Z")
_SYNC_FILE_RANGE_WRITE = 2  # https://man7.org/linux/man-pages/man2/sync_file_range.2.html


class Writeback:
    """Works in a child, since the call waits for a busy disk; the child ends with its parent, too."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pid = 0
        self._stop = -1

    def __enter__(self) -> Writeback:
        stop, self._stop = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                close_all(frozenset((stop,)))
                _follow(self._directory, stop)
            finally:
                os._exit(0)
        os.close(stop)
        return self

    def __exit__(
        self,
        _kind: Optional[Type[BaseException]],
        _error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        os.close(self._stop)
        try:
            os.waitpid(self._pid, 0)
        except ChildProcessError:
            return  # the caller ignores SIGCHLD, so the kernel has done it


def _follow(directory: str, stop: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.set_blocking(stop, False)
    write = _sync_file_range()
    done: Dict[str, int] = {}
    while write is not None and not _is_over(stop):
        if not hand_over(directory, done, write, lambda: _is_over(stop)):
            time.sleep(_PAUSE)


def _is_over(stop: int) -> bool:
    try:
        return os.read(stop, 1) == b""
    except BlockingIOError:
        return False


def _sync_file_range() -> Optional[Callable[[int, int, int], None]]:
    """None on a C library that lacks it."""
    try:
        function = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_uint]

    def write(handle: int, start: int, length: int) -> None:
        # What a file system refuses here, the sync at the end does or tells.
        function(handle, start, length, _SYNC_FILE_RANGE_WRITE)

    return write


def hand_over(
    directory: str, done: Dict[str, int], write: Callable[[int, int, int], None], is_over: Callable[[], bool]
) -> bool:
    """Every whole piece that has been written into a file of pages since the last time. done: bytes by file, kept by
    the caller. Returns whether there was any."""
    found = False
    try:
        names = [name for name in os.listdir(directory) if _PAGES.match(name)]
    except OSError:
        return False
    for name in names:
        try:
            handle = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            size = os.fstat(handle).st_size
            start = done.get(name, 0)
            if size < start:
                start = 0  # written anew
            while size - start >= PIECE and not is_over():
                write(handle, start, PIECE)
                start += PIECE
                found = True
            done[name] = start
        finally:
            os.close(handle)
    return found
