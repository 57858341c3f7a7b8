# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host: power, reboot, cable, commands in it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from . import cgroups, disk, hoststate, lifecycle, linux, network, ready
from .boot import PATH
from .errors import FleetError
from .names import Host
from .state import Fleet, read_json, write_atomically

_POWER_OFF = signal.SIGRTMIN + 4
_REBOOT = signal.SIGRTMIN + 5
_END_SECONDS = 120.0


def _running(fleet: Fleet, host: Host) -> tuple[hoststate.HostState, int]:
    deadline = time.monotonic() + _END_SECONDS
    while True:
        state = hoststate.of(fleet.directory, host)
        if state.init_pid is not None:
            return state, state.init_pid
        if state.state not in ("starting", "running") or time.monotonic() > deadline:
            reason = f" ({state.reason})" if state.reason else ""
            raise FleetError(f"{host.name} is {state.state}{reason}; start it with: fleet start {host.name}")
        time.sleep(0.03)  # between two boots


def _wait(host: Host, what: str, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while not until():
        if time.monotonic() > deadline:
            raise FleetError(
                f"{host.name}: no {what} within {_END_SECONDS:.0f} s; look inside with: fleet console {host.name},"
                f" or take its power: fleet poweroff {host.name} --lose-unsynced"
            )
        time.sleep(0.03)


def _boots(fleet: Fleet, host: Host) -> int:
    return int((read_json(fleet.directory.host(host).run) or {}).get("boots", 0))


def _wait_until_up(fleet: Fleet, host: Host) -> str:
    """With the cable cut nobody can log in; then a started PID 1 is all there is to wait for."""
    if fleet.directory.host(host).cut.exists():
        _wait(host, "start", lambda: hoststate.of(fleet.directory, host).state in ("running", "failed"))
        return "running (cut off)"
    return ready.wait(fleet, [host], time.monotonic())[host.name][0]


def reboot(fleet: Fleet, host: Host) -> None:
    began = time.monotonic()
    state, init = _running(fleet, host)
    if state.state == "orphaned":
        raise FleetError(f"{host.name}: {state.reason}, so nothing would boot it again; use: fleet start {host.name}")
    boots = _boots(fleet, host)
    os.kill(init, _REBOOT)
    _wait(host, "new boot", lambda: _boots(fleet, host) > boots or not hoststate.of(fleet.directory, host).init_pid)
    up = _wait_until_up(fleet, host)
    now = hoststate.of(fleet.directory, host)
    print(f"{host.name} {up} after {time.monotonic() - began:.1f} s, boot id {state.boot_id} -> {now.boot_id}")


def _clear(fleet: Fleet, host: Host) -> None:
    """End whatever still runs of the host, its supervisor too, and wait for its disk."""
    cgroups.HostCgroup(cgroups.find(), host).remove()
    disk.wait_until_free(host)


def _lose_power(fleet: Fleet, host: Host, init: int | None) -> None:
    network.set_cable(host, up=False)
    directory = fleet.directory.host(host)
    cgroup = cgroups.HostCgroup(cgroups.find(), host)
    views = [Path(f"/proc/{pid}/root{directory.disk}/upper") for pid in cgroups.pids(cgroup.top / "supervisor")]
    if init is not None:
        views.append(Path(f"/proc/{init}/root/var"))
    errors = []
    for view in views:
        try:
            linux.stop_file_system(view)
            return
        except OSError as error:
            errors.append(f"{view}: {error.strerror}")
    raise FleetError(f"{host.name}: its disk could not be stopped: {'; '.join(errors)}")


def power_off(fleet: Fleet, host: Host, lose_unsynced: bool) -> None:
    state = hoststate.of(fleet.directory, host)
    if state.state == "off":
        print(f"{host.name} is off already")
        return
    if lose_unsynced:
        _lose_power(fleet, host, state.init_pid)
        _clear(fleet, host)
        boots = _boots(fleet, host)
        text = f'{{"phase": "off", "reason": "power lost", "boots": {boots}}}\n'
        write_atomically(fleet.directory.host(host).run, text)
        print(f"{host.name} lost power; what it had not synced is gone")
        return
    state, init = _running(fleet, host)
    os.kill(init, _POWER_OFF)
    _wait(host, "power-off", lambda: hoststate.of(fleet.directory, host).state in ("off", "failed"))
    after = hoststate.of(fleet.directory, host)
    if after.state != "off":
        raise FleetError(f"{host.name}: {after.reason} on its way down; see {fleet.directory.host(host).log}")
    _clear(fleet, host)
    print(f"{host.name} powered off")


def start(fleet: Fleet, host: Host) -> None:
    began = time.monotonic()
    state = hoststate.of(fleet.directory, host)
    if state.state == "running":
        raise FleetError(f"{host.name} is running already")
    _clear(fleet, host)
    lifecycle.launch(fleet, host)
    up = _wait_until_up(fleet, host)
    print(f"{host.name} {up} after {time.monotonic() - began:.1f} s")


def set_cable(fleet: Fleet, host: Host, up: bool) -> None:
    marker = fleet.directory.host(host).cut
    if up:
        marker.unlink(missing_ok=True)
    else:
        marker.touch()
    if hoststate.of(fleet.directory, host).init_pid is not None:
        network.set_cable(host, up)
    print(f"{host.name} {'is connected' if up else 'is cut off'}")


def execute(fleet: Fleet, host: Host, command: list[str]) -> NoReturn:
    """Over SSH; this process becomes the client, so its exit status is the command's."""
    _running(fleet, host)
    argv = [str(fleet.directory.ssh)]
    if sys.stdin.isatty() and sys.stdout.isatty():
        argv.append("-t")
    argv.append(host.name)
    if command:
        argv.append(shlex.join(command))
    linux.default_signals()
    os.execv(argv[0], argv)


def console(fleet: Fleet, host: Host, command: list[str]) -> NoReturn:
    """Straight into the host's namespaces, as a person at its keyboard."""
    _dummy, init = _running(fleet, host)
    cgroups.HostCgroup(cgroups.find(), host).enter_console(0)
    argv = ["nsenter", f"--target={init}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd"]
    argv += ["--", *(command or ["/bin/bash", "-l"])]
    environment = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": os.environ.get("TERM", "dumb")}
    linux.default_signals()
    os.execve(shutil.which("nsenter") or "/usr/bin/nsenter", argv, environment)
