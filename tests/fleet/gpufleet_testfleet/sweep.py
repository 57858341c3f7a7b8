# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove all that belongs to a fleet, as the kernel shows it: whatever was killed, and without any file of ours."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from . import cgroups, linux, loopdev, machine, mountinfo, network, processes
from .errors import FleetError
from .names import owner_of

_SECONDS = 20.0


def fleets() -> set[str]:
    """Ids of all fleets of which anything is left on this machine."""
    found = cgroups.fleets(cgroups.find()) | network.fleets() | set(machine.registered())
    names = [*loopdev.attached().values(), *(mount.source for mount in mountinfo.of_process("self"))]
    return found | {owner for name in names if (owner := owner_of(name)) is not None}


def processes_of(fleet: str) -> set[int]:
    """Processes in the fleet's cgroups, in its control namespace, or that see a root of one of its hosts mounted."""
    found: set[int] = set()
    for directory in cgroups.fleet_directories(cgroups.find(), fleet):
        found.update(cgroups.pids(directory))
    control = network.namespace_id(fleet)
    seen: dict[str, bool] = {}
    for pid in processes.all_pids():
        if control is not None and processes.namespace(pid, "net") == control:
            found.add(pid)
        namespace = processes.namespace(pid, "mnt")
        if namespace is None:
            continue
        if namespace not in seen:
            seen[namespace] = any(owner_of(mount.source) == fleet for mount in mountinfo.of_process(pid))
        if seen[namespace]:
            found.add(pid)
    return {pid for pid in found if processes.is_alive(pid)} - processes.ancestors(os.getpid())


def _stop_disks(pids: set[int], host_directories: list[Path]) -> None:
    """What is thrown away need not be written first."""
    for pid in pids:
        for directory in host_directories:
            try:
                linux.stop_file_system(Path(f"/proc/{pid}/root") / str(directory / "disk/upper").lstrip("/"))
            except OSError:
                pass  # another host's process, or no disk yet


def _kill(fleet: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        for directory in cgroups.fleet_directories(cgroups.find(), fleet):
            cgroups.kill(directory)
        left = processes_of(fleet)
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if time.monotonic() > deadline:
            text = "; ".join(f"{pid} {processes.command_line(pid)}" for pid in sorted(left))
            raise FleetError(
                f"fleet {fleet}: processes still there {_SECONDS:.0f} s after SIGKILL: {text};"
                " one in state D waits for the kernel (see /proc/PID/stack), then run this again"
            )
        time.sleep(0.02)


def _free_mounts_and_loops(fleet: str) -> None:
    for mount in reversed(mountinfo.of_process("self")):
        if owner_of(mount.source) == fleet and not mount.point.startswith("/run/netns/"):
            linux.umount(mount.point, linux.MNT_DETACH)
    deadline = time.monotonic() + _SECONDS
    while devices := [path for path, name in loopdev.attached().items() if owner_of(name) == fleet]:
        for path in devices:
            loopdev.detach(path)
        if time.monotonic() > deadline:
            raise FleetError(
                f"fleet {fleet}: loop devices still in use after {_SECONDS:.0f} s: {', '.join(devices)};"
                " a mount namespace is held open (lsns -t mnt), end its holder and run this again"
            )
        time.sleep(0.02)


def sweep(fleet: str, host_directories: list[Path]) -> None:
    """End every process of the fleet, then take away its mounts, loop devices, namespaces and cgroups."""
    _stop_disks(supervisors(fleet), host_directories)
    _kill(fleet)
    _free_mounts_and_loops(fleet)
    network.remove_control(fleet)
    for directory in cgroups.fleet_directories(cgroups.find(), fleet):
        cgroups.remove(directory)


def supervisors(fleet: str) -> set[int]:
    unified = cgroups.find().unified
    return {
        pid
        for directory in cgroups.fleet_directories(cgroups.find(), fleet)
        if directory.parent == unified
        for supervisor in directory.glob("*/supervisor")
        for pid in cgroups.pids(supervisor)
    }
