# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads processes in one pass over /proc. Control groups and tables of sockets are read once for all of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import (
    Cgroups,
    CgroupSnapshot,
    frozen,
    parse_membership,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import (
    Identity,
    Mapping,
    ProcessSnapshot,
    ThreadSnapshot,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import (
    Descriptors,
    Stat,
    owns_uvm_socket,
    parse_environment,
    parse_limits,
    parse_maps,
    parse_stat,
    parse_status,
    sort_descriptors,
    waits_in_freezer,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._sockets import SocketTables, Table
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import decoded

_PIECE = 1 << 16


def read_bytes(path: str) -> bytes:
    """A file of /proc as a whole. Without a buffered stream, which costs more than such a file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(descriptor, _PIECE)
        while piece:
            piece = os.read(descriptor, _PIECE)
            data += piece
        return data
    finally:
        os.close(descriptor)


def read_text(path: str) -> str:
    return read_bytes(path).decode(errors="replace")


def read_stat(path: str) -> Optional[Stat]:
    """None: it is gone, or may not be seen."""
    try:
        return parse_stat(read_text(path))
    except OSError:
        return None


def tasks_of(pid: int) -> Tuple[int, ...]:
    """Thread ids. Raises OSError."""
    return tuple(sorted(int(name) for name in os.listdir(f"/proc/{pid}/task")))


def is_gone(error: OSError) -> bool:
    return isinstance(error, (FileNotFoundError, ProcessLookupError))


def living(pid: int, stat: Stat) -> Tuple[str, Stat]:
    """The directory in /proc to read the process from, and its state: its own, or a living thread's where the main
    thread has ended before the others, because a zombie has no memory and no descriptors to show."""
    base = f"/proc/{pid}"
    if stat.state in ("Z", "X") and stat.thread_count > 1:
        try:
            tasks = tasks_of(pid)
        except OSError:
            return base, stat
        for tid in tasks:
            other = read_stat(f"{base}/task/{tid}/stat")
            if other is not None and other.state not in ("Z", "X"):
                return f"{base}/task/{tid}", replace(stat, state=other.state)
    return base, stat


@dataclass(frozen=True)
class Found:
    """A process, and what is needed to find its peers once all are read. table: None where it may not be read."""

    snapshot: ProcessSnapshot
    inodes: Tuple[int, ...]
    table: Optional[Table]


@dataclass
class _Files:
    """Reads the files of one process. missing: names of what may not be read."""

    base: str
    missing: List[str] = field(default_factory=list)

    def attempt(self, name: str, read: Callable[[], bytes]) -> Optional[bytes]:
        """None: it may not be read. Raises OSError where the process is gone."""
        try:
            return read()
        except OSError as error:
            if is_gone(error) and not os.path.exists(self.base):
                raise
            self.missing.append(name)
            return None

    def content(self, name: str, field_name: str) -> Optional[bytes]:
        return self.attempt(field_name, lambda: read_bytes(f"{self.base}/{name}"))

    def text(self, name: str, field_name: str) -> Optional[str]:
        data = self.content(name, field_name)
        return None if data is None else data.decode(errors="replace")

    def executable(self) -> str:
        try:
            return decoded(os.readlink(self.base + "/exe"))
        except OSError as error:
            if not is_gone(error):
                self.missing.append("executable")
            return ""

    def pid_namespace(self) -> str:
        try:
            return os.readlink(self.base + "/ns/pid").partition("[")[2].rstrip("]")
        except OSError:
            return ""

    def descriptors(self) -> Optional[Descriptors]:
        try:
            names = os.listdir(self.base + "/fd")
        except OSError:
            self.missing.append("descriptors")
            return None
        targets, directory = [], self.base + "/fd/"
        for name in names:
            try:
                targets.append(decoded(os.readlink(directory + name)))
            except FileNotFoundError:
                continue  # closed in between
            except OSError:
                self.missing.append("descriptors")
                return None
        return sort_descriptors(targets)

    def threads(self, pid: int) -> Tuple[ThreadSnapshot, ...]:
        try:
            tasks = tasks_of(pid)
        except OSError:
            self.missing.append("threads")
            return ()
        found = []
        for tid in tasks:
            stat = read_stat(f"/proc/{pid}/task/{tid}/stat")
            if stat is not None:
                found.append(ThreadSnapshot(tid, stat.name, stat.state))
        return tuple(found)

    def frozen(self, stat: Stat, groups: Tuple[CgroupSnapshot, ...]) -> Optional[bool]:
        """A group that can't be seen may freeze it; then the place in the kernel where it waits tells."""
        seen = frozen(groups)
        if seen is not None:
            return seen
        try:
            return waits_in_freezer(stat.state, read_text(self.base + "/wchan"))
        except OSError:
            return None


@dataclass(frozen=True)
class _Held:
    """What a process holds; None is unknown."""

    maps: Optional[bytes]
    opened: Optional[Descriptors]
    environment: Optional[bytes]
    command: bytes
    executable: str
    table: Optional[Table]


#: Of a zombie or a kernel thread: it can hold nothing, and its files can't be read.
_NOTHING = _Held(b"", sort_descriptors(()), b"", b"", "", None)


class Reader:
    """One pass. Raises OSError where /proc is not mounted."""

    def __init__(self) -> None:
        self._boot_id = read_boot_id()
        self._cgroups = Cgroups()
        self._tables = SocketTables()

    def read(self, pid: int, maps: Optional[bytes] = None) -> Optional[Found]:
        """None: it is gone. maps: /proc/PID/maps where it was read already."""
        for _attempt in range(3):
            try:
                return self._read(pid, maps)
            except OSError as error:
                if not is_gone(error):
                    raise
            if not os.path.exists(f"/proc/{pid}"):
                break
            maps = None  # a thread ended, not the process
        return None

    def _read(self, pid: int, maps: Optional[bytes]) -> Optional[Found]:
        first = parse_stat(read_text(f"/proc/{pid}/stat"))
        if first is None:
            return None
        base, stat = living(pid, first)
        files = _Files(base)
        status = parse_status(read_text(base + "/status"))
        bare = stat.state in ("Z", "X") or stat.kernel_thread
        held = _NOTHING if bare else self._held(files, maps if base == f"/proc/{pid}" else None)
        if held.table is None and not bare:
            files.missing.append("sockets")
        snapshot = self._snapshot(pid, stat, status, files, held, bare)
        again = read_stat(f"/proc/{pid}/stat")
        if again is None or again.start_ticks != stat.start_ticks:
            return None  # another process by now
        return Found(snapshot, () if held.opened is None else held.opened.inodes, held.table)

    def _held(self, files: _Files, maps: Optional[bytes]) -> _Held:
        mapped, opened = files.content("maps", "mappings") if maps is None else maps, files.descriptors()
        return _Held(
            maps=mapped,
            opened=opened,
            environment=files.content("environ", "environment"),
            command=files.content("cmdline", "command") or b"",
            executable=files.executable(),
            table=self._tables.of(files.base, () if opened is None else opened.inodes),
        )

    def _snapshot(
        self, pid: int, stat: Stat, status: Dict[str, str], files: _Files, held: _Held, bare: bool
    ) -> ProcessSnapshot:
        limits = parse_limits(files.text("limits", "limits") or "")
        membership = files.text("cgroup", "cgroups")
        lines = parse_membership(membership or "")
        groups = self._cgroups.of(lines)
        mapped = None if held.maps is None else parse_maps(held.maps.decode(errors="replace"))
        opened = held.opened
        pids = tuple(int(word) for word in status.get("NSpid", str(pid)).split())
        uvm_socket, names = (False, ()) if bare else _unix(opened, held.table, pids)
        return ProcessSnapshot(
            identity=Identity(pid, stat.start_ticks, self._boot_id),
            thread_group=int(status.get("Tgid", pid)),
            parent=stat.parent,
            group=stat.group,
            session=stat.session,
            tty=stat.tty,
            uid=_first_id(status, "Uid"),
            gid=_first_id(status, "Gid"),
            name=stat.name,
            executable=held.executable,
            command=tuple(word.decode(errors="replace") for word in held.command.split(b"\0")[:-1]),
            state=stat.state,
            tracer_pid=int(status.get("TracerPid", "0")),
            threads=files.threads(pid),
            pid_namespace=files.pid_namespace(),
            pids_in_namespaces=pids,
            pending_signals=int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16),
            rss_anon_bytes=_kib(status, "RssAnon"),
            data_bytes=_kib(status, "VmData"),
            virtual_bytes=_kib(status, "VmSize"),
            data_limit_bytes=limits.get("Max data size"),
            address_limit_bytes=limits.get("Max address space"),
            cgroups=groups,
            cgroup_paths=tuple(sorted({path for _hierarchy, path in lines})),
            frozen=None if membership is None else files.frozen(stat, groups),
            device_files=None if opened is None else opened.devices,
            device_mappings=None if mapped is None else tuple(Mapping(*one) for one in mapped.devices),
            libraries=None if mapped is None else mapped.libraries,
            uvm_socket=uvm_socket,
            unix_names=names,
            unix_peers=None,
            unix_peer_names=None,
            tcp_peers=None,
            tcp_remote=None,
            anon_inodes=None if opened is None else opened.anonymous,
            shm_files=None
            if opened is None or mapped is None
            else tuple(sorted({*opened.shm_files, *mapped.shm_files})),
            lone_pipes=None if opened is None else opened.lone_pipes,
            environment=None if held.environment is None else parse_environment(held.environment),
            unreadable=tuple(files.missing),
        )


def _unix(
    opened: Optional[Descriptors], table: Optional[Table], pids: Tuple[int, ...]
) -> Tuple[Optional[bool], Optional[Tuple[str, ...]]]:
    """Does it own the memory manager's socket, and the names of all that it has open."""
    if table is None:
        return None, None
    if opened is None:
        # Whose a socket is can't be seen, but CUDA's names its owner.
        return owns_uvm_socket(table.unix.values(), pids), None
    names = tuple(sorted({table.unix[inode] for inode in opened.inodes if table.unix.get(inode)}))
    return owns_uvm_socket(names, pids), names


def _first_id(status: Dict[str, str], name: str) -> int:
    """The real one of "Uid" or "Gid"; -1 where the line is missing."""
    return int(status.get(name, "-1").split()[0])


def _kib(status: Dict[str, str], name: str) -> int:
    """Bytes of a line of /proc/PID/status; 0 where there is none (a kernel thread, a zombie)."""
    return int(status.get(name, "0").partition(" ")[0]) * 1024
