# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /proc says about processes: who they are, and what they hold of the GPU.

Facts about signatures (which file, mapping or socket means what) were measured; docs/hazards.md and
docs/driver-findings.md name them. What may not be read is None and is named in `ProcessSnapshot.unreadable`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Iterable, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._peers import UNKNOWN, Holder, Peers, find_peers
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import (
    CONTROL,
    UVM,
    Identity,
    Mapping,
    ProcessSnapshot,
    ThreadSnapshot,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import may_matter, parse_status
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import (
    Found,
    Reader,
    is_gone,
    living,
    read_bytes,
    read_stat,
    read_text,
    tasks_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import natural

__all__ = [
    "CONTROL",
    "UVM",
    "Identity",
    "Mapping",
    "ProcessSnapshot",
    "ThreadSnapshot",
    "is_alive",
    "list_processes",
    "own_identity",
    "read_identity",
    "read_process",
    "restore_thread_id",
    "task_state",
    "thread_group",
]


def read_identity(pid: int) -> Optional[Identity]:
    """None: no such process, or it may not be seen. Zombies have one. A thread's id is answered like a process's: see
    `thread_group`. Raises OSError where the boot id can't be read."""
    stat = read_stat(f"/proc/{pid}/stat") if pid > 0 else None
    return None if stat is None else Identity(pid, stat.start_ticks, read_boot_id())


def own_identity() -> Identity:
    """Of the process that calls. Raises LookupError where it is not in /proc."""
    identity = read_identity(os.getpid())
    if identity is None:
        raise LookupError("this process is not in /proc")
    return identity


def is_alive(identity: Identity) -> bool:
    """The same process still, and not a zombie."""
    stat = read_stat(f"/proc/{identity.pid}/stat") if identity.pid > 0 else None
    if stat is None or stat.start_ticks != identity.start_ticks or read_boot_id() != identity.boot_id:
        return False
    return living(identity.pid, stat)[1].state not in ("Z", "X")


def task_state(pid: int, tid: int) -> str:
    """One letter: R S D T t Z X; "" when it is gone."""
    stat = read_stat(f"/proc/{pid}/task/{tid}/stat")
    return "" if stat is None else stat.state


def thread_group(pid: int) -> Optional[int]:
    """The process that a PID or thread id belongs to; None when there is none."""
    try:
        value = parse_status(read_text(f"/proc/{pid}/status")).get("Tgid", "")
    except OSError:
        return None
    return natural(value)


def restore_thread_id(pid: int, tid: int) -> Optional[int]:
    """The reader's id of the thread that the driver calls `tid`: for a process in another PID namespace the driver may
    tell the thread's id in there. None when the process has no such thread.

    Where the number fits one thread outside and another one inside, the one that CUDA named is taken.
    """
    try:
        tasks = tasks_of(pid)
    except OSError:
        return None
    fitting = []
    for task in tasks:
        try:
            inside = parse_status(read_text(f"/proc/{pid}/task/{task}/status")).get("NSpid", str(task)).split()
        except OSError:
            continue
        if task == tid or int(inside[-1]) == tid:
            fitting.append(task)
    if len(fitting) > 1:
        for task in fitting:
            stat = read_stat(f"/proc/{pid}/task/{task}/stat")
            if stat is not None and stat.name.startswith("cuda"):
                return task
    return tid if tid in fitting else fitting[0] if fitting else None


def _with_peers(found: Iterable[Found]) -> Tuple[ProcessSnapshot, ...]:
    everyone = list(found)
    peers = find_peers(
        [Holder(one.snapshot.pid, one.snapshot.name, one.inodes, one.table) for one in everyone if one.table]
    )
    return tuple(
        one.snapshot if one.snapshot.device_files is None else _joined(one, peers.get(one.snapshot.pid, UNKNOWN))
        for one in everyone
    )


def _joined(one: Found, peers: Peers) -> ProcessSnapshot:
    return replace(
        one.snapshot,
        tcp_peers=peers.tcp,
        tcp_remote=peers.remote,
        unix_peers=peers.unix,
        unix_peer_names=peers.unix_names,
    )


def _main_thread_ended(pid: int) -> bool:
    """Before the others did: then the process shows no mappings under its own number."""
    stat = read_stat(f"/proc/{pid}/stat")
    return stat is not None and stat.state == "Z" and stat.thread_count > 1


def read_process(pid: int) -> Optional[ProcessSnapshot]:
    """None: no such process. Peers of its sockets are found among CUDA processes only by `list_processes`."""
    found = Reader().read(pid)
    return None if found is None else _with_peers([found])[0]


def list_processes(pids: Iterable[int] = (), everything: bool = False) -> Tuple[ProcessSnapshot, ...]:
    """Every process that has to do with CUDA or is named in `pids`, by PID; in one pass over /proc. With `everything`,
    every process. Thread ids that are named are read, too (`is_thread`). Processes that are gone are left out.

    Descriptors are read only of processes that map libcuda or an NVIDIA device, are named, or may not be looked into.
    """
    named = set(pids)
    reader = Reader()
    found: List[Found] = []
    listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    for pid in sorted(listed | {pid for pid in named if pid > 0}):
        maps: Optional[bytes] = None
        try:
            maps = read_bytes(f"/proc/{pid}/maps")
        except OSError as error:
            if is_gone(error):
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
