# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU memory that is exported to a file descriptor."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    SUSPEND,
    Context,
    ProcessHazard,
    name_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import CONTROL, ProcessSnapshot


def exported_descriptors(process: ProcessSnapshot) -> Optional[int]:
    """How many descriptors of exported memory it has open; None is unknown. CUDA opens /dev/nvidiactl once, NVML once
    more where it is in use; each export is one more (measured: conformance cases kind/vmm-export, real/torch-plain)."""
    if process.device_files is None or process.libraries is None:
        return None
    usual = 1
    if any(name.startswith("libnvidia-ml.") for name in process.libraries):
        usual += 1
    return max(0, process.device_files.count(CONTROL) - usual)


class VmmExport(ProcessHazard):
    """Measured: conformance case kind/vmm-export. The process comes back whole."""

    id = "vmm_export"
    actions = frozenset((SUSPEND,))
    option = "vmm_export"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if process.looks_suspended:
            return None
        count = exported_descriptors(process)
        if count == 0:
            return None
        if count is None:
            evidence = "whether it has exported GPU memory can't be seen: its descriptors or mappings may not be read"
        else:
            times = (process.device_files or ()).count(CONTROL)
            usual = "once, and once more for NVML," if times - count > 1 else "once"
            evidence = f"it holds exported GPU memory: {CONTROL} is open {times} times, where {usual} is usual"
        return self.finding(
            name_of(process),
            evidence,
            "Exported memory stays on the GPU while the process is suspended, and nothing lists who holds it; whoever "
            "imported it goes on with it",
            "Let the program close the exported descriptors before, or consent if the GPU need not be empty",
            process.pid,
        )
