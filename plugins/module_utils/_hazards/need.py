# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much host memory a checkpoint takes. Pure."""

from __future__ import annotations

from typing import Iterable, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import MIB, Context, names_of, size
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

#: Beyond what NVML counts for a process, contexts included (measured: 3 MiB), and beside page tables.
MARGIN = 64 * MIB

NEVER = "a process of which one checkpoint was refused can never be checkpointed again"


def need_of(context: Context, process: ProcessSnapshot) -> Optional[int]:
    """Bytes of host memory that its checkpoint will take; 0 where it is suspended already; None is unknown."""
    if process.looks_suspended:
        return 0
    held = context.bytes_of(process.pid)
    return None if held is None else held + held // 256 + MARGIN


def together(context: Context, processes: Iterable[ProcessSnapshot]) -> Tuple[int, List[ProcessSnapshot]]:
    """The sum of the needs that are known, and the processes that have one."""
    sizes = [(process, need_of(context, process)) for process in processes]
    moving = [(process, need) for process, need in sizes if need]
    return sum(need for _process, need in moving), [process for process, _need in moving]


def subject_of(processes: List[ProcessSnapshot]) -> Tuple[str, Optional[int]]:
    return names_of(processes), processes[0].pid if len(processes) == 1 else None


def needs(total: int, processes: List[ProcessSnapshot]) -> str:
    return f"{'it needs' if len(processes) == 1 else f'the {len(processes)} need'} {size(total)}"
