# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process was before a criu came, on the disk for when everybody who knew is dead."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import write_file
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

FILE = ".lifeline"


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
    """Durable. Raises OSError. The registers of a process are secrets, as its image is."""
    write_file(directory, FILE, json.dumps([_to_data(one) for one in saved]).encode())


def forget(directory: str) -> None:
    """CRIU is done."""
    try:
        os.unlink(os.path.join(directory, FILE))
    except FileNotFoundError:
        pass


def load(directory: str) -> Tuple[Saved, ...]:
    """Empty where there is none, or none that can be read."""
    try:
        with open(os.path.join(directory, FILE), "rb") as stream:
            return tuple(_from_data(one) for one in json.loads(stream.read().decode()))
    except (OSError, ValueError, KeyError, TypeError):
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


def _from_data(data: Dict[str, Any]) -> Saved:
    return Saved(
        Identity(*data["identity"]),
        tuple(
            Thread(tid, base64.b64decode(general), base64.b64decode(extended), mask)
            for tid, general, extended, mask in data["threads"]
        ),
        tuple(Region(*one) for one in data["regions"]),
        tuple((address, base64.b64decode(text)) for address, text in data["code"]),
        frozenset(data["descriptors"]),
        data["call"],
        data["room"],
        base64.b64decode(data["action"]),
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
