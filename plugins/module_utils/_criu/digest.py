# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SHA-256 of every chunk of every file of an image, on all cores."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import is_content
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

#: Of an image up to 128 GiB: enough that hardly a core is idle at the end, when the last ones are being hashed. The
#: manifest has a line for each, so that larger images get no smaller ones.
_CHUNKS = 2048
_SMALLEST, _LARGEST = 4 << 20, 64 << 20
#: What is read at once: it stays in the cache of a core until it is hashed.
_BUFFER = 1 << 20

#: Problems of more files than these are counted, not listed.
_LISTED = 50


@dataclass(frozen=True)
class FileDigest:
    """One file. bytes: its size. chunk_bytes: of each chunk but the last. sha256s: in hexadecimal, in their order."""

    name: str
    bytes: int
    chunk_bytes: int
    sha256s: Tuple[str, ...]


@dataclass(frozen=True)
class _Task:
    directory: int
    name: str
    size: int
    start: int
    length: int


class _Changed(Exception):
    pass


def chunk_bytes(total: int) -> int:
    """Of an image of so many bytes: a power of two."""
    chunk = _SMALLEST
    while chunk < _LARGEST and chunk * _CHUNKS < total:
        chunk *= 2
    return chunk


def digest(directory: str, names: Sequence[str], chunk: int = 0, parallel: int = 0) -> Tuple[FileDigest, ...]:
    """Of these files of the directory. chunk: bytes, 0 for chunk_bytes(). parallel: threads, 0 for one per core that
    may be used.

    Raises OSError: a file is missing, no regular one, or changes its size while it is read.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sizes = {name: _size(handle, name) for name in names}
        chunk = chunk or chunk_bytes(sum(sizes.values()))
        tasks = [task for name in names for task in _tasks(handle, name, sizes[name], chunk)]
        try:
            sums = _run(tasks, parallel)
        except _Changed as error:
            raise OSError(f"{os.path.join(directory, str(error))} changes while it is read") from None
    finally:
        os.close(handle)
    found: Dict[str, List[str]] = {name: [] for name in names}
    for task, one in zip(tasks, sums):
        found[task.name].append(one)
    return tuple(FileDigest(name, sizes[name], chunk, tuple(found[name])) for name in names)


def verify(directory: str, digests: Sequence[FileDigest], how: str, parallel: int = 0) -> Tuple[str, ...]:
    """What is not as it was: missing and additional files, sizes, and with how "full" each chunk. how "none" looks at
    nothing. parallel: as in digest(). Raises OSError where the directory itself can't be read."""
    if how == "none":
        return ()
    if how not in ("sizes", "full"):
        raise ValueError(f"how {how!r}")
    problems: List[str] = []
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sound = []
        for one in digests:
            problem = _size_problem(handle, one)
            if problem:
                problems.append(problem)
            else:
                sound.append(one)
        known = {one.name for one in digests}
        for name in sorted(os.listdir(handle)):
            if is_content(name) and name not in known:
                problems.append(f"{printable(name)} is not in the manifest")
        if how == "full":
            problems.extend(_chunk_problems(handle, sound, parallel))
    finally:
        os.close(handle)
    if len(problems) > _LISTED:
        problems[_LISTED:] = [f"{len(problems) - _LISTED} more"]
    return tuple(problems)


def _size_problem(handle: int, one: FileDigest) -> str:
    try:
        size = _size(handle, one.name)
    except FileNotFoundError:
        return f"{one.name} is missing"
    except OSError as error:
        return f"{one.name} can't be read: {error.strerror or error}"
    return "" if size == one.bytes else f"{one.name} has {size} bytes instead of {one.bytes}"


def _chunk_problems(handle: int, digests: Sequence[FileDigest], parallel: int) -> List[str]:
    tasks: List[_Task] = []
    expected: List[Tuple[str, int, str]] = []
    for one in digests:
        made = _tasks(handle, one.name, one.bytes, one.chunk_bytes)
        tasks.extend(made)
        for index, task in enumerate(made):
            words = f"chunk {index + 1} of {len(made)} (from byte {task.start})"
            expected.append((one.name, index, words))
    sums = _run(tasks, parallel, keep_going=True)
    by_name = {one.name: one for one in digests}
    problems = []
    for (name, index, words), seen in zip(expected, sums):
        if seen.startswith("!"):
            problems.append(f"{name} can't be read in {words}: {seen[1:]}")
        elif seen != by_name[name].sha256s[index]:
            problems.append(f"{name} is damaged: {words} differs")
    return problems


def _size(directory: int, name: str) -> int:
    info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(f"{name} is no regular file")
    return info.st_size


def _tasks(handle: int, name: str, size: int, chunk: int) -> List[_Task]:
    """At least one: an empty file has one empty chunk."""
    return [_Task(handle, name, size, start, min(chunk, size - start)) for start in range(0, max(size, 1), chunk)]


def _run(tasks: Sequence[_Task], parallel: int, keep_going: bool = False) -> List[str]:
    """In the order of the tasks. keep_going: a task that fails gives "!" and its error; otherwise none is begun after
    it, and its error is raised."""
    sums = [""] * len(tasks)
    left = deque(enumerate(tasks))

    def work() -> None:
        buffer = memoryview(bytearray(_BUFFER))
        while True:
            try:
                index, task = left.popleft()
            except IndexError:
                return
            try:
                sums[index] = _hash(task, buffer)
            except (_Changed, OSError) as error:
                if not keep_going:
                    left.clear()
                    raise
                sums[index] = f"!{_words(error)}"

    threads = min(parallel or len(os.sched_getaffinity(0)), len(tasks))
    if threads <= 1:
        work()
        return sums
    with ThreadPoolExecutor(threads) as pool:
        for one in [pool.submit(work) for _number in range(threads)]:
            one.result()
    return sums


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it changes while it is read"


def _hash(task: _Task, buffer: memoryview) -> str:
    # A descriptor per chunk: the kernel reads ahead per descriptor, and threads that share one defeat it.
    handle = os.open(task.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=task.directory)
    try:
        if os.fstat(handle).st_size != task.size:
            raise _Changed(task.name)
        if task.length:
            os.posix_fadvise(handle, task.start, task.length, os.POSIX_FADV_SEQUENTIAL)
        summed = hashlib.sha256()
        position, left = task.start, task.length
        while left:
            count = os.preadv(handle, [buffer[: min(left, len(buffer))]], position)
            if not count:
                raise _Changed(task.name)
            summed.update(buffer[:count])
            position += count
            left -= count
        return summed.hexdigest()
    finally:
        os.close(handle)
