# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every detector over a host, in the order in which findings are reported. Pure; docs/preflight.md lists them."""

from __future__ import annotations

from typing import List, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import driver_findings as driver
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import gpu_findings as gpu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import room_findings as room
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import system_findings as system
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import Concern, HostHazard
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import HostFacts

HOST_HAZARDS: Tuple[HostHazard, ...] = (
    driver.Architecture(),
    driver.DriverMissing(),
    driver.Nouveau(),
    driver.DriverUnknown(),
    driver.DriverTooOld(),
    driver.DriverDenied(),
    driver.DriverMismatch(),
    gpu.NoGpu(),
    gpu.GpuSilent(),
    driver.NoBackend(),
    driver.Unparked(),
    driver.NoDeviceMap(),
    gpu.NvmlMissing(),
    gpu.NvmlSilent(),
    gpu.PersistenceOff(),
    gpu.MigOn(),
    gpu.MpsDaemon(),
    *system.RIGHTS,
    room.JournalUnusable(),
    *system.KERNEL,
    *system.CRIU,
    room.StoreUnknown(),
    room.StoreUnusable(),
    room.StoreVolatile(),
    room.StoreNetwork(),
    room.DiskShort(),
    room.WindowShort(),
)


def look(facts: HostFacts) -> Tuple[Concern, ...]:
    """Everything that speaks against a capability of this host."""
    found: List[Concern] = []
    for hazard in HOST_HAZARDS:
        found.extend(hazard.detect(facts))
    return tuple(found)
