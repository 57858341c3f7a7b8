# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `fleet up` was asked for, checked."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import FleetError
from .names import MAX_HOSTS, Host

DRIVERS = ("535", "550", "555", "570", "580", "590")
INITS = ("systemd", "none")
FLAVOURS = ("slurm",)
DEFAULT_MODEL = "NVIDIA H200"
MIN_DISK_MIB = 256
MAX_DISK_MIB = 1 << 24  # what ext4 takes
MAX_VRAM_MIB = 1 << 24

# Keys of gpusim.conf that --set takes, with the highest value of a number; None: a text.
SETTINGS = {"seed": None, "context_mib": 1 << 24, "host_overhead_mib": 1 << 20, "copy_mib_per_s": 1 << 24}
# Keys that have an option of their own.
_OPTIONS = {"driver": "--driver", "gpus": "--gpus", "vram_mib": "--vram", "model": "--model"}

_FULL_VERSION = re.compile(r"(\d{3})(\.\d+){1,3}")


@dataclass(frozen=True)
class Options:
    """Options of a fleet; the defaults are those of the command line."""

    hosts: int
    gpus: int = 1
    vram: int = 16384
    driver: str = "580"
    init: str = "systemd"
    sim: str | None = None
    model: str = DEFAULT_MODEL
    disk: int = 32768
    flavour: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise FleetError(f"--hosts {self.hosts}: a fleet has 1 to {MAX_HOSTS} hosts")
        if not 0 <= self.gpus <= 64:
            raise FleetError(f"--gpus {self.gpus}: a host has 0 to 64 GPUs")
        if not 1 <= self.vram <= MAX_VRAM_MIB:
            raise FleetError(f"--vram {self.vram}: a GPU has 1 to {MAX_VRAM_MIB} MiB of memory")
        if not MIN_DISK_MIB <= self.disk <= MAX_DISK_MIB:
            raise FleetError(f"--disk {self.disk}: a host has a disk of {MIN_DISK_MIB} to {MAX_DISK_MIB} MiB")
        if self.sim is not None and not Path(self.sim).is_dir():
            raise FleetError(f"--sim {self.sim}: no such directory")
        if self.init not in INITS:
            raise FleetError(f"--init {self.init}: unknown, choose one of {', '.join(INITS)}")
        if self.flavour and self.flavour not in FLAVOURS:
            raise FleetError(f"--with {self.flavour}: unknown, choose one of {', '.join(FLAVOURS)}")
        if self.flavour and self.init != "systemd":
            raise FleetError(f"--with {self.flavour}: its services are systemd's; leave out --init {self.init}")
        full = _FULL_VERSION.fullmatch(self.driver)
        if self.driver not in DRIVERS and not (full and full.group(1) in DRIVERS):
            raise FleetError(
                f"--driver {self.driver}: unknown driver version; known are {', '.join(DRIVERS)},"
                " or a full version of one of these such as 580.159.04"
            )
        if "\n" in self.model or "\0" in self.model:
            raise FleetError("--model: a name is one line")
        for key, value in self.settings.items():
            _check_setting(key, value)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Options:
        return cls(**data)


def _check_setting(key: str, value: str) -> None:
    if key in _OPTIONS:
        raise FleetError(f"--set {key}: use {_OPTIONS[key]}")
    if key not in SETTINGS:
        raise FleetError(f"--set {key}: unknown; known are {', '.join(SETTINGS)}")
    highest = SETTINGS[key]
    if highest is not None and not (value.isascii() and value.isdigit() and int(value) <= highest):
        raise FleetError(f"--set {key}={value}: not a number from 0 to {highest}")
    if "\n" in value or "\0" in value:
        raise FleetError(f"--set {key}: a value is one line")


def parse_settings(words: list[str]) -> dict[str, str]:
    """KEY=VALUE words of --set."""
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise FleetError(f"--set {word}: expected KEY=VALUE")
        settings[key] = value
    return settings


def gpusim_conf(options: Options, host: Host) -> str:
    """The host's /etc/gpusim.conf."""
    values = {
        "driver": options.driver,
        "gpus": str(options.gpus),
        "vram_mib": str(options.vram),
        "model": options.model,
        "seed": host.name,
        "context_mib": "64",
        "host_overhead_mib": "8",
        "copy_mib_per_s": "0",
        **options.settings,
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())
