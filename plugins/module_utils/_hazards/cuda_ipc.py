# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU memory that other processes may share through CUDA IPC."""

from __future__ import annotations

from typing import List, Optional, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    SUSPEND,
    Context,
    ProcessHazard,
    comma,
    name_of,
    names_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

#: The server of MPS, which holds a context for its clients: their own hazard is mps_client.
_MPS = "nvidia-cuda-mps"
#: Files by which CUDA shares events between processes.
_EVENT_FILES = "/dev/shm/cuda.shm."


def _event_files(process: ProcessSnapshot) -> Set[str]:
    return {path for path in process.shm_files or () if path.startswith(_EVENT_FILES)}


def _together(process: ProcessSnapshot, other: ProcessSnapshot) -> str:
    """By what two processes may have come to share memory; "" for nothing."""
    if process.pid in (other.parent,) or other.pid == process.parent:
        return "parent and child"
    if process.parent == other.parent and process.parent > 1:
        return "the same parent"
    if process.session == other.session and process.session > 0:
        return "the same session"
    mine = {path for path in process.cgroup_paths if path != "/"}
    return "the same control group" if mine & set(other.cgroup_paths) else ""


class CudaIpcPossible(ProcessHazard):
    """Legacy CUDA IPC leaves no trace in /proc (measured), so that it can only be ruled out for a process that has no
    CUDA process near it. Most groups of processes share nothing: a warning. Shared events do leave one: that blocks."""

    id = "cuda_ipc_possible"
    actions = frozenset((SUSPEND,))
    option = "cuda_ipc_possible"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if process.looks_suspended:
            return None
        others = [
            one
            for one in context.snapshot.processes
            if one.pid != process.pid and one.may_be_cuda and not one.name.startswith(_MPS)
        ]
        events = _event_files(process)
        sharing = [one for one in others if events & _event_files(one)] if events else []
        near: List[Tuple[ProcessSnapshot, str]] = [(one, _together(process, one)) for one in others]
        near = [(one, how) for one, how in near if how]
        if not sharing and not near:
            return None
        if sharing:
            evidence = f"it shares CUDA events ({comma(sorted(events), 1)}) with {names_of(sharing)}"
        else:
            hows = sorted({how for _one, how in near})
            evidence = (
                f"that it shares GPU memory by CUDA IPC with {names_of(one for one, _how in near)} can't be ruled out "
                f"({', '.join(hows)}); CUDA IPC leaves no trace"
            )
        return self.finding(
            name_of(process),
            evidence,
            "A process that has imported GPU memory of another one is lost at its restore (1, then 304 for ever)",
            "Make sure that the program does not pass GPU memory between processes (torch.multiprocessing with CUDA "
            "tensors, cudaIpcOpenMemHandle), or let it close what it imported before",
            process.pid,
            severity="" if sharing else WARNING,
        )
