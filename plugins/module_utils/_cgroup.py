# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The control groups of a process and all their ancestors: memory limits, what is used, frozen or not.

Versions 1, 2 and both side by side. Seen from a cgroup namespace, ancestors above its root can't be read; the topmost
snapshot then says so (`hidden_ancestors`), so that nobody takes "no limit seen" for "no limit".
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, natural

# In version 1 "no limit" is the largest count of pages that fits.
_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class CgroupSnapshot:
    """One control group. Sizes are bytes.

    version: 1 or 2. hierarchy: "" for version 2, else its controllers ("memory", "freezer", "cpu,cpuacct").
    path: as /proc/PID/cgroup names it to the reader. directory: where it is mounted, "" where it is not.
    memory_max, memory_high: None is no limit, if the name is not in `unreadable` (version 1 has no memory.high).
    memory_current: what is charged to it, page cache included; None where memory is not accounted.
    reclaimable: page cache (and slab) that the kernel takes back before it kills.
    frozen: frozen, or being frozen; None is unknown.
    hidden_ancestors: the topmost that can be seen, and not the root of the hierarchy.
    unreadable: names of the fields that could not be read.
    """

    version: int
    hierarchy: str
    path: str
    directory: str
    memory_max: Optional[int] = None
    memory_high: Optional[int] = None
    memory_current: Optional[int] = None
    reclaimable: Optional[int] = None
    frozen: Optional[bool] = False
    hidden_ancestors: bool = False
    unreadable: Tuple[str, ...] = ()

    @property
    def accounts_memory(self) -> bool:
        return self.memory_current is not None or "memory" in self.unreadable


@dataclass(frozen=True)
class Mount:
    """Of a hierarchy. root: the group that appears at `point`, as the reader's namespace names it."""

    version: int
    controllers: Tuple[str, ...]
    root: str
    point: str


def _unescape(text: str) -> str:
    """Undoes \\040 and the like of /proc/*/mountinfo."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def parse_mounts(text: str) -> Tuple[Mount, ...]:
    """The cgroup mounts in /proc/self/mountinfo."""
    found = []
    for line in kernel_lines(text):
        left, separator, right = line.partition(" - ")
        first, last = left.split(" "), right.split(" ")
        if not separator or len(first) < 5 or len(last) < 3 or last[0] not in ("cgroup", "cgroup2"):
            continue
        root, point = _unescape(first[3]), _unescape(first[4])
        if last[0] == "cgroup2":
            found.append(Mount(2, (), root, point))
        else:
            found.append(Mount(1, tuple(last[2].split(",")), root, point))
    return tuple(found)


def parse_membership(text: str) -> Tuple[Tuple[str, str], ...]:
    """(hierarchy, path) of each line of /proc/PID/cgroup; the hierarchy of version 2 is ""."""
    found = []
    for line in kernel_lines(text):
        parts = line.split(":", 2)
        if len(parts) == 3:
            path = parts[2]
            suffix = " (deleted)"
            found.append((parts[1], path[: -len(suffix)] if path.endswith(suffix) else path))
    return tuple(found)


def below(path: str, root: str) -> Optional[Tuple[str, ...]]:
    """The names that lead from `root` to `path`; None where `path` is not below it."""
    names = [name for name in path.split("/") if name]
    above = [name for name in root.split("/") if name]
    if names[: len(above)] != above or ".." in names[len(above) :]:
        return None
    return tuple(names[len(above) :])


def parse_limit(text: str) -> Optional[int]:
    """Bytes, or None for "max"; 0 for what no kernel writes, so that it is not taken for no limit."""
    word = text.strip()
    value = natural(word) or 0
    return None if word == "max" or value >= _UNLIMITED else value


def parse_stat(text: str) -> Dict[str, int]:
    """memory.stat."""
    found = {}
    for line in kernel_lines(text):
        parts = line.split()
        value = natural(parts[1]) if len(parts) == 2 else None
        if value is not None:
            found[parts[0]] = value
    return found


def reclaimable_of(version: int, stat: Dict[str, int]) -> int:
    """shmem and tmpfs are in "file", but on the lists of anonymous memory: they don't count."""
    if version == 1:
        return stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    return stat.get("inactive_file", 0) + stat.get("active_file", 0) + stat.get("slab_reclaimable", 0)


class _Files:
    """Reads the files of one group, and remembers what it was not let read."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.failed: List[str] = []

    def text(self, name: str, field: str) -> Optional[str]:
        """None: not there, or (then `failed` says so) not readable."""
        try:
            with open(os.path.join(self.directory, name)) as stream:
                return stream.read()
        except FileNotFoundError:
            return None
        except OSError:
            if field not in self.failed:
                self.failed.append(field)
            return None

    def has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.directory, name))


class Cgroups:
    """Reads control groups; each only once, however many processes are in it."""

    def __init__(self, mounts: Optional[Tuple[Mount, ...]] = None) -> None:
        """mounts: those of the caller where not given. Raises OSError where /proc is not mounted."""
        if mounts is None:
            with open("/proc/self/mountinfo", errors="surrogateescape") as stream:
                mounts = parse_mounts(stream.read())
        self._mounts = mounts
        self._known: Dict[str, CgroupSnapshot] = {}

    def of(self, membership: Tuple[Tuple[str, str], ...]) -> Tuple[CgroupSnapshot, ...]:
        """Of a process with this membership: each hierarchy that accounts memory or freezes, from the group up."""
        found: List[CgroupSnapshot] = []
        for hierarchy, path in membership:
            controllers = hierarchy.split(",")
            if hierarchy == "" or "memory" in controllers or "freezer" in controllers:
                found.extend(self._line(hierarchy, path))
        return tuple(found)

    def _line(self, hierarchy: str, path: str) -> List[CgroupSnapshot]:
        version = 1 if hierarchy else 2
        wanted = set(hierarchy.split(","))
        for mount in self._mounts:
            if mount.version != version or (version == 1 and not wanted <= set(mount.controllers)):
                continue
            names = below(path, mount.root)
            if names is not None:
                return self._upwards(hierarchy, version, mount, path, names)
        tells = {"memory": "memory", "freezer": "frozen"}
        fields = tuple(field for name, field in tells.items() if version == 2 or name in wanted)
        return [CgroupSnapshot(version, hierarchy, path, "", frozen=None, unreadable=fields)]

    def _upwards(
        self, hierarchy: str, version: int, mount: Mount, path: str, names: Tuple[str, ...]
    ) -> List[CgroupSnapshot]:
        found = []
        for depth in range(len(names), -1, -1):
            directory = os.path.join(mount.point, *names[:depth])
            if directory not in self._known:
                above = [name for name in mount.root.split("/") if name]
                shown = "/" + "/".join([*above, *names[:depth]])
                self._known[directory] = self._read(hierarchy, version, shown, directory, depth == 0)
            found.append(self._known[directory])
        return found

    def _read(self, hierarchy: str, version: int, path: str, directory: str, top: bool) -> CgroupSnapshot:
        files = _Files(directory)
        if not os.path.isdir(directory):
            return CgroupSnapshot(
                version, hierarchy, path, directory, frozen=None, hidden_ancestors=top, unreadable=("memory", "frozen")
            )
        if version == 2:
            limit, high = files.text("memory.max", "memory"), files.text("memory.high", "memory")
            current, stat = files.text("memory.current", "memory"), files.text("memory.stat", "memory")
            frozen = self._frozen_v2(files)
            hidden = top and files.has("cgroup.events")  # the real root has none
        else:
            limit, high = files.text("memory.limit_in_bytes", "memory"), None
            current, stat = files.text("memory.usage_in_bytes", "memory"), files.text("memory.stat", "memory")
            state = files.text("freezer.state", "frozen")
            frozen = None if "frozen" in files.failed else state is not None and state.strip() != "THAWED"
            hidden = top and not files.has("release_agent")  # only the real root has it
        return CgroupSnapshot(
            version=version,
            hierarchy=hierarchy,
            path=path,
            directory=directory,
            memory_max=None if limit is None else parse_limit(limit),
            memory_high=None if high is None else parse_limit(high),
            memory_current=None if current is None else parse_limit(current),
            reclaimable=None if stat is None else reclaimable_of(version, parse_stat(stat)),
            frozen=frozen,
            hidden_ancestors=hidden,
            unreadable=tuple(files.failed),
        )

    @staticmethod
    def _frozen_v2(files: _Files) -> Optional[bool]:
        events, wanted = files.text("cgroup.events", "frozen"), files.text("cgroup.freeze", "frozen")
        if "frozen" in files.failed:
            return None
        return "frozen 1" in kernel_lines(events or "") or (wanted or "").strip() == "1"


def own_group(pid: int, start_ticks: int) -> str:
    """Name of the group that this collection puts around a parked process to freeze it."""
    return f"gpufleet-checkpoint-{pid}-{start_ticks}"


def frozen(groups: Tuple[CgroupSnapshot, ...]) -> Optional[bool]:
    """Is a process in these groups frozen by one of them; None: one that matters could not be read."""
    if any(group.frozen for group in groups):
        return True
    return None if any(group.frozen is None for group in groups) else False


def read_membership(pid: int) -> Optional[Tuple[Tuple[str, str], ...]]:
    """None: no such process, or it may not be read."""
    try:
        with open(f"/proc/{pid}/cgroup", errors="surrogateescape") as stream:
            return parse_membership(stream.read())
    except OSError:
        return None


def read_cgroups(pid: int) -> Tuple[CgroupSnapshot, ...]:
    """Of one process, every hierarchy from its group upwards; () when there is no such process."""
    membership = read_membership(pid)
    return () if membership is None else Cgroups().of(membership)
