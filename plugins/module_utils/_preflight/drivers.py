# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each version of NVIDIA's driver brings, and which versions must not be used. Pure; docs/preflight.md shows the
same table.

`source` of a line: "measured" (tests/conformance, on 580.159.04), "documented" (NVIDIA's own texts), "reported" (by
others, not reproduced).
"""

from __future__ import annotations

from typing import FrozenSet, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

Version = Tuple[int, ...]

TOGGLE = "toggle"
ACTIONS = "actions"
LIBCUDA = "libcuda"
NVML_USERS = "nvml_users"
SOME_GPUS = "some_gpus"
DEVICE_MAP = "device_map"
LAUNCH_JOB = "launch_job"
CUDA_IPC = "cuda_ipc"


@dataclass(frozen=True)
class Feature:
    """since: the first version that has it. brings, without: what it is good for, and what is missing before."""

    name: str
    since: Version
    brings: str
    without: str
    source: str


@dataclass(frozen=True)
class Denied:
    """Every version that starts with `version`."""

    version: Version
    why: str
    source: str


FEATURES: Tuple[Feature, ...] = (
    Feature(
        TOGGLE,
        (550,),
        "`cuda-checkpoint --toggle`: suspend and resume of one process, which can't be held meanwhile",
        "Nothing can be suspended",
        "documented",
    ),
    Feature(
        ACTIONS,
        (555,),
        "`cuda-checkpoint --action`: lock, checkpoint, restore and unlock one by one, a timeout for the lock, the "
        "state, and the restore thread, by which a process can be held and parked",
        "A suspended process can be neither locked, held nor parked; programs such as JAX die of that",
        "documented",
    ),
    Feature(
        LIBCUDA,
        (570,),
        "the same as functions of `libcuda.so.1`, so that no tool is needed",
        "The tool `cuda-checkpoint` has to be installed",
        "documented",
    ),
    Feature(
        NVML_USERS,
        (570,),
        "processes that use NVML",
        "A process that has NVML loaded can't be checkpointed",
        "documented",
    ),
    Feature(
        SOME_GPUS,
        (575, 57, 8),
        "processes that see only some of the host's GPUs, as in most containers",
        "A process that sees only some of the host's GPUs can't be checkpointed",
        "reported",
    ),
    Feature(
        DEVICE_MAP,
        (580,),
        "a device map: resume on other GPUs of the same model, also after CRIU restored the process",
        "A process comes back only on the GPUs that it was on",
        "measured",
    ),
    Feature(
        LAUNCH_JOB,
        (590,),
        "`cuda-checkpoint --launch-job`",
        "Processes can't be started as one job",
        "reported",
    ),
    Feature(
        CUDA_IPC,
        (610,),
        "CUDA IPC, in processes that were started with `--launch-job`",
        "An importer of CUDA IPC memory does not come back",
        "reported",
    ),
)

DENIED: Tuple[Denied, ...] = (Denied((610, 57), "The lock crashes", "reported"),)

#: Versions whose every case was recorded on a GPU.
MEASURED: FrozenSet[str] = frozenset(("580.159.04",))

OLDEST: Version = FEATURES[0].since


def parse(text: str) -> Version:
    """ "575.57.08" is (575, 57, 8); () for what is no version."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def show(version: Version) -> str:
    """ "575.57.08": NVIDIA writes two digits behind the branch."""
    return ".".join([str(version[0]), *(f"{part:02d}" for part in version[1:])])


def features(version: Version) -> Tuple[Feature, ...]:
    """What this version brings; nothing for ()."""
    return tuple(feature for feature in FEATURES if version and version >= feature.since)


def has(version: Version, name: str) -> bool:
    return any(feature.name == name for feature in features(version))


def feature(name: str) -> Feature:
    """Raises KeyError for a name that there is none of."""
    for one in FEATURES:
        if one.name == name:
            return one
    raise KeyError(name)


def denied(version: Version) -> Tuple[Denied, ...]:
    return tuple(one for one in DENIED if version[: len(one.version)] == one.version)
