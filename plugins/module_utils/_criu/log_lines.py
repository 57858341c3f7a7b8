# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of CRIU's log (-v4), with the task that each is about. Pure.

(00.001783)   1004: Error (criu/files-reg.c:2175): File var/data.bin has bad size 18 (expect 10)
(00.007066) pie: 1148: Error (criu/pie/restorer.c:2106): Unable to create a thread: -17
Error (criu/image.c:721): Can't open dir /var/images: No such file or directory
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines, printable

#: Characters of a line that are looked at. CRIU's own limit is 4096.
LONGEST = 4096
_LINE = re.compile(
    r"(?P<time>\(\d+\.\d+\)\s*)?(?P<pie>pie:\s*)?(?:(?P<pid>\d{1,10}):\s)?\s*"
    r"(?:(?P<level>Error|Warn)\s+\([^)]*\):\s)?(?P<text>.*)"
)
_TASK = re.compile(r"(?:Pre-dumping|Dumping) (?:task|processes) \(pid: (\d+) comm: (.*)\)\Z")
#: Behind the last task. What is said from here on is not about it.
_BEHIND = re.compile(r"Dumping file-locks|Dumping pstree ")
_MAP = re.compile(r"Handling VMA with the following smaps entry: [0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)\Z")
_SOCKET = re.compile(r"unix:\s+Dumping: ino (\d+) peer_ino (\d+) ")
_FILE = re.compile(r"\d+ fdinfo (\d+): |Dumping path for (-?\d+) fd via self -?\d+ \[(.*)\]\Z")
_TERMINAL = re.compile(r"tty: Dumping tty ")
_LOCK = re.compile(r"lockinfo: ")
_BOUND = re.compile(r"inet:\s+Restore: family \S+ .* port (\d+) state \S+\s+src_addr (\S+)\Z")
_GHOST = re.compile(r"Opening ghost file \S+ for (.*)\Z")


@dataclass(frozen=True)
class Holder:
    """A process that has something. name: as of /proc/PID/comm. path: absolute, "" where it is not told."""

    pid: Optional[int] = None
    name: str = ""
    path: str = ""
    descriptor: Optional[int] = None


@dataclass(frozen=True)
class Line:
    """level: "Error", "Warn" or "". bare: it stands outside of the log, as CRIU talks to a terminal.
    task: the process that said it, or that is being dumped. seen: what was last found mapped in it, or the last address
    that a socket of it was to be bound to.
    """

    level: str
    text: str
    bare: bool
    task: Holder
    seen: str = ""


@dataclass
class Reading:
    """sockets: who has the unix socket with this inode, or the one that is connected to it. terminals, locks: who has
    one, in the order of the log. ghosts: deleted files that an image has, as they were called. names: of processes.
    """

    lines: List[Line] = field(default_factory=list)
    sockets: Dict[str, Holder] = field(default_factory=dict)
    terminals: List[Holder] = field(default_factory=list)
    locks: List[Holder] = field(default_factory=list)
    ghosts: List[str] = field(default_factory=list)
    names: Dict[int, str] = field(default_factory=dict)


def read(log: str) -> Reading:
    """Never raises, whatever stands there."""
    reader = _Reader()
    for raw in lines(log):
        found = _LINE.match(printable(raw[:LONGEST].replace("\t", " ").rstrip()))
        text = found.group("text").strip() if found else ""
        if found and text:
            own = found.group("pid")
            reader.take(text, own)
            task = reader.task if not own or int(own) == reader.task.pid else Holder(int(own))
            bare = not found.group("time") and not found.group("pie")
            seen = reader.bound.get(own, "") if own else reader.mapped
            reader.reading.lines.append(Line(found.group("level") or "", text, bare, task, seen))
    return reader.reading


class _Reader:
    """What the lines so far say about the ones to come."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.task = Holder()
        self.mapped = ""
        self.bound: Dict[str, str] = {}
        self._descriptor: Optional[int] = None
        # Those that wait for the path of their file, and whether its descriptor was told.
        self._unnamed: List[Tuple[List[Holder], bool]] = []

    def take(self, text: str, own: Optional[str]) -> None:
        """own: the process that says it, where it says who it is."""
        task = _TASK.match(text)
        if task or _BEHIND.match(text):
            self._turn(Holder(int(task.group(1)), task.group(2)) if task else Holder())
            return
        mapped = _MAP.match(text)
        if mapped:
            self.mapped = mapped.group(1)
        bound = _BOUND.match(text)
        if bound and own:
            self.bound[own] = f"{bound.group(2)} port {bound.group(1)}"
        ghost = _GHOST.match(text)
        if ghost:
            self.reading.ghosts.append(ghost.group(1))
        socket = _SOCKET.match(text)
        for inode in socket.groups() if socket else ():
            self.reading.sockets.setdefault(inode, Holder(self.task.pid, self.task.name, "", self._descriptor))
        self._take_file(text)

    def _turn(self, task: Holder) -> None:
        """To another process, or to none."""
        self.task = task
        self.mapped = ""
        self._descriptor = None
        self._unnamed.clear()
        if task.pid is not None:
            self.reading.names[task.pid] = task.name

    def _take_file(self, text: str) -> None:
        """The order is: lock, descriptor, terminal, path of the file."""
        file = _FILE.match(text)
        if not file:
            for pattern, holders in ((_TERMINAL, self.reading.terminals), (_LOCK, self.reading.locks)):
                if pattern.match(text):
                    holders.append(Holder(self.task.pid, self.task.name))
                    self._unnamed.append((holders, pattern is _TERMINAL))
        elif file.group(1):
            self._descriptor = int(file.group(1))
            self._unnamed = [(holders, True) for holders, told in self._unnamed if not told]
        else:
            for holders, _told in self._unnamed:
                holders[-1] = Holder(self.task.pid, self.task.name, file.group(3), self._descriptor)
            self._unnamed.clear()
