# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cgroups of a fleet: gpufleet-ID/hN/{supervisor,host} in v2 and in the v1 hierarchies that matter.

`host` is what the host sees as its root. It never holds processes itself, so that controllers can be enabled below it.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path

from . import mountinfo
from .errors import FleetError
from .names import PREFIX, Host, owner_of

_V1 = ("memory", "freezer", "pids", "name=systemd")


@dataclass(frozen=True)
class Hierarchies:
    """Mount points: v2 and, by controller, v1."""

    unified: Path
    v1: dict[str, Path]

    @property
    def all(self) -> list[Path]:
        return [self.unified, *self.v1.values()]


def from_mounts(mounts: list[mountinfo.Mount]) -> Hierarchies:
    unified = [mount for mount in mounts if mount.fstype == "cgroup2"]
    if not unified:
        raise FleetError(
            "cgroups: no cgroup2 file system is mounted, and hosts need one;"
            " mount it: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
        )
    v1: dict[str, Path] = {}
    for mount in mounts:
        if mount.fstype == "cgroup":
            for controller in _V1:
                if controller in mount.options:
                    v1.setdefault(controller, Path(mount.point))
    return Hierarchies(Path(unified[0].point), v1)


def find() -> Hierarchies:
    return from_mounts(mountinfo.of_process("self"))


def _enable_controllers(directory: Path) -> None:
    for controller in (directory / "cgroup.controllers").read_text().split():
        try:
            (directory / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            pass  # not for the children of this one: has_memory tells what counts


def _join(directory: Path, pid: int) -> None:
    (directory / "cgroup.procs").write_text(str(pid))


class HostCgroup:
    """The cgroups of one host."""

    def __init__(self, hierarchies: Hierarchies, host: Host) -> None:
        self.hierarchies = hierarchies
        self._relative = Path(PREFIX + host.fleet) / host.name

    @property
    def top(self) -> Path:
        return self.hierarchies.unified / self._relative

    def enter_supervisor(self) -> None:
        """Create the host's cgroups and move this process there, before it makes anything else."""
        for hierarchy in self.hierarchies.all:
            directory = hierarchy / self._relative / "supervisor"
            directory.mkdir(parents=True, exist_ok=True)
            _join(directory, 0)
        for directory in (self.hierarchies.unified, self.top.parent, self.top):
            _enable_controllers(directory)

    def renew_host(self) -> None:
        """An empty `host` cgroup, as every boot gets one. Whatever was left in the old one is killed."""
        for hierarchy in self.hierarchies.all:
            directory = hierarchy / self._relative / "host"
            remove(directory)
            directory.mkdir()

    def enter_host(self, pid: int) -> None:
        for hierarchy in self.hierarchies.all:
            _join(hierarchy / self._relative / "host", pid)

    def leave_root_for(self, child: str, pid: int) -> None:
        """Move a process of `host` one level down and enable the controllers for all children of `host`."""
        directory = self.top / "host"
        (directory / child).mkdir()
        _join(directory / child, pid)
        _enable_controllers(directory)

    def enter_console(self, pid: int) -> None:
        """For a process that comes in from outside: it ends with the host, and systemd does not find it in its tree."""
        for hierarchy in self.hierarchies.all:
            directory = hierarchy / self._relative / "console"
            directory.mkdir(exist_ok=True)
            _join(directory, pid)

    def pids(self) -> list[int]:
        return pids(self.top)

    def host_pids(self) -> list[int]:
        return pids(self.top / "host")

    def kill_host(self) -> None:
        kill(self.top / "host")

    def remove(self) -> None:
        for hierarchy in self.hierarchies.all:
            remove(hierarchy / self._relative)


def has_memory(hierarchies: Hierarchies) -> bool:
    """Whether a host can be given a memory limit of its own."""
    if "memory" in hierarchies.v1:
        return True
    try:
        return "memory" in (hierarchies.unified / "cgroup.subtree_control").read_text().split()
    except FileNotFoundError:  # the real root has every file but in a container without delegation
        return False


def fleet_directories(hierarchies: Hierarchies, fleet: str) -> list[Path]:
    return [path for top in hierarchies.all if (path := top / (PREFIX + fleet)).is_dir()]


def fleets(hierarchies: Hierarchies) -> set[str]:
    """Ids of all fleets that have a cgroup."""
    found = [owner_of(path.name) for top in hierarchies.all for path in top.glob(f"{PREFIX}*")]
    return {owner for owner in found if owner is not None}


def _tree(directory: Path) -> list[Path]:
    """The cgroup and all below it, the deepest first."""
    return [Path(path) for path, _dummy, _dummy in os.walk(directory, topdown=False)]


def pids(directory: Path) -> list[int]:
    found: list[int] = []
    for cgroup in _tree(directory):
        try:
            found += [int(word) for word in (cgroup / "cgroup.procs").read_text().split()]
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                raise
    return [pid for pid in found if pid]  # 0: a process that our PID namespace does not show


def kill(directory: Path) -> None:
    """SIGKILL to everything in a cgroup, once; frozen processes too."""
    for cgroup in _tree(directory):
        for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            try:
                if (cgroup / name).exists():
                    (cgroup / name).write_text(value)
            except OSError:
                pass
    try:
        (directory / "cgroup.kill").write_text("1")
        return
    except OSError:
        pass  # v1, or gone
    for pid in pids(directory):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass


def remove(directory: Path, seconds: float = 10.0) -> None:
    """Kill what is in a cgroup and remove it with all below it."""
    deadline = time.monotonic() + seconds
    while directory.is_dir():
        kill(directory)
        for cgroup in _tree(directory):
            try:
                cgroup.rmdir()
            except OSError:
                pass  # busy until the last process is reaped
        if not directory.is_dir():
            return
        if time.monotonic() > deadline:
            raise FleetError(
                f"cgroup {directory}: still busy {seconds:.0f} s after SIGKILL, processes {pids(directory)};"
                " look at their State and wchan in /proc, then run this again"
            )
        time.sleep(0.01)
