# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that speaks against locking, suspending, resuming or dumping processes. Pure; docs/hazards.md lists
them."""

from __future__ import annotations

from typing import FrozenSet, List, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.cgroup_memory import CgroupMemory
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.container import (
    Container,
    ContainerProbe,
    PrivateMounts,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.cuda_ipc import CudaIpcPossible
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.files import (
    DeletedFile,
    FileLock,
    FilesUnknown,
    NfsFile,
    RotatedLog,
    VolatileFile,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import ACTIONS, Context, Hazard
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.host_memory import HostMemory
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.mig import Mig
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.mps import MpsClient
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.nccl import NcclCommunicator
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.profiler import ProfilerAttached
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.slurm import SlurmStep
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.stopped import StoppedOrFrozen, Traced
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.streams import (
    ExternalPipe,
    ExternalUnixSocket,
    JournaldStdio,
    SocketOption,
    TcpEstablished,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.systemd import (
    SystemdOomd,
    SystemdRestart,
    SystemdRuntime,
    SystemdWatchdog,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.terminal import (
    ControllingTty,
    ParkUnsafeParent,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.tree import ForkedGpuChild, IoUring
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.uvm import UvmManaged
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.vmm_export import VmmExport
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.vram import VramShort
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.who import NotCuda, OtherOwner
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.yama import YamaPtrace

#: In the order in which they are reported.
HAZARDS: Tuple[Hazard, ...] = (
    OtherOwner(),
    NotCuda(),
    StoppedOrFrozen(),
    Traced(),
    UvmManaged(),
    NcclCommunicator(),
    CudaIpcPossible(),
    VmmExport(),
    MpsClient(),
    Mig(),
    CgroupMemory(),
    HostMemory(),
    VramShort(),
    YamaPtrace(),
    ProfilerAttached(),
    SystemdWatchdog(),
    SystemdRuntime(),
    ContainerProbe(),
    ParkUnsafeParent(),
    SystemdOomd(),
    SlurmStep(),
    Container(),
    PrivateMounts(),
    SystemdRestart(),
    FilesUnknown(),
    ForkedGpuChild(),
    IoUring(),
    ControllingTty(),
    JournaldStdio(),
    ExternalPipe(),
    ExternalUnixSocket(),
    TcpEstablished(),
    SocketOption(),
    DeletedFile(),
    FileLock(),
    VolatileFile(),
    NfsFile(),
    RotatedLog(),
)

#: Where one of these holds, nothing else needs to be said about that process.
EXCLUSIVE: FrozenSet[str] = frozenset(hazard.id for hazard in HAZARDS if hazard.exclusive)

#: Every name that `allow:` takes. "unparked" is no detector: it follows from the backend and from `park`.
OPTIONS: FrozenSet[str] = frozenset(hazard.option for hazard in HAZARDS if hazard.option) | {"unparked"}


def evaluate(context: Context, allow: FrozenSet[str] = frozenset()) -> Tuple[Finding, ...]:
    """What speaks against the action on the targets. Findings whose option is in `allow` come back as warnings.

    Targets that are not in the snapshot are left out: who asks for one that does not exist has to be told before.
    Raises ValueError for an action that is not known.
    """
    if context.action not in ACTIONS:
        raise ValueError(f"action {context.action!r}: {', '.join(sorted(ACTIONS))} are known")
    found: List[Finding] = []
    settled: Set[int] = set()
    for hazard in HAZARDS:
        if context.action not in hazard.actions:
            continue
        open_questions = [process for process in context.processes if process.pid not in settled]
        findings = hazard.detect_all(context, open_questions)
        found.extend(findings)
        if hazard.exclusive:
            settled.update(finding.pid for finding in findings if finding.pid is not None)
    return tuple(
        finding.allowed() if finding.severity == BLOCKING and finding.option in allow else finding for finding in found
    )


__all__ = ["EXCLUSIVE", "HAZARDS", "OPTIONS", "Context", "Finding", "Hazard", "evaluate"]
