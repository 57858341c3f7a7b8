# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written down: in the fleet's directory its options and each host's phase, in /run what the machine shares."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import commands, names
from .errors import FleetError
from .options import Options

RUN = Path("/run", f"{names.PREFIX}checkpoint")
_WAIT = 600.0


def machine_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)
    partial.rename(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no such file or no object in it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


@dataclass(frozen=True)
class Directory:
    """The directory of one fleet."""

    path: Path

    @property
    def fleet(self) -> str:
        return names.fleet_id(self.path)

    @property
    def state(self) -> Path:
        return self.path / "fleet.json"

    @property
    def key(self) -> Path:
        return self.path / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.path / "ssh_config"

    @property
    def inventory(self) -> Path:
        return self.path / "inventory.yml"

    @property
    def ssh(self) -> Path:
        return self.path / "ssh"

    @property
    def layer(self) -> Path:
        return self.path / "sim"

    @property
    def hosts(self) -> Path:
        return self.path / "hosts"

    def host(self, host: names.Host) -> HostDirectory:
        return HostDirectory(self.hosts / host.name)


@dataclass(frozen=True)
class HostDirectory:
    """The directory of one host in its fleet's directory."""

    path: Path

    @property
    def seed(self) -> Path:
        return self.path / "seed"

    @property
    def image(self) -> Path:
        return self.path / "disk.img"

    @property
    def disk(self) -> Path:
        return self.path / "disk"

    @property
    def root(self) -> Path:
        return self.path / "root"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def cut(self) -> Path:
        return self.path / "cut"

    @property
    def run(self) -> Path:
        return self.path / "run.json"


@dataclass(frozen=True)
class Fleet:
    """A fleet as its state file describes it."""

    directory: Directory
    options: Options
    base: Path

    @property
    def hosts(self) -> list[names.Host]:
        return names.hosts(self.directory.fleet, self.options.hosts)

    def host(self, name: str) -> names.Host:
        for host in self.hosts:
            if host.name == name:
                return host
        last = self.hosts[-1].name
        raise FleetError(f"{name}: no such host; the fleet has {'h1' if last == 'h1' else f'h1 to {last}'}")

    def save(self) -> None:
        data = {
            "format": 1,
            "fleet": self.directory.fleet,
            "machine_boot_id": machine_boot_id(),
            "base": str(self.base),
            "options": self.options.as_json(),
            "hosts": [{"name": host.name, "address": host.address} for host in self.hosts],
        }
        write_atomically(self.directory.state, json.dumps(data, indent=1) + "\n")


def load(directory: Directory) -> Fleet:
    data = read_json(directory.state)
    if data is None:
        raise FleetError(f"no such fleet: {directory.state} does not exist; start one with: fleet up --hosts N")
    if data.get("format") != 1:
        raise FleetError(f"{directory.state}: written by another version of the fleet; remove the fleet: fleet down")
    return Fleet(directory, Options.from_json(data["options"]), Path(data["base"]))


def _lock_holder(path: Path) -> int | None:
    inode = path.stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "FLOCK" in fields and fields[5].endswith(f":{inode}") and fields[4] != "0":
            return int(fields[4])
    return None


class Lock:
    """flock on a directory, which may be removed and made again by others meanwhile."""

    def __init__(self, path: Path, shared: bool = False, mode: int = 0o755) -> None:
        self._path = path
        self._operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._mode = mode
        self._fd = -1

    def __enter__(self) -> Lock:
        deadline = time.monotonic() + _WAIT
        told = False
        while True:
            self._path.mkdir(parents=True, exist_ok=True, mode=self._mode)
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, self._operation | fcntl.LOCK_NB)
                if os.path.exists(self._path) and os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    self._fd = fd
                    commands.KEEP.append(fd)
                    return self
            except BlockingIOError:
                holder = _lock_holder(self._path)
                if time.monotonic() > deadline:
                    os.close(fd)
                    text = f"{self._path}: process {holder} has had the lock for {_WAIT:.0f} s; end it, then try again"
                    raise FleetError(text) from None
                if not told:
                    print(f"{self._path}: fleet command {holder} is at work on it; waiting", file=sys.stderr)
                    told = True
                time.sleep(0.1)
            os.close(fd)

    def __exit__(self, *_: object) -> None:
        commands.KEEP.remove(self._fd)
        os.close(self._fd)
