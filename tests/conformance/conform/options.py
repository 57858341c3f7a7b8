# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run is given: sizes, patience, paths. Travels to the process of each case as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Optional


@dataclass(frozen=True)
class Profile:
    """Sizes in MiB of device memory, times in seconds."""

    name: str
    small: int
    mid: int
    big: int
    sequence: int
    hang: float
    patience: float
    window: float
    ready: float
    rate: float
    kernel_ms: int

    def patience_for(self, mib: int) -> float:
        """How long a call that moves so much may take before it counts as unanswered."""
        return self.patience + mib / self.rate


PROFILES: Dict[str, Profile] = {
    "h200": Profile(
        "h200",
        small=256,
        mid=1024,
        big=8192,
        sequence=64,
        hang=2.0,
        patience=60.0,
        window=0.5,
        ready=90.0,
        rate=300.0,
        kernel_ms=4000,
    ),
    "sim": Profile(
        "sim",
        small=16,
        mid=64,
        big=256,
        sequence=8,
        hang=1.0,
        patience=30.0,
        window=0.8,
        ready=30.0,
        rate=50.0,
        kernel_ms=2500,
    ),
}


@dataclass(frozen=True)
class Options:
    profile: str
    workload: str
    criu: str
    libcuda: str
    cli: str
    nvml: str
    python: str
    allow_sysctl: bool
    patience: Optional[float] = None

    @property
    def sizes(self) -> Profile:
        sizes = PROFILES[self.profile]
        return sizes if self.patience is None else replace(sizes, patience=self.patience)

    def to_json(self) -> Dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Dict[str, Any]) -> Options:
        return Options(**data)
