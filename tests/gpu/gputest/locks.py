# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks between the tests of a run, by files: slots for what loads the processors, and the memory of each GPU.

Whoever needs memory of a GPU (a start, a resume) shares it; whoever fills a GPU has it alone, and is not starved. A
test that starts processes first waits until what all running tests have asked for fits.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Dict, Iterator


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


def admit(home: Path, gpu: int, mib: int, total: int, patience: float) -> bool:
    """Adds `mib` to what this process has asked for of that GPU, for as long as it lives, once that fits into `total`
    with what the others have. False: it did not fit in `patience` seconds, and is added all the same, so that two
    tests that wait for each other go on.
    """
    end = time.monotonic() + patience
    while True:
        late = time.monotonic() > end
        with _flock(home / f"gpu{gpu}.asked.lock", fcntl.LOCK_EX):
            asked = _asked(home / f"gpu{gpu}.asked")
            mine = str(os.getpid())
            others = sum(size for owner, size in asked.items() if owner != mine)
            wanted = asked.get(mine, 0) + mib
            fits = others + wanted <= total or not others
            if fits or late:
                asked[mine] = wanted
                (home / f"gpu{gpu}.asked").write_text(json.dumps(asked))
                return fits
        time.sleep(0.2)


def _asked(path: Path) -> Dict[str, int]:
    """Of those that live."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {owner: size for owner, size in found.items() if os.path.exists(f"/proc/{owner}")}
