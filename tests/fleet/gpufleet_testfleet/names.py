# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and addresses. Everything visible outside a host carries the fleet's id."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

# Fleets under another FLEET_PREFIX do not see each other: destroy-all leaves them alone.
PREFIX = os.environ.get("FLEET_PREFIX", "gpufleet") + "-"
CONTROL_ADDRESS = "10.77.0.1"
PREFIX_LENGTH = 24
MAX_HOSTS = 64

_OWNED = re.compile(rf"{re.escape(PREFIX)}([0-9a-f]{{8}})(?:-(h[0-9]+))?")


def fleet_id(directory: Path) -> str:
    """Eight hex digits, the same for every spelling of the directory's path."""
    return hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]


def owner_of(name: str) -> str | None:
    """The fleet id in the name of a mount, namespace, cgroup or loop device; None if it is not ours."""
    match = _OWNED.fullmatch(name)
    return match.group(1) if match else None


@dataclass(frozen=True)
class Host:
    """One host of a fleet, as its number fixes it."""

    fleet: str
    index: int

    @property
    def name(self) -> str:
        return f"h{self.index}"

    @property
    def global_name(self) -> str:
        return f"{PREFIX}{self.fleet}-{self.name}"

    @property
    def address(self) -> str:
        return f"10.77.0.{10 + self.index}"

    @property
    def mac(self) -> str:
        """Fixed, so that a neighbour's ARP entry stays right over a reboot."""
        return f"02:67:66:00:00:{self.index:02x}"

    @property
    def link(self) -> str:
        """The control end of the host's cable."""
        return f"v{self.index}"


def hosts(fleet: str, count: int) -> list[Host]:
    return [Host(fleet, index) for index in range(1, count + 1)]
