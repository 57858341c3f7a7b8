# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet's network: a bridge in a network namespace that has no way out, and a cable from it to each host."""

from __future__ import annotations

import os
import time
from pathlib import Path

from . import commands
from .errors import FleetError
from .names import CONTROL_ADDRESS, PREFIX, PREFIX_LENGTH, Host, owner_of

NETNS_DIRECTORY = Path("/run/netns")
_BRIDGE = "br0"


def control_namespace(fleet: str) -> Path:
    return NETNS_DIRECTORY / f"{PREFIX}{fleet}"


def fleets() -> set[str]:
    """Ids of all fleets that have a control namespace."""
    if not NETNS_DIRECTORY.is_dir():
        return set()
    return {owner for path in NETNS_DIRECTORY.iterdir() if (owner := owner_of(path.name)) is not None}


def _inside(namespace: str | Path, lines: list[str]) -> None:
    commands.run(["nsenter", f"--net={namespace}", "ip", "-batch", "-"], stdin="\n".join(lines) + "\n")


def create_control(fleet: str) -> None:
    path = control_namespace(fleet)
    commands.run(["ip", "netns", "add", path.name])
    _inside(
        path,
        [
            "link set lo up",
            f"link add {_BRIDGE} type bridge",
            f"link set {_BRIDGE} addrgenmode none",
            f"addr add {CONTROL_ADDRESS}/{PREFIX_LENGTH} dev {_BRIDGE}",
            f"link set {_BRIDGE} up",
        ],
    )


def remove_control(fleet: str) -> None:
    path = control_namespace(fleet)
    if path.exists():
        commands.run(["ip", "netns", "del", path.name])


def connect(host: Host, pid: int, cut: bool) -> None:
    """Lay the cable to the network namespace of a process, and set up its end there."""
    control = control_namespace(host.fleet)
    lay = [
        f"link add {host.link} type veth peer name eth0 address {host.mac} netns {pid}",
        f"link set {host.link} addrgenmode none",
        f"link set {host.link} master {_BRIDGE} {'down' if cut else 'up'}",
    ]
    deadline = time.monotonic() + 10
    while True:
        # The cable of the boot before may still be there: the kernel takes namespaces apart at leisure.
        commands.run(["nsenter", f"--net={control}", "ip", "link", "del", host.link], check=False)
        try:
            _inside(control, lay)
            break
        except FleetError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    _inside(
        f"/proc/{pid}/ns/net",
        [
            "link set lo up",
            "link set eth0 addrgenmode none",
            f"addr add {host.address}/{PREFIX_LENGTH} dev eth0",
            "link set eth0 up",
        ],
    )


def set_cable(host: Host, up: bool) -> None:
    _inside(control_namespace(host.fleet), [f"link set {host.link} {'up' if up else 'down'}"])


def namespace_id(fleet: str) -> str | None:
    """The control namespace as /proc/PID/ns/net names it."""
    try:
        return f"net:[{os.stat(control_namespace(fleet)).st_ino}]"
    except OSError:
        return None
