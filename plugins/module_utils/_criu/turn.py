# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What takes every core of the host, one after the other, so that what follows it begins early for the first."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import Iterator

_PAUSE = 0.02
#: Somebody may hang on a network file system meanwhile.
SECONDS = 120.0


@contextmanager
def in_turn(path: str, seconds: float = SECONDS) -> Iterator[bool]:
    """path: of the lock, a file in a directory of root's. True: nobody else is at it; False: after so many seconds
    somebody still is. Raises OSError.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield _locked(handle, time.monotonic() + seconds)
    finally:
        os.close(handle)


def _locked(handle: int, end: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
        time.sleep(_PAUSE)
