# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to be in place on a host for a process to come back there: read from /proc and the files themselves."""

from __future__ import annotations

import os
import stat
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular, TreeMember
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.elf import build_id

_DELETED = " (deleted)"
#: Linkers put the build id into the first page; some large programs have many headers before it.
_BEGINNING = 1 << 17


def is_kept(path: str) -> bool:
    """Devices, and what drivers keep below /dev, are gone from a process by the time that it is dumped."""
    return not path.startswith(("/proc/", "/sys/")) and (not path.startswith("/dev/") or path.startswith("/dev/shm/"))


def parse_mapped(maps: bytes) -> Tuple[str, ...]:
    """Files in /proc/PID/maps that have a name still, each once. Pure."""
    found: Dict[str, None] = {}
    for line in maps.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(b"/") and fields[4] != b"0":
            path = os.fsdecode(fields[5].replace(b"\\012", b"\n"))
            if not path.endswith(_DELETED) and is_kept(path):
                found[path] = None
    return tuple(found)


def files_of(members: Sequence[TreeMember]) -> Tuple[OpenRegular, ...]:
    """Open ones, programs and libraries. Those that a process writes to have any size: it goes on writing until it is
    dumped."""
    found: Dict[Tuple[str, bool], OpenRegular] = {}
    for member in members:
        for one in member.files:
            if is_kept(one.path):
                found[one.path, one.deleted] = OpenRegular(
                    one.path, -1 if one.writable else one.size, one.deleted, one.writable
                )
        for path in (*_mapped(member.pid), *((member.executable,) if member.executable else ())):
            size = size_of(path)
            if size is not None:
                found.setdefault((path, False), OpenRegular(path, size))
    return tuple(found.values())


def _mapped(pid: int) -> Tuple[str, ...]:
    try:
        with open(f"/proc/{pid}/maps", "rb") as stream:
            return parse_mapped(stream.read())
    except OSError:
        return ()


def directories_of(members: Sequence[TreeMember]) -> Tuple[str, ...]:
    """Those that they are in, each once."""
    found: List[str] = []
    for member in members:
        try:
            place = os.readlink(f"/proc/{member.pid}/cwd")
        except OSError:
            continue
        if place.startswith("/") and not place.endswith(_DELETED) and place not in found:
            found.append(place)
    return tuple(found)


def size_of(path: str) -> Optional[int]:
    """Of a regular file; None: there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def build_ids_of(paths: Iterable[str]) -> Mapping[str, str]:
    """By path; those without one, or that can't be read, are left out."""
    found = {}
    for path in paths:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            continue
        with os.fdopen(handle, "rb") as stream:
            try:
                known = build_id(stream.read(_BEGINNING)) if stat.S_ISREG(os.fstat(handle).st_mode) else ""
            except OSError:
                continue
        if known:
            found[path] = known
    return found
