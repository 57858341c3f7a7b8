# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process outside a host that boots it, boots it again when it reboots, and lets go of its disk when it is off."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from . import base, boot, cgroups, disk, linux
from .errors import FleetError
from .names import Host
from .state import Fleet, HostDirectory, read_json, write_atomically

_NSPAWN_REBOOT = 133  # with --keep-unit, nspawn leaves starting again to its caller


def overlay_options(lower: list[Path], upper: Path, work: Path) -> str:
    def escape(path: Path) -> str:
        return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")

    return f"lowerdir={':'.join(map(escape, lower))},upperdir={escape(upper)},workdir={escape(work)}"


def lower_layers(fleet: Fleet, host: Host) -> list[Path]:
    """Highest first: what is the host's own, the simulated driver, the base."""
    layers = [fleet.directory.host(host).seed]
    if fleet.options.gpus:
        layers.append(fleet.directory.layer)
    return [*layers, fleet.base]


@contextmanager
def mounted(fleet: Fleet, host: Host, directory: HostDirectory) -> Iterator[None]:
    """The host's disk and root, in a mount namespace of this process: no other process of the machine sees them."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_SLAVE)
    if fleet.options.init == "systemd":
        # nspawn leaves files here, and stale ones when it is killed.
        Path("/run/systemd").mkdir(exist_ok=True)
        linux.mount(host.global_name, "/run/systemd", "tmpfs", 0, "mode=755")
    disk.mount(directory.image, host, directory.disk)
    options = overlay_options(lower_layers(fleet, host), directory.disk / "upper", directory.disk / "work")
    linux.mount(host.global_name, directory.root, "overlay", 0, options)
    linux.mount(str(directory.disk / "var"), directory.root / "var", None, linux.MS_BIND)
    try:
        yield
    finally:
        for point in (directory.root / "var", directory.root, directory.disk):
            try:
                linux.umount(point)
            except OSError:
                linux.umount(point, linux.MNT_DETACH)


def ending(init: str, status: int) -> tuple[str, str]:
    """What a wait status of PID 1 or nspawn means: reboot, off or failed, and why."""
    code = os.waitstatus_to_exitcode(status)
    if init == "none":
        # The kernel tells the parent of a PID namespace about reboot(2) in this way.
        if code == -signal.SIGHUP:
            return "reboot", "rebooted"
        if code == -signal.SIGINT:
            return "off", "powered off"
        name = "PID 1"
    else:
        if code == _NSPAWN_REBOOT:
            return "reboot", "rebooted"
        if code == 0:
            return "off", "powered off"
        name = "systemd-nspawn"
    return "failed", f"{name} ended {f'by signal {-code}' if code < 0 else f'with status {code}'}"


class Supervisor:
    def __init__(self, fleet: Fleet, host: Host) -> None:
        self.fleet = fleet
        self.host = host
        self.directory = fleet.directory.host(host)
        self.cgroup = cgroups.HostCgroup(cgroups.find(), host)
        self.boots = int((read_json(self.directory.run) or {}).get("boots", 0))

    def note(self, phase: str, reason: str = "") -> None:
        data = {"phase": phase, "reason": reason, "supervisor": os.getpid(), "boots": self.boots}
        write_atomically(self.directory.run, json.dumps(data) + "\n")
        print(f"{time.strftime('%H:%M:%S')} {self.host.name}: {phase}{': ' if reason else ''}{reason}", flush=True)

    def boot_once(self) -> tuple[str, str]:
        self.cgroup.renew_host()
        self.boots += 1
        self.note("starting")
        this = boot.Boot(self.host, self.directory, self.cgroup, str(uuid.uuid4()))
        none = self.fleet.options.init == "none"
        child: Callable[[boot.Boot, Callable[[], None]], NoReturn] = boot.init_none if none else boot.init_systemd
        pid = boot.start(this, child, new_pid_namespace=none)
        self.note("running")
        _dummy, status = os.waitpid(pid, 0)
        self.cgroup.kill_host()  # what is left when nspawn was killed, or had come in from outside
        what, reason = ending(self.fleet.options.init, status)
        if what == "failed" and none:
            self.show_init_log()
        return what, reason

    def show_init_log(self) -> None:
        """What PID 1 said last is on the host's disk, which nobody sees once it is off."""
        try:
            text = (self.directory.root / "var/log/init.log").read_text(errors="replace")
        except OSError:
            return
        for line in text.splitlines()[-10:]:
            print(f"  {self.host.name} init.log: {line}", flush=True)

    def run(self) -> None:
        try:
            in_use = base.use(self.fleet.base)
        except OSError as error:
            self.note("failed", f"base image {self.fleet.base}: {error.strerror}; start the fleet anew: fleet up")
            return
        try:
            with mounted(self.fleet, self.host, self.directory):
                what = "reboot"
                while what == "reboot":
                    what, reason = self.boot_once()
                cgroups.remove(self.cgroup.top / "host")
        except (FleetError, OSError) as error:
            self.note("failed", str(error))
            return
        finally:
            os.close(in_use)
        self.note(what, reason)


def main(fleet: Fleet, host_name: str) -> int:
    """The supervisor's own process. Its cgroup comes first: from then on it can be found and ended."""
    supervisor = Supervisor(fleet, fleet.host(host_name))
    try:
        supervisor.cgroup.enter_supervisor()
    except OSError as error:
        supervisor.note("failed", f"its cgroups could not be made: {error}")
        return 1
    os.closerange(3, 1024)  # the lock of the command that started this process, above all
    supervisor.run()
    return 0
