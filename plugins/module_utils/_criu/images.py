# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image holds, read from CRIU's own files.

Formats: images/*.proto and criu/include/magic.h of CRIU 4.1 and 4.2.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from dataclasses import dataclass
from typing import Dict, List, Mapping, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import PID_LIMIT
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.wire import (
    ImageError,
    content,
    number,
    numbers,
    parse,
    records,
)

__all__ = ["ImageError", "Task", "is_complete", "page_bytes", "page_files", "read_pstree", "regular_files"]

_INVENTORY, _PSTREE, _CORE = 0x58313116, 0x50273030, 0x55053847
_PAGEMAP, _FILES, _REMAP = 0x56084025, 0x56303138, 0x59133954
_STATES = {1: "alive", 2: "dead", 3: "stopped", 4: "helper", 6: "zombie"}
_GHOST = 1
_REGULAR = 1
_KIND = 0o170000
_IN_PARENT, _PRESENT = 1, 4
_DONE = {"dump": "Dumping finished successfully", "restore": "Restore finished successfully"}
_VERSIONS = (1, 2)
# Plausible: bytes of a record. A process with 32768 threads has a record of 192 KiB.
_TASK_BYTES, _FILE_BYTES, _PAGEMAP_BYTES = 1 << 20, 1 << 16, 64
_MOST_TASKS = 1 << 16


@dataclass(frozen=True)
class Task:
    """A process of the image. parent: 0 for the root. group, session: PIDs. threads: thread ids, its own PID first; of
    a zombie, CRIU writes none that means anything, so there are none. state: "alive", "stopped", "zombie", ..."""

    pid: int
    parent: int
    group: int
    session: int
    threads: Tuple[int, ...]
    state: str
    name: str

    @property
    def is_zombie(self) -> bool:
        return self.state in ("zombie", "dead")


def read_pstree(directory: str) -> Tuple[Task, ...]:
    """Every process, the root first. Raises ImageError."""
    name = "pstree.img"
    found: Dict[int, Task] = {}
    for record in records(directory, name, _PSTREE, _TASK_BYTES):
        message = parse(record, name)
        pid = number(message, 1, name)
        if not 0 < pid <= PID_LIMIT or pid in found or len(found) >= _MOST_TASKS:
            raise ImageError(name, f"PID {pid} is there twice, or is impossible")
        state, called = _core(directory, pid)
        threads = () if state in ("zombie", "dead") else numbers(message, 5, name)
        parent, group, session = (number(message, field, name) for field in (2, 3, 4))
        if not all(0 <= one <= PID_LIMIT for one in (parent, group, session, *threads)):
            raise ImageError(name, f"PID {pid} has an impossible parent, group, session or thread")
        if (parent not in found) if found else parent:
            raise ImageError(name, f"PID {pid} has the parent {parent}, which is not in the tree above it")
        found[pid] = Task(pid, parent, group, session, threads, state, called)
    if not found:
        raise ImageError(name, "it holds no process")
    return tuple(found.values())


def _core(directory: str, pid: int) -> Tuple[str, str]:
    """The state and the name of a process."""
    name = f"core-{pid}.img"
    for record in records(directory, name, _CORE, _TASK_BYTES):
        task = parse(content(parse(record, name), 3, name), name)
        state = number(task, 1, name)
        return _STATES.get(state, str(state)), content(task, 6, name).decode("utf-8", "replace")
    raise ImageError(name, "it is empty")


def page_bytes(directory: str) -> Mapping[int, int]:
    """PID -> bytes of its private memory in the image. Raises ImageError, also where a file of pages is shorter or
    longer than what all its users say is in it."""
    found: Dict[int, int] = {}
    expected: Dict[str, int] = {}
    for name in sorted(os.listdir(directory)):
        match = re.match(r"pagemap-(shmem-)?([0-9]{1,20})\.img\Z", name)
        if match is None:
            continue
        pages, size = _pagemap(directory, name)
        expected[pages] = expected.get(pages, 0) + size
        if not match.group(1):
            found[int(match.group(2))] = size
    for pages, size in expected.items():
        if size or os.path.lexists(os.path.join(directory, pages)):
            _check_size(directory, pages, size)
    return found


def _pagemap(directory: str, name: str) -> Tuple[str, int]:
    """The file that its pages are in, and how many bytes."""
    pages, total = "", 0
    for record in records(directory, name, _PAGEMAP, _PAGEMAP_BYTES):
        message = parse(record, name)
        if not pages:
            pages = f"pages-{number(message, 1, name)}.img"
            continue
        flags = number(message, 4, name, 0)
        present = flags & _PRESENT if flags else not number(message, 3, name, 0)
        if present and not flags & _IN_PARENT:
            # 4.2 counts in a field of 64 bits and keeps the other one for older readers.
            total += number(message, 5, name, 0) or number(message, 2, name)
    if not pages:
        raise ImageError(name, "it is empty")
    return pages, total * mmap.PAGESIZE


def _check_size(directory: str, name: str, expected: int) -> None:
    try:
        status = os.lstat(os.path.join(directory, name))
    except OSError as error:
        raise ImageError(name, f"it can't be looked at: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(name, "it is no regular file")
    if status.st_size != expected:
        raise ImageError(name, f"it has {status.st_size} bytes, and its maps tell of {expected}")


def page_files(directory: str) -> Tuple[str, ...]:
    """The names of those that hold memory: nearly all of an image's bytes."""
    return tuple(sorted(name for name in os.listdir(directory) if re.match(r"pages-[0-9]+\.img\Z", name)))


def regular_files(directory: str) -> Tuple[OpenRegular, ...]:
    """Every regular file that CRIU opens by its name at restore, and refuses when it has another size: open ones,
    programs, libraries and other mapped ones. size: -1 where CRIU does not look at it (logs, which others may write to
    meanwhile). Those without a name, whose content is in the image, are `deleted`. Raises ImageError."""
    name = "files.img"
    ghosts = _ghosts(directory)
    found: List[OpenRegular] = []
    for record in records(directory, name, _FILES, _FILE_BYTES):
        message = parse(record, name)
        if number(message, 1, name) != _REGULAR:
            continue
        entry = parse(content(message, 3, name), name)
        if number(entry, 10, name, stat.S_IFREG) & _KIND != stat.S_IFREG:
            continue
        path = os.fsdecode(content(entry, 6, name))
        if not path.startswith("/"):
            path = "/" + path
        one = OpenRegular(
            path=path,
            size=number(entry, 8, name) if 8 in entry else -1,
            deleted=number(entry, 1, name) in ghosts,
            writable=bool(number(entry, 2, name) & os.O_ACCMODE),
        )
        if one not in found:
            found.append(one)
    return tuple(found)


def _ghosts(directory: str) -> Tuple[int, ...]:
    """The numbers of files without a name."""
    name = "remap-fpath.img"
    if not os.path.lexists(os.path.join(directory, name)):
        return ()
    messages = (parse(record, name) for record in records(directory, name, _REMAP, _FILE_BYTES))
    return tuple(number(one, 1, name) for one in messages if number(one, 3, name, _GHOST) == _GHOST)


def is_complete(directory: str, doing: str, log: str) -> bool:
    """Does the log tell of success, and is there what CRIU writes last? doing: "dump" or "restore"."""
    if _DONE[doing] not in log:
        return False
    if doing == "restore":
        return True
    try:
        inventory = parse(next(records(directory, "inventory.img", _INVENTORY, _TASK_BYTES)), "inventory.img")
        return number(inventory, 1, "inventory.img") in _VERSIONS
    except (ImageError, StopIteration):
        return False
