# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups for a memory limit and for the freezer, v2 or v1, found or mounted in a scratch directory."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional


@dataclass(frozen=True)
class Controller:
    """Where groups with this controller can be made. `mounted`, `enabled`: by us, to be undone at the end."""

    name: str
    version: int
    root: Path
    mounted: bool = False
    enabled: bool = False


def _mounts() -> list[tuple[str, str, str]]:
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        parts = line.split()
        found.append((parts[1], parts[2], parts[3]))
    return found


def _usable(controller: Controller) -> bool:
    """A trial, since neither a mount nor a file says whether groups may be made in it."""
    trial = controller.root / f"gpufleet-conform-trial-{os.getpid()}"
    try:
        trial.mkdir()
    except OSError:
        return False
    try:
        wanted = {
            ("memory", 2): "memory.max",
            ("memory", 1): "memory.limit_in_bytes",
            ("freezer", 2): "cgroup.freeze",
            ("freezer", 1): "freezer.state",
        }[(controller.name, controller.version)]
        return (trial / wanted).exists()
    finally:
        trial.rmdir()


def find(name: str, scratch: Path) -> Optional[Controller]:
    """`name`: memory or freezer."""
    for where, kind, options in _mounts():
        if kind == "cgroup2":
            root, enabled = Path(where), False
            if name == "memory":
                try:
                    if "memory" not in (root / "cgroup.controllers").read_text().split():
                        continue
                    enabled = "memory" not in (root / "cgroup.subtree_control").read_text().split()
                    (root / "cgroup.subtree_control").write_text("+memory")
                except OSError:
                    continue
            found = Controller(name, 2, root, enabled=enabled)
            if _usable(found):
                return found
        if kind == "cgroup" and name in options.split(","):
            found = Controller(name, 1, Path(where))
            if _usable(found):
                return found
    return _mount(name, scratch)


def _mount(name: str, scratch: Path) -> Optional[Controller]:
    point = scratch / f"cgroup-{name}"
    point.mkdir(parents=True, exist_ok=True)
    for version, argv in (
        (1, ["mount", "-t", "cgroup", "-o", name, "none", str(point)]),
        (2, ["mount", "-t", "cgroup2", "none", str(point)]),
    ):
        if version == 2 and name == "memory":
            continue
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            )
        except OSError:
            return None
        if done.returncode == 0:
            found = Controller(name, version, point, mounted=True)
            if _usable(found):
                return found
            release(found)
    return None


def unmount_below(directory: Path) -> None:
    """What a case that was killed had mounted."""
    for where, _dummy, _dummy in reversed(_mounts()):
        if where.startswith(f"{directory}/"):
            subprocess.run(["umount", "-l", where], stderr=subprocess.DEVNULL, check=False)


def release(controller: Controller) -> None:
    if controller.enabled:
        with contextlib.suppress(OSError):  # somebody else has come to use it
            (controller.root / "cgroup.subtree_control").write_text("-memory")
    if controller.mounted:
        subprocess.run(["umount", str(controller.root)], stderr=subprocess.DEVNULL, check=False)


class Group:
    """One group; its processes must be gone before remove()."""

    def __init__(self, controller: Controller, name: str) -> None:
        self.controller = controller
        self.path = controller.root / name
        self.path.mkdir()

    def limit(self, count: int) -> None:
        if self.controller.version == 2:
            (self.path / "memory.max").write_text(str(count))
            swap = self.path / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
        else:
            (self.path / "memory.limit_in_bytes").write_text(str(count))

    def join(self) -> None:
        """The calling process: for use between fork and exec."""
        (self.path / "cgroup.procs").write_text("0")

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def freeze(self, frozen: bool) -> None:
        """Returns once the kernel says so."""
        if self.controller.version == 2:
            (self.path / "cgroup.freeze").write_text("1" if frozen else "0")
            wanted = f"frozen {int(frozen)}"
            state = self.path / "cgroup.events"
        else:
            wanted = "FROZEN" if frozen else "THAWED"
            (self.path / "freezer.state").write_text(wanted)
            state = self.path / "freezer.state"
        end = time.monotonic() + 5
        while wanted not in state.read_text():
            if time.monotonic() > end:
                raise RuntimeError(f"{self.path}: not {wanted} after 5 s: {state.read_text()!r}")
            time.sleep(0.01)

    def remove(self) -> None:
        end = time.monotonic() + 5
        while True:
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > end:
                    raise
                time.sleep(0.05)
