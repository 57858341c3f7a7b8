# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /proc says about processes: who they are, and what they hold of the GPU.

Facts about signatures (which file, mapping or socket means what) were measured; docs/hazards.md and
docs/driver-findings.md name them. What may not be read is None and is named in `ProcessSnapshot.unreadable`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Callable, Iterable, List, Optional, Tuple
from typing import Mapping as MappingType

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import (
    Cgroups,
    CgroupSnapshot,
    frozen,
    parse_membership,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._peers import UNKNOWN, Holder, Peers, find_peers
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import (
    Descriptors,
    Stat,
    may_matter,
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

CONTROL = "/dev/nvidiactl"
UVM = "/dev/nvidia-uvm"


@dataclass(frozen=True)
class Identity:
    """A process that can't be mistaken for another one. start_ticks: field 22 of /proc/PID/stat, clock ticks after
    boot, read from outside the process (one in a time namespace reads another number about itself)."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True)
class ThreadSnapshot:
    """state: one letter, as in /proc/PID/task/TID/stat."""

    tid: int
    name: str
    state: str


@dataclass(frozen=True)
class Mapping:
    """A mapped device. Sizes are bytes."""

    path: str
    start: int
    bytes: int


@dataclass(frozen=True)
class ProcessSnapshot:
    """One reading of one process. Sizes are bytes. What could not be read is None (or empty) and named in `unreadable`:
    "executable", "descriptors", "mappings", "environment", "limits", "cgroups", "threads", "sockets".

    thread_group: differs from identity.pid where the number that was asked for is a thread's.
    parent, group, session: PIDs in the reader's namespace. tty: device number of the terminal, 0 for none.
    uid, gid: real. executable: "" where unknown. command: its argument list. state: one letter.
    pending_signals: mask of SigPnd | ShdPnd, bit 0 is signal 1.
    data_limit_bytes, address_limit_bytes: soft RLIMIT_DATA and RLIMIT_AS, None is unlimited (see `unreadable`).
    data_bytes, virtual_bytes: VmData and VmSize, what those limits are compared with.
    cgroup_paths: every path in /proc/PID/cgroup. frozen: by any of its groups; None is unknown.
    device_files: a path per open descriptor of /dev/nvidia*, duplicates kept.
    libraries: file names of the mapped libcuda, libnccl and libnvidia-ml.
    uvm_socket: it owns the socket by which CUDA shares its memory manager; stays while suspended.
    unix_names: of bound unix sockets that it has open. unix_peers: (PID, its name) of processes of this list at the
    other end of its unix sockets; unix_peer_names: what the other ends are bound to. Both are known of the reader's
    network namespace only.
    tcp_peers: PIDs of other processes at the other end of its TCP connections on this host.
    tcp_remote: "local port address:port" of its connections to other hosts.
    anon_inodes: kinds, "[eventfd]", sorted, duplicates kept. shm_files: below /dev/shm, open or mapped.
    lone_pipes: pipes of which it holds one end only.
    environment: only the names in ENVIRONMENT, as of its last exec.
    """

    identity: Identity
    thread_group: int
    parent: int
    group: int
    session: int
    tty: int
    uid: int
    gid: int
    name: str
    executable: str
    command: Tuple[str, ...]
    state: str
    tracer_pid: int
    threads: Tuple[ThreadSnapshot, ...]
    pid_namespace: str
    pids_in_namespaces: Tuple[int, ...]
    pending_signals: int
    rss_anon_bytes: int
    data_bytes: int
    virtual_bytes: int
    data_limit_bytes: Optional[int]
    address_limit_bytes: Optional[int]
    cgroups: Tuple[CgroupSnapshot, ...]
    cgroup_paths: Tuple[str, ...]
    frozen: Optional[bool]
    device_files: Optional[Tuple[str, ...]]
    device_mappings: Optional[Tuple[Mapping, ...]]
    libraries: Optional[Tuple[str, ...]]
    uvm_socket: Optional[bool]
    unix_names: Optional[Tuple[str, ...]]
    unix_peers: Optional[Tuple[Tuple[int, str], ...]]
    unix_peer_names: Optional[Tuple[str, ...]]
    tcp_peers: Optional[Tuple[int, ...]]
    tcp_remote: Optional[Tuple[str, ...]]
    anon_inodes: Optional[Tuple[str, ...]]
    shm_files: Optional[Tuple[str, ...]]
    lone_pipes: Optional[int]
    environment: Optional[MappingType[str, str]]
    unreadable: Tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def is_thread(self) -> bool:
        """The number is a thread's, not a process's."""
        return self.thread_group != self.identity.pid

    @property
    def is_zombie(self) -> bool:
        return self.state in ("Z", "X")

    @property
    def uvm_mappings(self) -> Optional[Tuple[Mapping, ...]]:
        """Mappings of the memory manager's node, its tools node excluded."""
        if self.device_mappings is None:
            return None
        return tuple(one for one in self.device_mappings if one.path == UVM)

    @property
    def has_devices(self) -> Optional[bool]:
        """Holds an NVIDIA device, open or mapped. /dev/nvidiactl open by itself does not count: that is how exported
        memory stays open in a suspended process."""
        if self.device_mappings or any(path != CONTROL for path in self.device_files or ()):
            return True
        return None if self.device_mappings is None or self.device_files is None else False

    @property
    def looks_suspended(self) -> Optional[bool]:
        """A CUDA process that holds no device: what a checkpointed one looks like."""
        if self.uvm_socket is False:
            return False
        holds = self.has_devices
        if holds:
            return False
        return None if holds is None or self.uvm_socket is None else True

    @property
    def may_be_cuda(self) -> Optional[bool]:
        """Has CUDA in use: the memory manager's socket of its own, or its node mapped. A forked child inherits
        descriptors and mappings of the GPU, but neither of these."""
        if self.uvm_socket or self.uvm_mappings:
            return True
        return None if self.uvm_socket is None or self.device_mappings is None else False


def _bytes(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def _text(path: str) -> str:
    return _bytes(path).decode(errors="replace")


def _stat(path: str) -> Optional[Stat]:
    try:
        return parse_stat(_text(path))
    except OSError:
        return None


def _tasks(pid: int) -> Tuple[int, ...]:
    """Raises OSError."""
    return tuple(sorted(int(name) for name in os.listdir(f"/proc/{pid}/task")))


def _living(pid: int, stat: Stat) -> Tuple[str, Stat]:
    """The directory in /proc to read the process from, and its state: its own, or a living thread's where the main
    thread has ended before the others, because a zombie has no memory and no descriptors to show."""
    base = f"/proc/{pid}"
    if stat.state in ("Z", "X") and stat.thread_count > 1:
        try:
            tasks = _tasks(pid)
        except OSError:
            return base, stat
        for tid in tasks:
            other = _stat(f"{base}/task/{tid}/stat")
            if other is not None and other.state not in ("Z", "X"):
                return f"{base}/task/{tid}", replace(stat, state=other.state)
    return base, stat


def read_identity(pid: int) -> Optional[Identity]:
    """None: no such process, or it may not be seen. Zombies have one. A thread's id is answered like a process's: see
    `thread_group`. Raises OSError where the boot id can't be read."""
    stat = _stat(f"/proc/{pid}/stat") if pid > 0 else None
    return None if stat is None else Identity(pid, stat.start_ticks, read_boot_id())


def is_alive(identity: Identity) -> bool:
    """The same process still, and not a zombie."""
    stat = _stat(f"/proc/{identity.pid}/stat") if identity.pid > 0 else None
    if stat is None or stat.start_ticks != identity.start_ticks or read_boot_id() != identity.boot_id:
        return False
    return _living(identity.pid, stat)[1].state not in ("Z", "X")


def task_state(pid: int, tid: int) -> str:
    """One letter: R S D T t Z X; "" when it is gone."""
    stat = _stat(f"/proc/{pid}/task/{tid}/stat")
    return "" if stat is None else stat.state


def thread_group(pid: int) -> Optional[int]:
    """The process that a PID or thread id belongs to; None when there is none."""
    try:
        value = parse_status(_text(f"/proc/{pid}/status")).get("Tgid", "")
    except OSError:
        return None
    return int(value) if value.isdigit() else None


def restore_thread_id(pid: int, tid: int) -> Optional[int]:
    """The reader's id of the thread that the driver calls `tid`: for a process in another PID namespace the driver may
    tell the thread's id in there. None when the process has no such thread.

    Where the number fits one thread outside and another one inside, the one that CUDA named is taken.
    """
    try:
        tasks = _tasks(pid)
    except OSError:
        return None
    fitting = []
    for task in tasks:
        try:
            inside = parse_status(_text(f"/proc/{pid}/task/{task}/status")).get("NSpid", str(task)).split()
        except OSError:
            continue
        if task == tid or int(inside[-1]) == tid:
            fitting.append(task)
    if len(fitting) > 1:
        for task in fitting:
            stat = _stat(f"/proc/{pid}/task/{task}/stat")
            if stat is not None and stat.name.startswith("cuda"):
                return task
    return tid if tid in fitting else fitting[0] if fitting else None


def _is_gone(error: OSError) -> bool:
    return isinstance(error, (FileNotFoundError, ProcessLookupError))


@dataclass(frozen=True)
class _Found:
    """A process, and what is needed to find its peers once all are read."""

    snapshot: ProcessSnapshot
    inodes: Tuple[int, ...]
    table: Optional[Table]


class _Reader:
    """One pass. Reads each control group and each network namespace once."""

    def __init__(self) -> None:
        self.boot_id = read_boot_id()
        self.cgroups = Cgroups()
        self.tables = SocketTables()

    def read(self, pid: int, maps: Optional[bytes] = None) -> Optional[_Found]:
        """None: it is gone. maps: /proc/PID/maps where it was read already."""
        for _attempt in range(3):
            try:
                return self._read(pid, maps)
            except OSError as error:
                if not _is_gone(error):
                    raise
            if not os.path.exists(f"/proc/{pid}"):
                break
            maps = None  # a thread ended, not the process
        return None

    def _read(self, pid: int, maps: Optional[bytes]) -> Optional[_Found]:
        base = f"/proc/{pid}"
        missing: List[str] = []

        def attempt(field: str, read: Callable[[], bytes]) -> Optional[bytes]:
            try:
                return read()
            except OSError as error:
                if _is_gone(error) and not os.path.exists(base):
                    raise
                missing.append(field)
                return None

        first = parse_stat(_text(base + "/stat"))
        if first is None:
            return None
        base, stat = _living(pid, first)
        if base != f"/proc/{pid}":
            maps = None
        status = parse_status(_text(base + "/status"))
        zombie = stat.state in ("Z", "X")
        bare = zombie or stat.kernel_thread
        executable = "" if bare else self._executable(base, missing)
        command = b"" if bare else attempt("command", lambda: _bytes(base + "/cmdline")) or b""
        limits = attempt("limits", lambda: _bytes(base + "/limits"))
        limit = parse_limits((limits or b"").decode(errors="replace"))
        membership = attempt("cgroups", lambda: _bytes(base + "/cgroup"))
        lines = parse_membership((membership or b"").decode(errors="replace"))
        groups = self.cgroups.of(lines)
        environment = b"" if bare else attempt("environment", lambda: _bytes(base + "/environ"))
        if bare:
            maps = b""
        elif maps is None:
            maps = attempt("mappings", lambda: _bytes(base + "/maps"))
        mapped = None if maps is None else parse_maps(maps.decode(errors="replace"))
        opened = sort_descriptors(()) if bare else self._descriptors(base, missing)
        table = None if bare else self.tables.of(base)
        if table is None and not bare:
            missing.append("sockets")
        pids = tuple(int(word) for word in status.get("NSpid", str(pid)).split())
        uvm_socket, names = self._unix(opened, table, pids, bare)
        ids = status.get("Uid", "-1").split(), status.get("Gid", "-1").split()
        snapshot = ProcessSnapshot(
            identity=Identity(pid, stat.start_ticks, self.boot_id),
            thread_group=int(status.get("Tgid", pid)),
            parent=stat.parent,
            group=stat.group,
            session=stat.session,
            tty=stat.tty,
            uid=int(ids[0][0]),
            gid=int(ids[1][0]),
            name=stat.name,
            executable=executable,
            command=tuple(word.decode(errors="replace") for word in command.split(b"\0")[:-1]),
            state=stat.state,
            tracer_pid=int(status.get("TracerPid", "0")),
            threads=self._threads(pid, missing),
            pid_namespace=self._namespace(base),
            pids_in_namespaces=pids,
            pending_signals=int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16),
            rss_anon_bytes=_kib(status, "RssAnon"),
            data_bytes=_kib(status, "VmData"),
            virtual_bytes=_kib(status, "VmSize"),
            data_limit_bytes=limit.get("Max data size"),
            address_limit_bytes=limit.get("Max address space"),
            cgroups=groups,
            cgroup_paths=tuple(sorted({path for _hierarchy, path in lines})),
            frozen=None if membership is None else self._frozen(base, stat, groups),
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
            environment=None if environment is None else parse_environment(environment),
            unreadable=tuple(missing),
        )
        again = _stat(f"/proc/{pid}/stat")
        if again is None or again.start_ticks != stat.start_ticks:
            return None  # another process by now
        return _Found(snapshot, () if opened is None else opened.inodes, table)

    @staticmethod
    def _frozen(base: str, stat: Stat, groups: Tuple[CgroupSnapshot, ...]) -> Optional[bool]:
        """A group that can't be seen may freeze it; then the place in the kernel where it waits tells."""
        seen = frozen(groups)
        if seen is not None:
            return seen
        try:
            return waits_in_freezer(stat.state, _text(base + "/wchan"))
        except OSError:
            return None

    @staticmethod
    def _executable(base: str, missing: List[str]) -> str:
        try:
            return os.readlink(base + "/exe")
        except OSError as error:
            if not _is_gone(error):
                missing.append("executable")
            return ""

    @staticmethod
    def _namespace(base: str) -> str:
        try:
            return os.readlink(base + "/ns/pid").partition("[")[2].rstrip("]")
        except OSError:
            return ""

    @staticmethod
    def _threads(pid: int, missing: List[str]) -> Tuple[ThreadSnapshot, ...]:
        try:
            tasks = _tasks(pid)
        except OSError:
            missing.append("threads")
            return ()
        found = []
        for tid in tasks:
            stat = _stat(f"/proc/{pid}/task/{tid}/stat")
            if stat is not None:
                found.append(ThreadSnapshot(tid, stat.name, stat.state))
        return tuple(found)

    @staticmethod
    def _descriptors(base: str, missing: List[str]) -> Optional[Descriptors]:
        try:
            names = os.listdir(base + "/fd")
        except OSError:
            missing.append("descriptors")
            return None
        targets = []
        for name in names:
            try:
                targets.append(os.readlink(f"{base}/fd/{name}"))
            except FileNotFoundError:
                continue  # closed in between
            except OSError:
                missing.append("descriptors")
                return None
        return sort_descriptors(targets)

    @staticmethod
    def _unix(
        opened: Optional[Descriptors], table: Optional[Table], pids: Tuple[int, ...], bare: bool
    ) -> Tuple[Optional[bool], Optional[Tuple[str, ...]]]:
        if bare:
            return False, ()
        if table is None:
            return None, None
        if opened is None:
            # Whose a socket is can't be seen, but CUDA's names its owner.
            return owns_uvm_socket(table.unix.values(), pids), None
        names = tuple(sorted({table.unix[inode] for inode in opened.inodes if table.unix.get(inode)}))
        return owns_uvm_socket(names, pids), names


def _kib(status: MappingType[str, str], name: str) -> int:
    """Bytes of a line of /proc/PID/status; 0 where there is none (a kernel thread, a zombie)."""
    word = status.get(name, "0").partition(" ")[0]
    return int(word) * 1024


def _with_peers(found: Iterable[_Found]) -> Tuple[ProcessSnapshot, ...]:
    everyone = list(found)
    peers = find_peers(
        [Holder(one.snapshot.pid, one.snapshot.name, one.inodes, one.table) for one in everyone if one.table]
    )
    return tuple(
        one.snapshot if one.snapshot.device_files is None else _joined(one, peers.get(one.snapshot.pid, UNKNOWN))
        for one in everyone
    )


def _joined(one: _Found, peers: Peers) -> ProcessSnapshot:
    return replace(
        one.snapshot,
        tcp_peers=peers.tcp,
        tcp_remote=peers.remote,
        unix_peers=peers.unix,
        unix_peer_names=peers.unix_names,
    )


def _main_thread_ended(pid: int) -> bool:
    """Before the others did: then the process shows no mappings under its own number."""
    stat = _stat(f"/proc/{pid}/stat")
    return stat is not None and stat.state == "Z" and stat.thread_count > 1


def read_process(pid: int) -> Optional[ProcessSnapshot]:
    """None: no such process. Peers of its sockets are found among CUDA processes only by `list_processes`."""
    found = _Reader().read(pid)
    return None if found is None else _with_peers([found])[0]


def list_processes(pids: Iterable[int] = (), everything: bool = False) -> Tuple[ProcessSnapshot, ...]:
    """Every process that has to do with CUDA or is named in `pids`, by PID; in one pass over /proc. With `everything`,
    every process. Thread ids that are named are read, too (`is_thread`). Processes that are gone are left out.

    Descriptors are read only of processes that map libcuda or an NVIDIA device, are named, or may not be looked into.
    """
    named = set(pids)
    reader = _Reader()
    found: List[_Found] = []
    listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    for pid in sorted(listed | {pid for pid in named if pid > 0}):
        maps: Optional[bytes] = None
        try:
            maps = _bytes(f"/proc/{pid}/maps")
        except OSError as error:
            if _is_gone(error):
                continue
        if not everything and pid not in named and maps and not may_matter(maps):
            continue
        if not everything and pid not in named and maps == b"" and not _main_thread_ended(pid):
            continue
        one = reader.read(pid, maps)
        if one is None:
            continue
        wanted = everything or pid in named or one.snapshot.may_be_cuda or one.snapshot.has_devices
        if wanted or one.snapshot.libraries or (maps and b"nvidia-cuda-mps" in maps):
            found.append(one)
    return _with_peers(found)
