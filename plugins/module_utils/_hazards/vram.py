# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Room on the GPUs for what comes back."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    RESUME,
    Context,
    ProcessHazard,
    comma,
    name_of,
    names_of,
    size,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

_LOST = (
    "A process that finds no room at its restore is lost: the driver says 2, then 304 for ever, also once there is room"
)


class VramShort(ProcessHazard):
    """Measured: conformance cases vram/too-little (lost) and vram/just-enough (free = what was held is enough)."""

    id = "vram_short"
    actions = frozenset((RESUME,))
    option = "vram_short"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        """Whether it is known what it needs, and the GPUs are there."""
        if process.has_devices:
            return None
        needs = context.device_bytes.get(process.pid) or {}
        if not needs or any(need is None for need in needs.values()):
            return self.finding(
                name_of(process),
                "how much GPU memory it held, and where, was not recorded when it was suspended",
                _LOST,
                "Make sure that its GPUs are empty enough; its anonymous host memory is an upper limit: "
                f"{size(process.rss_anon_bytes)}",
                process.pid,
            )
        absent = [uuid for uuid in sorted(needs) if context.snapshot.gpu(uuid) is None]
        if absent:
            return self.finding(
                name_of(process),
                f"its memory belongs to GPU {comma(absent)}, which this host does not have",
                "The driver can't restore memory to a GPU that is not there",
                "Put the GPU back, or map its UUID to another GPU of the same model with device_map",
                process.pid,
                option="",
            )
        return None

    def detect_all(self, context: Context, processes: Sequence[ProcessSnapshot]) -> List[Finding]:
        found = super().detect_all(context, processes)
        needs: Dict[str, Dict[int, int]] = {}
        for process in processes:
            if process.has_devices:
                continue
            for uuid, need in (context.device_bytes.get(process.pid) or {}).items():
                if need:
                    needs.setdefault(uuid, {})[process.pid] = need
        for gpu in context.snapshot.gpus:
            wanted = needs.get(gpu.uuid, {})
            reserved = context.reserved.get(gpu.uuid, 0)
            room = max(0, gpu.free_bytes - reserved)
            total = sum(wanted.values())
            if total <= room:
                continue
            coming = [process for process in processes if process.pid in wanted]
            holders = [
                context.snapshot.process(one.pid) for one in sorted(gpu.processes, key=lambda p: -(p.used_bytes or 0))
            ]
            evidence = f"GPU {gpu.index} ({gpu.uuid}) has {size(gpu.free_bytes)} free"
            if reserved:
                evidence += f", {size(reserved)} of it reserved for other restores"
            evidence += f", and {'it needs' if len(coming) == 1 else f'the {len(coming)} need'} {size(total)}"
            there = names_of([one for one in holders if one is not None], 4)
            found.append(
                self.finding(
                    names_of(coming),
                    evidence,
                    _LOST,
                    (f"End or suspend what holds that GPU ({there}), " if there else "Free that GPU, ")
                    + "resume fewer processes at once, or map to another GPU with device_map",
                    coming[0].pid if len(coming) == 1 else None,
                )
            )
        return found
