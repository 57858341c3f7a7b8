# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that are split into instances (MIG)."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    SUSPEND,
    Context,
    ProcessHazard,
    comma,
    name_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot


class Mig(ProcessHazard):
    """Reported, not measured: a checkpoint on a GPU in MIG mode fails with a misleading "out of memory"."""

    id = "mig"
    actions = frozenset((SUSPEND,))
    option = "mig"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if process.looks_suspended:
            return None
        used = set(context.device_bytes.get(process.pid) or {})
        split = [gpu for gpu in context.snapshot.gpus if gpu.mig and (not used or gpu.uuid in used)]
        if not split:
            return None
        return self.finding(
            name_of(process),
            ("it works on" if used else "on which GPU it works is not known, and MIG is on for")
            + f" GPU {comma(str(gpu.index) for gpu in split)}"
            + (", where MIG is on" if used else ""),
            "The driver can't checkpoint processes on a GPU that is split by MIG (reported: out of memory), and "
            "a process of which one checkpoint was refused can never be checkpointed again",
            "Turn MIG off (nvidia-smi -mig 0), or leave the process out",
            process.pid,
        )
