# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CRIU can't dump in a process or its children."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    IMAGES,
    Context,
    ProcessHazard,
    comma,
    name_of,
    ties_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot


class ForkedGpuChild(ProcessHazard):
    """Measured: suspend and resume of the parent are ok, criu dump of the tree fails (`handle_device_vma`, the child's
    mapping). A child with CUDA of its own is suspended like its parent."""

    id = "forked_gpu_child"
    actions = IMAGES

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        ties = ties_of(context, process)
        if ties is None:
            return None
        held = []
        for member in ties.members:
            other = context.snapshot.process(member.pid)
            if member.pid != process.pid and member.devices and not (other is not None and other.may_be_cuda):
                held.append(f"PID {member.pid} ({member.name})")
        if not held:
            return None
        return self.finding(
            name_of(process),
            f"it has forked {comma(held)} after it had started CUDA: its devices are open or mapped there",
            "The driver takes the GPU from the parent only, and CRIU refuses the devices that are left in the child",
            "End these children before (a DataLoader: num_workers=0, or multiprocessing_context='spawn'), or let the "
            "program fork before it starts CUDA",
            process.pid,
        )


class IoUring(ProcessHazard):
    """Measured: CRIU can't dump `anon_inode:[io_uring]`."""

    id = "io_uring"
    actions = IMAGES

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        ties = ties_of(context, process)
        holders = () if ties is None else ties.io_uring
        if not holders and "[io_uring]" in (process.anon_inodes or ()):
            holders = (name_of(process),)
        if not holders:
            return None
        return self.finding(
            name_of(process),
            f"{comma(holders)} {'has' if len(holders) == 1 else 'have'} an io_uring open",
            "CRIU can't dump it",
            "Switch io_uring off in the program (uvloop and libuv: UV_USE_IO_URING=0), or for the host: sysctl "
            "kernel.io_uring_disabled=2; then start the program anew",
            process.pid,
        )
