# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks between the tests of a run, by files: slots for what loads the processors, and the memory of each GPU.

Whoever needs memory of a GPU (a start, a resume) shares it; whoever fills a GPU has it alone, and is not starved.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Iterator


@contextlib.contextmanager
def _flock(path: Path, how: int) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def shared(home: Path, gpu: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with _flock(home / f"gpu{gpu}.turn", fcntl.LOCK_EX):
            stack.enter_context(_flock(home / f"gpu{gpu}.memory", fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def alone(home: Path, gpu: int) -> Iterator[None]:
    with _flock(home / f"gpu{gpu}.turn", fcntl.LOCK_EX), _flock(home / f"gpu{gpu}.memory", fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def slot(home: Path, count: int) -> Iterator[None]:
    """One of `count` places, for a start that takes a processor for seconds."""
    while True:
        for number in range(count):
            handle = os.open(home / f"slot{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            try:
                yield
            finally:
                os.close(handle)
            return
        time.sleep(0.1)
