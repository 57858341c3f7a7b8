# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for hosts: started, then a login over real SSH, then, with systemd, the end of its boot."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

from . import cgroups, processes
from .errors import FleetError
from .names import Host
from .state import Directory, Fleet, read_json

BOOT_SECONDS = 180.0
_STEP = 0.03
_LOGINS = 16
_FINISHED = ("running", "degraded")


@dataclass
class _Waiting:
    host: Host
    listens: bool = False
    login: subprocess.Popen[str] | None = None
    said: str = ""


def log_tail(directory: Directory, host: Host, lines: int = 12) -> str:
    files = directory.host(host)
    try:
        text = files.log.read_text(errors="replace")
    except OSError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


def _failed(fleet: Fleet, host: Host, what: str) -> FleetError:
    log = fleet.directory.host(host).log
    return FleetError(f"{host.name}: {what}. The end of {log}:\n{log_tail(fleet.directory, host)}")


def _started(fleet: Fleet, host: Host) -> bool:
    data = read_json(fleet.directory.host(host).run) or {}
    if data.get("phase") in ("failed", "off"):
        raise _failed(fleet, host, f"ended while it was being waited for: {data.get('reason')}")
    if "supervisor" in data and not processes.is_alive(data["supervisor"]):
        raise _failed(fleet, host, "its supervisor was killed")
    return data.get("phase") == "running"


def _listens(fleet: Fleet, host: Host) -> bool:
    """sshd says so in its title. A connection that only knocks would be an error in the host's log."""
    where = "host/payload/system.slice/ssh.service" if fleet.options.init == "systemd" else "host/init"
    cgroup = cgroups.HostCgroup(cgroups.find(), host).top / where
    return any("[listener]" in processes.command_line(pid) for pid in cgroups.pids(cgroup))


def _login(fleet: Fleet, host: Host) -> subprocess.Popen[str]:
    remote = "systemctl is-system-running --wait" if fleet.options.init == "systemd" else "echo running"
    return subprocess.Popen(
        [str(fleet.directory.ssh), host.name, remote],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait(fleet: Fleet, hosts: list[Host], began: float) -> dict[str, tuple[str, float]]:
    """Host name -> (running or degraded, seconds since `began`), once all are there."""
    done: dict[str, tuple[str, float]] = {}
    waiting = [_Waiting(host) for host in hosts]
    deadline = time.monotonic() + BOOT_SECONDS
    try:
        while waiting:
            for entry in list(waiting):
                result = _step(fleet, entry, sum(other.login is not None for other in waiting) < _LOGINS)
                if result is not None:
                    done[entry.host.name] = (result, time.monotonic() - began)
                    waiting.remove(entry)
            if waiting and time.monotonic() > deadline:
                entry = waiting[0]
                step = f"no finished boot ({entry.said or 'no answer'})" if entry.listens else "no answer from its sshd"
                raise _failed(fleet, entry.host, f"{step} after {BOOT_SECONDS:.0f} s")
            if waiting:
                time.sleep(_STEP)
    finally:
        for entry in waiting:
            if entry.login is not None:
                entry.login.kill()
                entry.login.communicate()
    return done


def _step(fleet: Fleet, entry: _Waiting, may_log_in: bool) -> str | None:
    if not _started(fleet, entry.host):
        return None
    entry.listens = entry.listens or _listens(fleet, entry.host)
    if entry.listens and entry.login is None and may_log_in:
        entry.login = _login(fleet, entry.host)
    if entry.login is None or entry.login.poll() is None:
        return None
    entry.said = entry.login.communicate()[0].strip()
    entry.login = None
    word = entry.said.splitlines()[-1] if entry.said else ""
    return word if word in _FINISHED else None
