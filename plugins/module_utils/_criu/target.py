# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of the host that an image is to be restored on, as far as this image is concerned."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.images import read_pstree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.options import SHELL_JOB
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tool import Criu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import HostSnapshot, read_host
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import thread_group
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import Stat
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_stat
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._targets import own_ancestors

#: The server, and since OpenSSH 9.8 sshd-session, which is one connection.
SSH = "sshd"
PROCESS, THREAD, ZOMBIE, GROUP, SESSION = "process", "thread", "zombie", "group", "session"


@dataclass(frozen=True)
class Holder:
    """Who has a number. kind: "process"; "zombie", which has ended and was not reaped; "thread" of PID; "group" or
    "session", the id of which it still is, for PID as one of their members. name, start_ticks, parent, parent_name: of
    PID. since: Unix time at which that began, 0.0 for unknown."""

    number: int
    kind: str
    pid: int
    name: str
    since: float
    start_ticks: int
    parent: int
    parent_name: str


@dataclass(frozen=True)
class Target:
    """criu: its version. holders: of the numbers that the image needs. files: path -> size in bytes, None where there
    is no regular file; only those that the image names. pid_max: PIDs are below; 0 for unknown. own: own_run()."""

    host: HostSnapshot
    gpus: Tuple[GpuSnapshot, ...]
    criu: Tuple[int, ...]
    holders: Tuple[Holder, ...]
    files: Mapping[str, Optional[int]]
    pid_max: int
    own: FrozenSet[int] = frozenset()


def read_target(manifest: Manifest, gpus: Sequence[GpuSnapshot], criu: Criu, directory: str = "") -> Target:
    """directory: of the image; it holds zombies as well, which the manifest does not name. Raises OSError where /proc
    can't be read, ImageError for an image that can't."""
    zombies = [task.pid for task in read_pstree(directory) if task.is_zombie] if directory else []
    return Target(
        host=read_host(),
        gpus=tuple(gpus),
        criu=criu.version,
        holders=read_holders(sorted({*numbers_of(manifest), *zombies})),
        files={one.path: _size(one.path) for one in manifest.files if is_checked(one.path, one.deleted)},
        pid_max=pid_max(),
        own=own_run(),
    )


def own_run() -> FrozenSet[int]:
    """PIDs that are gone once this run has ended and its connection is closed: this process, what it descends from, and
    whoever is in its session. Not the SSH server that listens for others as well. Raises OSError where /proc can't be
    read."""
    chain = {pid: read_stat(f"/proc/{pid}/stat") for pid in own_ancestors()}
    seen = {pid: one for pid, one in chain.items() if one is not None}
    above = {one.parent for one in seen.values() if one.name.startswith(SSH)}
    servers = {pid for pid in above if pid in seen and seen[pid].parent <= 1 and seen[pid].name.startswith(SSH)}
    return frozenset((set(seen) | _beside(os.getsid(0))) - servers)


def _beside(session: int) -> Set[int]:
    if session == 0:
        # Led from outside this PID namespace: so is every other such session, and the kernel's threads have none.
        return set()
    stats = {int(name): read_stat(f"/proc/{name}/stat") for name in os.listdir("/proc") if name.isdigit()}
    return {pid for pid, one in stats.items() if one is not None and one.session == session}


def is_checked(path: str, deleted: bool) -> bool:
    """Is it opened by its name at restore? What a process has open below /proc is of its own making, most often."""
    return not deleted and not path.startswith("/proc/")


def numbers_of(manifest: Manifest) -> Tuple[int, ...]:
    """Everything that CRIU needs to be free: PIDs, thread ids, and the ids of groups and sessions, for which it makes a
    process where their leader is not in the tree."""
    wanted: Set[int] = set()
    for member in manifest.tree:
        wanted.update((member.pid, *member.threads, member.group, member.session))
    root = manifest.tree[0]
    inside = set(manifest.pids)
    if SHELL_JOB in manifest.options and root.session != root.pid:
        # Those that the root has from outside become CRIU's own.
        wanted -= {root.session, root.group} - inside
    return tuple(sorted(number for number in wanted if number > 0))


def read_holders(numbers: Iterable[int]) -> Tuple[Holder, ...]:
    """Of those that are in use. Raises OSError where /proc can't be read."""
    wanted = tuple(numbers)
    boot = _boot_time()
    found: Dict[int, Holder] = {}
    for number in wanted:
        holder = _task(number, boot)
        if holder is not None:
            found[number] = holder
    left = set(wanted) - set(found)
    if left:
        found.update(_left_behind(left, boot))
    return tuple(found[number] for number in wanted if number in found)


def _task(number: int, boot: float) -> Optional[Holder]:
    seen = read_stat(f"/proc/{number}/stat")
    owner = thread_group(number)
    if seen is None or owner is None:
        return None
    if owner == number:
        return _holder(number, ZOMBIE if seen.state in ("Z", "X") else PROCESS, number, seen, boot)
    process = read_stat(f"/proc/{owner}/stat")
    return None if process is None else _holder(number, THREAD, owner, process, boot)


def _left_behind(numbers: Set[int], boot: float) -> Mapping[int, Holder]:
    """Ids of groups and sessions whose leader has ended: the kernel gives them to nobody else."""
    found: Dict[int, Holder] = {}
    for name in os.listdir("/proc"):
        seen = read_stat(f"/proc/{name}/stat") if name.isdigit() else None
        if seen is None:
            continue
        for number, kind in ((seen.session, SESSION), (seen.group, GROUP)):
            if number in numbers and number not in found:
                found[number] = _holder(number, kind, int(name), seen, boot)
    return found


def _holder(number: int, kind: str, pid: int, seen: Stat, boot: float) -> Holder:
    parent = read_stat(f"/proc/{seen.parent}/stat") if seen.parent else None
    since = boot + seen.start_ticks / os.sysconf("SC_CLK_TCK") if boot else 0.0
    name = "" if parent is None else parent.name
    return Holder(number, kind, pid, seen.name, since, seen.start_ticks, seen.parent, name)


def _boot_time() -> float:
    """Unix time, 0.0 for unknown."""
    with open("/proc/stat") as stream:
        words: List[str] = next((line.split() for line in stream if line.startswith("btime ")), [])
    return float(words[1]) if len(words) == 2 and words[1].isdigit() else 0.0


def pid_max() -> int:
    try:
        with open("/proc/sys/kernel/pid_max") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 0


def _size(path: str) -> Optional[int]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
