# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every test of a run is given. Travels to the process of each test as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Tuple


@dataclass(frozen=True)
class Sizes:
    """Device memory in MiB, times in seconds.

    small: of the many. big: of a process that has to be met in the midst of a copy. huge: more than all the small ones
    of a set. image: of a process that goes to disk. context: what a context takes beside it. rate: MiB/s that a slow
    copy moves.
    """

    small: int
    big: int
    huge: int
    image: int
    context: int
    kernel_ms: int
    ready: float
    patience: float
    rate: float


SIZES: Dict[str, Sizes] = {
    "gpu": Sizes(
        small=256,
        big=2048,
        huge=16384,
        image=8192,
        context=640,
        kernel_ms=8000,
        ready=180.0,
        patience=90.0,
        rate=200.0,
    ),
    "sim": Sizes(
        small=16,
        big=192,
        huge=1024,
        image=128,
        context=64,
        kernel_ms=12000,
        ready=60.0,
        patience=60.0,
        rate=32.0,
    ),
}


@dataclass(frozen=True)
class Gpu:
    uuid: str
    model: str
    mib: int


@dataclass(frozen=True)
class Spec:
    """profile: gpu | sim. python: the interpreter with the frameworks, and Ansible's. site: what Ansible needs in
    PYTHONPATH. collections: where ansible_collections is. minute: how long "a minute" is, in seconds. stand_ins:
    simulated workloads take the place of frameworks. home: directory of the run. criu: path, "" for none. image_mib: in
    place of the profile's size, 0 for that. image_allow: of criu_image, in every task."""

    profile: str
    workload: str
    cli: str
    libcuda: str
    nvml: str
    python: str
    site: str
    collections: str
    journal: str
    home: str
    minute: float
    slots: int
    kill_seconds: float
    stand_ins: bool
    gpus: Tuple[Gpu, ...]
    host: Dict[str, Any]
    criu: str = ""
    image_mib: int = 0
    image_allow: Tuple[str, ...] = ()

    @property
    def sizes(self) -> Sizes:
        sizes = SIZES[self.profile]
        return replace(sizes, image=self.image_mib) if self.image_mib else sizes

    def to_json(self) -> Dict[str, Any]:
        return asdict(self)


def spec_from(data: Dict[str, Any]) -> Spec:
    return Spec(
        **{**data, "gpus": tuple(Gpu(**gpu) for gpu in data["gpus"]), "image_allow": tuple(data["image_allow"])}
    )


def with_home(spec: Spec, home: str) -> Spec:
    return replace(spec, home=home)
