# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written here is on the disk when the call returns, whole or not at all."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import List, Sequence, Tuple


def write_file(directory: str, name: str, data: bytes, durable: bool = True) -> None:
    """Put a file in place of the one with this name, for its owner only. durable: it outlives the host; without, it
    outlives whoever dies but the host. Raises OSError."""
    scratch = os.path.join(directory, f".{name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(scratch, flags, 0o600)
        try:
            os.fchmod(handle, 0o600)
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(scratch, os.path.join(directory, name))
    except BaseException:
        try:
            os.unlink(scratch)
        except OSError:
            pass
        raise
    if durable:
        sync_directory(directory)


def sync_directory(path: str) -> None:
    """Its names. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_files(paths: List[str]) -> None:
    """Several at once: a fast disk is not kept busy by one. Raises OSError."""
    if paths:
        with ThreadPoolExecutor(min(8, len(paths))) as pool:
            list(pool.map(_sync_file, paths))


def _sync_file(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_others(paths: Sequence[str]) -> Tuple[str, ...]:
    """Regular files of somebody else, each by itself; in words, those for which nobody can promise that they outlive a
    loss of power."""
    problems: List[str] = []
    for path in paths:
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                _sync_file(os.path.realpath(path))
        except OSError as error:
            problems.append(f"{path} may not outlive a loss of power, it can't be synced: {error.strerror}")
    return tuple(problems)
