# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ties a process to the rest of the host: files, pipes, sockets, terminal, parent, mounts, container. Frozen."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Dict, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass


@dataclass(frozen=True)
class Member:
    """A process of a tree. devices: NVIDIA devices that it has open or mapped; None is unknown."""

    pid: int
    parent: int
    name: str
    devices: Optional[Tuple[str, ...]] = ()


@dataclass(frozen=True)
class OpenFile:
    """A regular file in use. what: "descriptor 3", "working directory" or "program".

    filesystem: its type, "" where unknown. size: bytes; links: names that it has left; both
    None where the file was not asked (a file server may never answer).
    deleted: the name by which it was opened is gone. writable: open for writing. rotated: its name tells that it was a
    log which has been rotated away. locks: "FLOCK WRITE".
    """

    pid: int
    what: str
    path: str
    filesystem: str = ""
    size: Optional[int] = None
    links: Optional[int] = None
    deleted: bool = False
    writable: bool = False
    rotated: bool = False
    locks: Tuple[str, ...] = ()


@dataclass(frozen=True)
class DeletedMapping:
    """A mapped file that has no name any more. bytes: mapped of it."""

    pid: int
    path: str
    bytes: int


@dataclass(frozen=True)
class End:
    """A pipe or unix socket whose other end is not in the tree. name: what the other end is bound to, "" for nothing.
    holders: who has it, as far as it was looked for: "PID 7 (tee)"."""

    pid: int
    descriptor: int
    writes: bool
    name: str = ""
    holders: Tuple[str, ...] = ()


@dataclass(frozen=True)
class OpenSocket:
    """protocol: as the kernel names it, "TCPv6"; "" where it does not tell."""

    pid: int
    descriptor: int
    protocol: str


@dataclass(frozen=True)
class Parent:
    """command: its argument list."""

    pid: int
    name: str
    session: int
    command: Tuple[str, ...]


@dataclass(frozen=True)
class Ties:
    """What a tree of processes has to do with what is outside of it. Texts are as the kernel gives them.

    unseen: members of the tree whose descriptors may not be read, "PID 7 (x)". unix_ends: None where the kernel does
    not tell the peers of unix sockets. connections: "10.0.0.1:80 to 10.0.0.2:4000". journal: "PID 7 descriptor 1".
    io_uring: members that have a ring, "PID 7 (x)". sockets: all but those of unix and netlink; None where nobody
    looked.
    """

    members: Tuple[Member, ...]
    unseen: Tuple[str, ...] = ()
    files: Tuple[OpenFile, ...] = ()
    mappings: Tuple[DeletedMapping, ...] = ()
    pipes: Tuple[End, ...] = ()
    unix_ends: Optional[Tuple[End, ...]] = ()
    connections: Tuple[str, ...] = ()
    journal: Tuple[str, ...] = ()
    io_uring: Tuple[str, ...] = ()
    sockets: Optional[Tuple[OpenSocket, ...]] = None


@dataclass(frozen=True)
class Around:
    """Of one target. terminal: path of its controlling terminal, "" for none. foreground: its process group has the
    terminal. parent: None for none, or one that may not be seen. private_mounts: its mount namespace is neither the
    reader's nor that of PID 1; None is unknown. probe: what checks the health of its container ("swarm", "docker",
    "podman"), "none", or "unknown". ties: None where they were not read.
    """

    pid: int
    terminal: str
    foreground: bool
    parent: Optional[Parent]
    private_mounts: Optional[bool]
    probe: str = ""
    ties: Optional[Ties] = None


def _tuple(kind: Any, data: Any) -> Any:
    return None if data is None else tuple(from_plain(kind, one) for one in data)


def from_plain(kind: Any, data: Dict[str, Any]) -> Any:
    """A dataclass of this file out of `dataclasses.asdict`, also after JSON."""
    nested = {
        "members": Member,
        "files": OpenFile,
        "mappings": DeletedMapping,
        "pipes": End,
        "unix_ends": End,
        "sockets": OpenSocket,
    }
    values: Dict[str, Any] = {}
    for field in fields(kind):
        if field.name == "sockets" and field.name not in data:
            continue  # recorded before it was looked for
        value = data[field.name]
        if field.name in nested:
            value = _tuple(nested[field.name], value)
        elif field.name in ("parent", "ties") and isinstance(value, dict):
            value = from_plain(Parent if field.name == "parent" else Ties, value)
        elif isinstance(value, list):
            value = tuple(value)
        values[field.name] = value
    return kind(**values)
