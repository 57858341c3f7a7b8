# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a process: frozen, and without a reading of anything."""

from __future__ import annotations

from typing import Mapping as MappingType
from typing import Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import CgroupSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

CONTROL = "/dev/nvidiactl"
UVM = "/dev/nvidia-uvm"
#: Name of the first process of a PID namespace that a tree was restored in.
NAMESPACE_INIT = "gpufleet-init"


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
    libraries: file names of the mapped libcuda, libnccl, libnvidia-ml, and of what profilers load into programs.
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
