# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Managed memory: a checkpoint is refused, and every later one, too."""

from __future__ import annotations

import re
from typing import List, Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    MIB,
    SUSPEND,
    Context,
    ProcessHazard,
    name_of,
    plural,
    size,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot

#: CUDA maps that much of /dev/nvidia-uvm for each GPU that a process works on.
OWN_BYTES = 2 * MIB

_GPU_NODE = re.compile(r"^/dev/nvidia\d+$")


def gpus_in_use(snapshot: Snapshot, process: ProcessSnapshot) -> int:
    """On how many GPUs a process has a context: those on which NVML lists it, or of which it maps more than the few
    pages that every GPU of the host gets (measured: 64 KiB of a GPU not in use, 2 MiB of one in use). At least 1."""
    listed = len(snapshot.device_bytes(process.pid))
    mapped = {one.path for one in process.device_mappings or () if _GPU_NODE.match(one.path) and one.bytes >= OWN_BYTES}
    return max(listed, len(mapped), 1)


def managed_sizes(snapshot: Snapshot, process: ProcessSnapshot) -> Optional[List[int]]:
    """Bytes of each mapping of /dev/nvidia-uvm beyond CUDA's own; None is unknown."""
    if process.uvm_mappings is None:
        return None
    sizes = sorted(one.bytes for one in process.uvm_mappings)
    for _gpu in range(gpus_in_use(snapshot, process)):
        if OWN_BYTES in sizes:
            sizes.remove(OWN_BYTES)
    return sizes


class UvmManaged(ProcessHazard):
    """Measured: conformance cases kind/managed (801, then 999 for ever) and kind/multi-gpu (one mapping per GPU)."""

    id = "uvm_managed"
    actions = frozenset((SUSPEND,))
    option = "uvm_managed"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        extra = managed_sizes(context.snapshot, process)
        if extra == []:
            return None
        if extra is None:
            evidence = "whether it has managed memory can't be seen: its mappings may not be read"
        else:
            evidence = (
                f"it has managed memory (cudaMallocManaged): {plural(len(extra), 'mapping')} of /dev/nvidia-uvm, "
                f"{size(sum(extra))}, beyond CUDA's own 2 MiB for each GPU in use"
            )
        return self.finding(
            name_of(process),
            evidence,
            "The driver refuses to checkpoint it (801), and after one refusal it can never be checkpointed again (999)",
            "Run it without managed memory (TF_FORCE_UNIFIED_MEMORY of JAX, a managed pool of RAPIDS, CuPy), or "
            "leave the process out",
            process.pid,
        )
