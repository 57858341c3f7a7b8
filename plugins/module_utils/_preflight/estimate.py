# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many bytes and seconds it takes to move processes, from what this host measured before, else from what others
did. Pure. Sizes are bytes, times seconds."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.need import MARGIN
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import StepRecord
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import DUMP_STEP, RESTORE_STEP
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import DUMP, MIGRATE, SUSPEND
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

GIB = 1 << 30

SUSPENDING = "suspend"
DUMPING = "dump"
RESTORING = "restore"
RESUMING = "resume"
#: What each capability takes, there and back. Copying an image to another host is not in it.
PHASES_OF: Mapping[str, Tuple[str, ...]] = {
    SUSPEND: (SUSPENDING, RESUMING),
    DUMP: (SUSPENDING, DUMPING, RESTORING, RESUMING),
    MIGRATE: (SUSPENDING, DUMPING, RESTORING, RESUMING),
}
PHASES: Tuple[str, ...] = PHASES_OF[DUMP]
#: The names of the journal's steps in which a phase spends its time.
STEPS: Mapping[str, str] = {
    SUSPENDING: "checkpoint",
    DUMPING: DUMP_STEP,
    RESTORING: RESTORE_STEP,
    RESUMING: "restore",
}
#: The slowest that was measured on H200s, driver 580.159.04, without huge pages, per process, in bytes per second:
#: suspend of 1 GiB alone in 0.87 s; resume of eight times 8 GiB at once in 3.4 s; CRIU 4.1.1 on a disk of 1.6 GB/s,
#: four images of 8.7 GB in turn: 23.5 s to dump and sync, 19.4 s to restore.
SLOWEST: Mapping[str, float] = {
    SUSPENDING: GIB / 0.87,
    DUMPING: 4 * 8.7e9 / 23.5,
    RESTORING: 4 * 8.7e9 / 19.4,
    RESUMING: 8 * GIB / 3.4,
}
#: Up to so many processes at once were measured to take hardly longer than one.
LANES = 8


@dataclass(frozen=True)
class Rate:
    """measured: by so many steps of this host; 0 for elsewhere."""

    bytes_per_second: float
    measured: int


@dataclass(frozen=True)
class Load:
    """One process. device: bytes on GPUs (of a suspended one, those that it held); None is unknown. anonymous: of host
    memory."""

    pid: int
    device: Optional[int]
    anonymous: int
    suspended: bool


@dataclass(frozen=True)
class Estimate:
    """image: on disk, without page cache and what is shared; None is unknown. seconds: by phase, of what is to be done
    still."""

    image: Optional[int]
    seconds: Mapping[str, float]


def host_memory(device: int) -> int:
    """What a suspend takes of host memory: what NVML counts and 3 MiB (measured), with the margin that the hazard
    host_memory leaves."""
    return device + device // 256 + MARGIN


def rate(records: Sequence[StepRecord], slowest: float) -> Rate:
    """The slowest tenth of what was measured here; `slowest` where nothing was."""
    rates = sorted(one.bytes / one.seconds for one in records if one.bytes > 0 and one.seconds > 0)
    return Rate(rates[len(rates) // 10], len(rates)) if rates else Rate(slowest, 0)


def rates(history: Mapping[str, Sequence[StepRecord]]) -> Dict[str, Rate]:
    """history: steps of the journal by their names."""
    return {phase: rate(history.get(STEPS[phase], ()), SLOWEST[phase]) for phase in PHASES}


def of_process(load: Load, known: Mapping[str, Rate]) -> Estimate:
    """A suspended process has its GPU memory in its host memory already."""
    if load.suspended:
        image: Optional[int] = load.anonymous
    elif load.device is None:
        image = None
    else:
        image = load.anonymous + host_memory(load.device)
    seconds = {}
    for phase in PHASES:
        moved = image if phase in (DUMPING, RESTORING) else load.device
        if moved is not None and not (phase == SUSPENDING and load.suspended):
            seconds[phase] = moved / known[phase].bytes_per_second
    return Estimate(image, seconds)


@dataclass(frozen=True)
class Work:
    """Of a host. estimates: in the order of `each`. image, device: bytes of those that are known. unknown: how many are
    not. seconds: by phase, all at once; in_turn: one after another."""

    each: Tuple[Load, ...]
    estimates: Tuple[Estimate, ...]
    rates: Mapping[str, Rate]
    device: int
    image: int
    unknown: int
    seconds: Mapping[str, float]
    in_turn: Mapping[str, float]


def work(loads: Sequence[Load], known: Mapping[str, Rate], processors: int) -> Work:
    """All at once takes as long as the longest, or as all together in as many lanes as there are."""
    lanes = max(1, min(LANES, processors))
    estimates = tuple(of_process(load, known) for load in loads)
    in_turn = {phase: sum(one.seconds.get(phase, 0.0) for one in estimates) for phase in PHASES}
    longest = {phase: max([0.0, *(one.seconds.get(phase, 0.0) for one in estimates)]) for phase in PHASES}
    return Work(
        each=tuple(loads),
        estimates=estimates,
        rates=known,
        device=sum(load.device or 0 for load in loads),
        image=sum(one.image or 0 for one in estimates),
        unknown=sum(1 for one in estimates if one.image is None),
        seconds={phase: max(longest[phase], in_turn[phase] / lanes) for phase in PHASES},
        in_turn=in_turn,
    )


def of_capabilities(seconds: Mapping[str, float]) -> Dict[str, float]:
    """There and back, by capability."""
    return {name: sum(seconds[phase] for phase in phases) for name, phases in PHASES_OF.items()}
