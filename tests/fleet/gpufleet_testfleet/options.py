# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `fleet up` was asked for, checked."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from .errors import FleetError
from .names import MAX_HOSTS, Host

DRIVERS = ("535", "550", "555", "570", "580", "590")
INITS = ("systemd", "none")
DEFAULT_MODEL = "NVIDIA H200"
MIN_DISK_MIB = 256

_FULL_VERSION = re.compile(r"(\d{3})(\.\d+){1,3}")
_KEY = re.compile(r"[a-z][a-z0-9_]*")


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
    settings: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise FleetError(f"--hosts {self.hosts}: a fleet has 1 to {MAX_HOSTS} hosts")
        if not 0 <= self.gpus <= 64:
            raise FleetError(f"--gpus {self.gpus}: a host has 0 to 64 GPUs")
        if self.vram < 1:
            raise FleetError(f"--vram {self.vram}: a GPU has at least 1 MiB of memory")
        if self.disk < MIN_DISK_MIB:
            raise FleetError(f"--disk {self.disk}: a host needs a disk of at least {MIN_DISK_MIB} MiB")
        if self.init not in INITS:
            raise FleetError(f"--init {self.init}: unknown, choose one of {', '.join(INITS)}")
        full = _FULL_VERSION.fullmatch(self.driver)
        if self.driver not in DRIVERS and not (full and full.group(1) in DRIVERS):
            raise FleetError(
                f"--driver {self.driver}: unknown driver version; known are {', '.join(DRIVERS)},"
                " or a full version of one of these such as 580.159.04"
            )
        for key, value in {"model": self.model, **self.settings}.items():
            if not _KEY.fullmatch(key):
                raise FleetError(f"--set {key}=...: a key is lower case letters, digits and underscores")
            if "\n" in value or "\0" in value:
                raise FleetError(f"--set {key}: a value is one line")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Options:
        return cls(**data)


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
