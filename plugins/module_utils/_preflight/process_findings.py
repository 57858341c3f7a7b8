# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What processes can't do under the driver that this host has: detectors that need its version. Pure."""

from __future__ import annotations

from typing import List, Mapping, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, Finding, reference
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import name_of, plural
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import drivers
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import DOCS, EVERYTHING, Concern
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

_NVML = "libnvidia-ml"
_NEVER = "a process of which one checkpoint was refused can never be checkpointed again"


def _finding(
    identifier: str, process: ProcessSnapshot, evidence: str, reason: str, remedy: str, where: str = ""
) -> Finding:
    return Finding(
        id=identifier,
        severity=BLOCKING,
        subject=name_of(process),
        evidence=evidence,
        reason=reason,
        remedy=remedy,
        option="",
        reference=where or f"{DOCS}#{identifier}",
        pid=process.pid,
    )


def nvml_users(processes: Sequence[ProcessSnapshot], version: drivers.Version) -> List[Finding]:
    if not version or drivers.has(version, drivers.NVML_USERS):
        return []
    return [
        _finding(
            "nvml_user",
            process,
            f"it has NVML loaded, and the driver is {drivers.show(version)}",
            f"{drivers.feature(drivers.NVML_USERS).without} before driver 570, and {_NEVER}",
            "Install driver 570 or later",
        )
        for process in processes
        if any(name.startswith(_NVML) for name in process.libraries or ())
    ]


def some_gpus(
    processes: Sequence[ProcessSnapshot], version: drivers.Version, visible: Mapping[int, int], gpus: int
) -> List[Finding]:
    """visible: PID -> how many GPUs its own /dev has. gpus: of the host."""
    if not version or drivers.has(version, drivers.SOME_GPUS):
        return []
    since = drivers.show(drivers.feature(drivers.SOME_GPUS).since)
    return [
        _finding(
            "some_gpus",
            process,
            f"{plural(visible[process.pid], 'GPU')} of the host's {gpus} can be seen in its /dev, and the driver is "
            f"{drivers.show(version)}",
            f"{drivers.feature(drivers.SOME_GPUS).without} before driver {since} (reported)",
            f"Install driver {since} or later, or give the container every GPU",
        )
        for process in processes
        if visible.get(process.pid, gpus) < gpus
    ]


def running_without_gpu(process: ProcessSnapshot) -> Finding:
    """Measured: case park/continued."""
    return _finding(
        "running_without_gpu",
        process,
        "it was suspended and parked, but its threads run, because somebody continued it while nobody guarded it",
        "Threads that ask the driver now crash it",
        "Stop it at once, or resume it: gpufleet.checkpoint.cuda_checkpoint with its PID",
        reference("running_without_gpu"),
    )


def driver_concerns(
    running: Sequence[ProcessSnapshot], version: drivers.Version, visible: Mapping[int, int], gpus: int
) -> List[Concern]:
    """running: those that are not suspended yet."""
    found = [*nvml_users(running, version), *some_gpus(running, version, visible, gpus)]
    return [Concern(finding, EVERYTHING) for finding in found]
