# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what ties processes to the rest of the host. Only of processes that are meant: it takes more files than the one
pass over /proc that finds them. Of a file server nothing is asked, because one that is away never answers."""

from __future__ import annotations

import glob
import json
import os
import stat as modes
from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around import (
    Around,
    DeletedMapping,
    End,
    Member,
    OpenFile,
    OpenSocket,
    Parent,
    Ties,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around_parse import (
    FdInfo,
    Mounts,
    below,
    children_of,
    deleted_mappings,
    external_connections,
    is_network,
    parse_fdinfo,
    parse_mounts,
    rotated_from,
    strip_deleted,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot, read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import Stat, parse_maps
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_bytes, read_stat, read_text
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import place, units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._sockets import SocketTables, Table
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._units import read_units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import decoded

JOURNAL = "/run/systemd/journal/stdout"
IMAGES = frozenset(("dump",))
#: The other actions need nothing that is read here.
LOOKS = IMAGES | {"suspend"}


def look_around(snapshot: Snapshot, pids: Sequence[int], action: str) -> Snapshot:
    """The same snapshot with what an action ("suspend", "dump") needs to know around these processes. What is there
    already is not read again; processes that have ended are left out. Raises nothing."""
    if action not in LOOKS:
        return snapshot
    known = {one.pid: one for one in snapshot.around or ()}
    everyone = _Everyone()
    for process in (snapshot.process(pid) for pid in pids):
        if process is None:
            continue
        seen = known.get(process.pid)
        if seen is not None and (seen.ties is not None or action not in IMAGES):
            continue
        if read_identity(process.pid) != process.identity:
            known.pop(process.pid, None)
            continue
        around = _around(process) if seen is None else seen
        known[process.pid] = replace(around, ties=everyone.ties(process)) if action in IMAGES else around
    have = {unit.name for unit in snapshot.units}
    targets = [process for process in (snapshot.process(pid) for pid in known) if process is not None]
    wanted = {name for process in targets for name in units(process)} - have
    return replace(
        snapshot,
        around=tuple(known[pid] for pid in sorted(known)),
        units=(*snapshot.units, *read_units(wanted)),
    )


def _link(path: str) -> str:
    """ "" where it can't be read."""
    try:
        return decoded(os.readlink(path))
    except OSError:
        return ""


def _command(pid: int) -> Tuple[str, ...]:
    try:
        words = read_bytes(f"/proc/{pid}/cmdline").split(b"\0")
    except OSError:
        return ()
    return tuple(word.decode(errors="replace") for word in words if word)


def _around(process: ProcessSnapshot) -> Around:
    stat = read_stat(f"/proc/{process.pid}/stat")
    return Around(
        pid=process.pid,
        terminal=_terminal(process.pid, process.tty),
        foreground=stat is not None and stat.terminal_group == stat.group,
        parent=_parent(process.parent),
        private_mounts=_private_mounts(process.pid),
        probe=_probe(process),
    )


def _parent(pid: int) -> Optional[Parent]:
    stat = read_stat(f"/proc/{pid}/stat") if pid > 0 else None
    return None if stat is None else Parent(pid, stat.name, stat.session, _command(pid))


def _terminal(pid: int, tty: int) -> str:
    """Its device number in words, as drivers name them."""
    if not tty:
        return ""
    major, minor = os.major(tty), os.minor(tty)
    if 136 <= major <= 143:
        return f"/dev/pts/{(major - 136) * 256 + minor}"
    return f"/dev/tty{minor}" if major == 4 and minor < 64 else f"terminal {major}:{minor}"


def _private_mounts(pid: int) -> Optional[bool]:
    own = _link(f"/proc/{pid}/ns/mnt")
    if not own:
        return None
    return own not in (_link("/proc/self/ns/mnt"), _link("/proc/1/ns/mnt"))


def _probe(process: ProcessSnapshot) -> str:
    where = place(process)
    if where.container is None:
        return ""
    paths = " ".join(process.cgroup_paths)
    if "kubepods" in paths:
        return "unknown"
    if "libpod" in paths:
        return "podman" if glob.glob(f"/run/systemd/transient/{glob.escape(where.container)}*.timer") else "none"
    if "docker" in paths:
        return _docker_probe(where.container)
    return "none"


def _docker_probe(container: str) -> str:
    try:
        data = json.loads(read_bytes(f"/var/lib/docker/containers/{container}/config.v2.json"))
        config = data["Config"]
        test = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
        swarm = "com.docker.swarm.service.id" in (config.get("Labels") or {})
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return "unknown"
    if test[0] == "NONE":
        return "none"
    return "swarm" if swarm else "docker"


@dataclass
class _Opened:
    """What was found of the descriptors of a tree so far."""

    files: List[OpenFile] = field(default_factory=list)
    pipes: Dict[str, List[Tuple[int, int, bool]]] = field(default_factory=dict)
    sockets: Dict[int, List[Tuple[int, int]]] = field(default_factory=dict)
    rings: Set[str] = field(default_factory=set)
    devices: Dict[int, Optional[Tuple[str, ...]]] = field(default_factory=dict)
    unseen: List[str] = field(default_factory=list)


class _Everyone:
    """Trees among all processes of the host, whose parents are read once, if at all."""

    def __init__(self) -> None:
        self._known: Optional[Dict[int, Stat]] = None
        self._children: Dict[int, List[int]] = {}
        self._tables = SocketTables()
        self._mounts: Dict[str, Mounts] = {}

    @property
    def stats(self) -> Dict[int, Stat]:
        if self._known is None:
            self._known = {}
            for name in os.listdir("/proc"):
                stat = read_stat(f"/proc/{name}/stat") if name.isdigit() else None
                if stat is not None:
                    self._known[int(name)] = stat
            self._children = children_of({pid: stat.parent for pid, stat in self._known.items()})
        return self._known

    def ties(self, process: ProcessSnapshot) -> Ties:
        pids = below(process.pid, self._children) if process.pid in self.stats else ()
        opened = _Opened()
        mappings: List[DeletedMapping] = []
        for pid in pids:
            self._look(pid, opened, mappings)
        table = self._tables.of(f"/proc/{process.pid}", opened.sockets)
        connected = _connected(opened, table)
        return Ties(
            members=tuple(
                Member(pid, self.stats[pid].parent, self.stats[pid].name, opened.devices.get(pid)) for pid in pids
            ),
            unseen=tuple(opened.unseen),
            files=tuple(opened.files),
            mappings=tuple(mappings),
            pipes=self._pipes(opened, pids),
            unix_ends=None if connected is None else tuple(one for one in connected if one.name != JOURNAL),
            connections=() if table is None else external_connections(table.tcp, opened.sockets),
            journal=self._journal(process, opened, connected or ()),
            io_uring=tuple(sorted(opened.rings)),
            sockets=tuple(_sockets(opened.sockets, table)),
        )

    def _name(self, pid: int) -> str:
        return f"PID {pid} ({self.stats[pid].name})"

    def _look(self, pid: int, opened: _Opened, mappings: List[DeletedMapping]) -> None:
        if self.stats[pid].state in ("Z", "X"):
            opened.devices[pid] = ()
            return
        base = f"/proc/{pid}"
        try:
            numbers = sorted(int(name) for name in os.listdir(base + "/fd"))
            maps = read_text(base + "/maps")
        except OSError:
            if os.path.exists(base):
                opened.devices[pid] = None
                opened.unseen.append(self._name(pid))
            return
        mounts = self._mounts_of(pid)
        devices = {path for path, _start, _bytes in parse_maps(maps).devices}
        for number in numbers:
            target = _link(f"{base}/fd/{number}")
            if target.startswith("/dev/nvidia"):
                devices.add(target)
            elif target.startswith("pipe:["):
                writes = bool(self._fdinfo(pid, number).flags & os.O_ACCMODE)
                opened.pipes.setdefault(target, []).append((pid, number, writes))
            elif target.startswith("socket:["):
                opened.sockets.setdefault(int(target[8:-1]), []).append((pid, number))
            elif target == "anon_inode:[io_uring]":
                opened.rings.add(self._name(pid))
            elif _is_file(target):
                info = self._fdinfo(pid, number)
                one = _file(pid, f"descriptor {number}", target, mounts.by_id(info.mount), f"{base}/fd/{number}", info)
                if one is not None:
                    opened.files.append(one)
        opened.devices[pid] = tuple(sorted(devices))
        for what, name in (("working directory", "cwd"), ("program", "exe")):
            target = _link(f"{base}/{name}")
            if _is_file(target):
                one = _file(pid, what, target, mounts.by_path(strip_deleted(target)), f"{base}/{name}", None)
                if one is not None:
                    opened.files.append(one)
        program = strip_deleted(_link(f"{base}/exe"))
        mappings.extend(DeletedMapping(pid, path, count) for path, count in deleted_mappings(maps) if path != program)

    def _mounts_of(self, pid: int) -> Mounts:
        namespace = _link(f"/proc/{pid}/ns/mnt") or str(pid)
        if namespace not in self._mounts:
            try:
                self._mounts[namespace] = parse_mounts(read_text(f"/proc/{pid}/mountinfo"))
            except OSError:
                self._mounts[namespace] = Mounts({}, ())
        return self._mounts[namespace]

    @staticmethod
    def _fdinfo(pid: int, number: int) -> FdInfo:
        try:
            return parse_fdinfo(read_text(f"/proc/{pid}/fdinfo/{number}"))
        except OSError:
            return FdInfo()

    def _pipes(self, opened: _Opened, pids: Sequence[int]) -> Tuple[End, ...]:
        lone = {name: ends for name, ends in opened.pipes.items() if len({writes for _pid, _fd, writes in ends}) == 1}
        if not lone:
            return ()
        others = self._holders(lone, pids)
        return tuple(
            End(ends[0][0], ends[0][1], ends[0][2], holders=tuple(others.get(name, ())))
            for name, ends in sorted(lone.items())
        )

    def _holders(self, wanted: Iterable[str], pids: Sequence[int]) -> Dict[str, List[str]]:
        """Who else has these open, among the relatives of the tree: its session, its ancestors and their children."""
        targets = set(wanted)
        root = self.stats[pids[0]]
        near: Set[int] = {pid for pid, stat in self.stats.items() if stat.session == root.session}
        ancestor = root.parent
        while ancestor > 1 and ancestor in self.stats:
            near.add(ancestor)
            near.update(pid for pid, stat in self.stats.items() if stat.parent == ancestor)
            ancestor = self.stats[ancestor].parent
        found: Dict[str, List[str]] = {}
        for pid in sorted(near - set(pids)):
            try:
                numbers = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                continue
            for target in sorted({_link(f"/proc/{pid}/fd/{number}") for number in numbers} & targets):
                found.setdefault(target, []).append(self._name(pid))
        return found

    def _journal(self, process: ProcessSnapshot, opened: _Opened, connected: Sequence[End]) -> Tuple[str, ...]:
        """Descriptors that systemd's journal is at the other end of: by its socket's name, else by JOURNAL_STREAM."""
        found = {(one.pid, one.descriptor) for one in connected if one.name == JOURNAL}
        stream = (process.environment or {}).get("JOURNAL_STREAM", "").partition(":")[2]
        for inode, ends in opened.sockets.items():
            if stream and str(inode) == stream:
                found.update(ends)
        return tuple(f"{self._name(pid)} descriptor {number}" for pid, number in sorted(found))


def _sockets(opened: Mapping[int, Sequence[Tuple[int, int]]], table: Optional[Table]) -> Iterator[OpenSocket]:
    """One line for each socket, however many descriptors it has."""
    unix = {} if table is None else table.unix
    for pid, number in sorted(ends[0] for inode, ends in opened.items() if inode not in unix):
        try:
            name = os.getxattr(f"/proc/{pid}/fd/{number}", "system.sockprotoname")
        except FileNotFoundError:
            continue
        except OSError:
            name = b""
        protocol = name.rstrip(b"\0").decode(errors="replace")
        if not protocol.startswith(("UNIX", "NETLINK")):
            yield OpenSocket(pid, number, protocol)


def _is_file(target: str) -> bool:
    if not target.startswith("/") or target.startswith(("/memfd:", "/proc/", "/sys/", "/SYSV")):
        return False
    return not target.startswith("/dev/") or target.startswith("/dev/shm/")


def _file(pid: int, what: str, target: str, filesystem: str, link: str, info: Optional[FdInfo]) -> Optional[OpenFile]:
    path = strip_deleted(target)
    flags = 0 if info is None else info.flags
    writable = bool(flags & os.O_ACCMODE)
    size: Optional[int] = None
    links: Optional[int] = None
    deleted = path != target
    if not is_network(filesystem):
        try:
            seen = os.stat(link)
        except OSError:
            return None
        if not (modes.S_ISREG(seen.st_mode) or (info is None and modes.S_ISDIR(seen.st_mode))):
            return None
        size, links = seen.st_size, seen.st_nlink
        deleted = deleted or links == 0
    return OpenFile(
        pid=pid,
        what=what,
        path=path,
        filesystem=filesystem,
        size=size,
        links=links,
        deleted=deleted,
        writable=writable,
        rotated=writable and not deleted and _is_rotated(pid, path, filesystem),
        locks=() if info is None else info.locks,
    )


def _is_rotated(pid: int, path: str, filesystem: str) -> bool:
    """Its name says that it was rotated away, and there is a file by the name before."""
    before = rotated_from(path)
    return bool(before) and not is_network(filesystem) and os.path.exists(f"/proc/{pid}/root{before}")


def _connected(opened: _Opened, table: Optional[Table]) -> Optional[Tuple[End, ...]]:
    """Ends of unix sockets whose peer is not in the tree; None where the kernel does not tell peers."""
    if table is None or table.unix_peers is None:
        return None if any(True for inode in opened.sockets if table is None or inode in table.unix) else ()
    found = []
    for inode, ends in sorted(opened.sockets.items()):
        peer = table.unix_peers.get(inode)
        if peer and peer not in opened.sockets:
            found.append(End(ends[0][0], ends[0][1], True, table.unix.get(peer, "")))
    return tuple(found)
