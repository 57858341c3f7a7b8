# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a process is one that the driver can suspend for this caller at all."""

from __future__ import annotations

from typing import Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    LIVE,
    Context,
    ProcessHazard,
    comma,
    name_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot


class OtherOwner(ProcessHazard):
    """The driver answers 304 to everybody but root and the owner (measured: conformance case who/other-owner)."""

    id = "other_owner"
    actions = LIVE
    exclusive = True

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if context.uid in (0, process.uid):
            return None
        return self.finding(
            name_of(process),
            f"it belongs to user {process.uid}, and this runs as user {context.uid}",
            "The driver lets only root and the owner of a process suspend it, and only they can hold its threads",
            "Run this as root (become: true) or as that user",
            process.pid,
        )


class NotCuda(ProcessHazard):
    """No socket of CUDA's memory manager that is its own, and its node not mapped: the driver answers 3 (measured)."""

    id = "not_cuda"
    actions = LIVE
    exclusive = True

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if process.may_be_cuda is not False:
            return None
        evidence, remedy = self._words(context, process)
        return self.finding(
            name_of(process), evidence, "There is nothing of it on a GPU that could be suspended", remedy, process.pid
        )

    @staticmethod
    def _words(context: Context, process: ProcessSnapshot) -> Tuple[str, str]:
        if process.is_zombie:
            return "it has ended, and its parent has not collected it", "Leave it out"
        if not process.has_devices:
            return "it has no CUDA in use", "Name the process that has, which may be a child of this one"
        held = comma(sorted(set(process.device_files or ()) | {one.path for one in process.device_mappings or ()}))
        parent = context.snapshot.process(process.parent)
        if parent is not None and parent.may_be_cuda:
            return (
                f"it holds {held}, but no CUDA of its own: its parent, {name_of(parent)}, has, and it inherited them",
                f"Name PID {parent.pid} in its place",
            )
        return f"it holds {held}, but has no CUDA in use", "Leave it out"
