# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What state a host is in: the kernel's word first, then what its supervisor wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import cgroups, processes
from .names import Host
from .state import Directory, read_json


@dataclass(frozen=True)
class HostState:
    """state: starting, running, off, failed, orphaned (it runs, but its supervisor is gone)."""

    name: str
    address: str
    state: str
    reason: str
    init_pid: int | None
    boot_id: str | None
    boots: int
    cut: bool


def _boot_id(init: int) -> str | None:
    """As the host sees it."""
    try:
        return Path(f"/proc/{init}/root/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def of(directory: Directory, host: Host) -> HostState:
    cgroup = cgroups.HostCgroup(cgroups.find(), host)
    files = directory.host(host)
    written = read_json(files.run) or {}
    phase, reason = str(written.get("phase", "off")), str(written.get("reason", ""))
    init = processes.init_of(cgroup.host_pids()) if cgroup.top.is_dir() else None
    supervised = cgroup.top.is_dir() and any(map(processes.is_alive, cgroups.pids(cgroup.top / "supervisor")))
    if init is not None and not supervised:
        phase, reason = "orphaned", "its supervisor is gone"
    elif not supervised and phase in ("starting", "running"):
        phase, reason = "failed", "its supervisor was killed"
    return HostState(
        name=host.name,
        address=host.address,
        state=phase,
        reason=reason,
        init_pid=init,
        boot_id=_boot_id(init) if init is not None else None,
        boots=int(written.get("boots", 0)),
        cut=files.cut.exists(),
    )
