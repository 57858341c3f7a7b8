# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process and all that descends from it, as an image has to hold it. Frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity


@dataclass(frozen=True)
class OpenRegular:
    """A regular file that a member has open. size: bytes. deleted: it has no name any more."""

    path: str
    size: int
    deleted: bool = False
    writable: bool = False


@dataclass(frozen=True)
class TreeMember:
    """parent, group, session: PIDs. threads: thread ids, its own PID first. state: one letter.
    tty: device number of the terminal, 0 for none. cuda: it has CUDA in use, suspended or not.
    switches: context switches of all its threads since they began; while it doesn't grow, no thread has run.
    """

    identity: Identity
    parent: int
    group: int
    session: int
    name: str
    executable: str
    uid: int
    threads: Tuple[int, ...]
    state: str
    tty: int
    cuda: bool
    switches: int
    rss_anon_bytes: int
    files: Tuple[OpenRegular, ...] = ()

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def is_stopped(self) -> bool:
        return self.state == "T"


@dataclass(frozen=True)
class Tree:
    """members: parents before their children, the root first. at: Unix time of the reading."""

    members: Tuple[TreeMember, ...]
    at: float

    @property
    def root(self) -> TreeMember:
        return self.members[0]

    @property
    def pids(self) -> Tuple[int, ...]:
        return tuple(member.pid for member in self.members)

    @property
    def cuda(self) -> Tuple[TreeMember, ...]:
        return tuple(member for member in self.members if member.cuda)

    def member(self, pid: int) -> Optional[TreeMember]:
        return next((member for member in self.members if member.pid == pid), None)
