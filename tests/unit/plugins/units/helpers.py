# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A systemd on paper: services that take drop-ins at a reload and a watchdog by a notification."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterable, List, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_manager import Manager
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import DROP_IN, Member, Service

BOOT = "6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11"
LATER = "7e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11"
MAIN = 3_000_100


def identity(pid: int = MAIN, boot: str = BOOT) -> Identity:
    return Identity(pid, 4711, boot)


def member(pid: int = MAIN, parent: int = 1, path: str = "/system.slice/a.service") -> Member:
    return Member(identity(pid), parent, ("/", path))


def service(name: str = "a.service", **fields: object) -> Service:
    """Active, with a main process, a watchdog of 2 s and Restart=always."""
    usual = Service(
        name,
        main_pid=MAIN,
        notify_access="main",
        watchdog_usec=2_000_000,
        restart="always",
        group=f"/system.slice/{name}",
        tasks=1,
    )
    return replace(usual, **fields)  # type: ignore[arg-type]


class PaperSystemd(Manager):
    """obeys: whether drop-ins and notifications come into force. broken: what `daemon-reload` says."""

    def __init__(self, directory: Path, *services: Service) -> None:
        units = directory / "units"
        units.mkdir()
        super().__init__(units=str(units), lock=str(directory / "run" / "units.lock"))
        self.directory = units
        self.loaded: Dict[str, Service] = {one.name: one for one in services}
        self.restarts = {one.name: one.restart for one in services}
        self.told: List[Tuple[int, Tuple[str, ...]]] = []
        self.reloads = 0
        self.obeys = True
        self.broken = ""

    def services(self, names: Iterable[str]) -> Dict[str, Service]:
        return {name: self.loaded.get(name, Service(name, load="not-found")) for name in names}

    def tell(self, pid: int, *lines: str) -> str:
        self.told.append((pid, lines))
        for name, one in self.loaded.items():
            if one.main_pid == pid and self.obeys:
                usec = next(int(line.partition("=")[2]) for line in lines if line.startswith("WATCHDOG_USEC="))
                self.loaded[name] = replace(one, watchdog_usec=usec)
        return ""

    def reload(self) -> str:
        self.reloads += 1
        if self.broken:
            return self.broken
        for name, one in self.loaded.items():
            held = "Restart=no\n" in self.drop_in(name) and self.obeys
            self.loaded[name] = replace(
                one,
                restart="no" if held else self.restarts[name],
                drop_ins=(f"{self.directory}/{name}.d/{DROP_IN}",) if self.drop_in(name) else (),
            )
        return ""

    def dies(self, name: str) -> None:
        self.loaded[name] = replace(self.loaded[name], active="inactive", main_pid=0, tasks=0, watchdog_usec=0)

    def starts(self, name: str, pid: int, watchdog_usec: int = 2_000_000) -> None:
        self.loaded[name] = replace(
            self.loaded[name], active="active", main_pid=pid, tasks=1, watchdog_usec=watchdog_usec
        )
