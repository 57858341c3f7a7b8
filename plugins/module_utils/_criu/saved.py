# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process was before a criu came, on the disk for when everybody who knew is dead."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, List, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import write_file
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import number, parse, read_limited
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

FILE = ".lifeline"
#: Of the file, in bytes.
MOST = 256 << 20


@dataclass(frozen=True)
class Region:
    """A mapping. end: the first address behind it. protection: as /proc/PID/maps has it, "r-xp". name: of its file, ""
    for none."""

    start: int
    end: int
    protection: str
    name: str

    @property
    def code(self) -> bool:
        return "x" in self.protection


@dataclass(frozen=True)
class Thread:
    """general, extended: its registers, as the kernel gives them. mask: the signals that it blocks."""

    tid: int
    general: bytes
    extended: bytes
    mask: int


@dataclass(frozen=True)
class Saved:
    """A process that stands still.

    code: address to the bytes there. descriptors: their numbers. call: where there is an instruction that makes a
    system call, 0 for nowhere. room: an address where nothing is mapped, 0 for none. action: the kernel's sigaction of
    SIGTRAP, b"" while it has its own.
    """

    identity: Identity
    threads: Tuple[Thread, ...]
    regions: Tuple[Region, ...]
    code: Tuple[Tuple[int, bytes], ...]
    descriptors: FrozenSet[int]
    call: int
    room: int
    action: bytes = b""


def store(directory: str, saved: Sequence[Saved]) -> None:
    """For whoever comes after a death of this process; with the host theirs end. Raises OSError. The registers of a
    process are secrets, as its image is."""
    write_file(directory, FILE, json.dumps([_to_data(one) for one in saved]).encode(), durable=False)


def forget(directory: str) -> None:
    """CRIU is done."""
    try:
        os.unlink(os.path.join(directory, FILE))
    except FileNotFoundError:
        pass


def load(directory: str) -> Tuple[Saved, ...]:
    """Empty where there is none, or none that can be read."""
    try:
        read = parse(read_limited(os.path.join(directory, FILE), MOST))
        return tuple(_from_data(one) for one in _list(read))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ()


def _to_data(saved: Saved) -> Dict[str, Any]:
    return {
        "identity": [saved.identity.pid, saved.identity.start_ticks, saved.identity.boot_id],
        "threads": [[one.tid, _text(one.general), _text(one.extended), one.mask] for one in saved.threads],
        "regions": [[one.start, one.end, one.protection, one.name] for one in saved.regions],
        "code": [[address, _text(data)] for address, data in saved.code],
        "descriptors": sorted(saved.descriptors),
        "call": saved.call,
        "room": saved.room,
        "action": _text(saved.action),
    }


def _from_data(data: Any) -> Saved:
    """Raises KeyError, TypeError or ValueError for what store() has not written."""
    pid, ticks, boot = data["identity"]
    return Saved(
        Identity(_number(pid), _number(ticks), _string(boot)),
        tuple(
            Thread(_number(tid), _bytes(general), _bytes(extended), _number(mask))
            for tid, general, extended, mask in _list(data["threads"])
        ),
        tuple(
            Region(_number(start), _number(end), _string(protection), _string(name))
            for start, end, protection, name in _list(data["regions"])
        ),
        tuple((_number(address), _bytes(text)) for address, text in _list(data["code"])),
        frozenset(_number(one) for one in _list(data["descriptors"])),
        _number(data["call"]),
        _number(data["room"]),
        _bytes(data["action"]),
    )


def _list(value: object) -> List[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _number(value: object) -> int:
    return number(value, "", 0, (1 << 64) - 1)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _bytes(value: object) -> bytes:
    return base64.b64decode(_string(value), validate=True)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
