# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory limits of control groups: what is on the GPUs has to fit into them."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import CgroupSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    SUSPEND,
    Context,
    Hazard,
    comma,
    size,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.need import (
    need_of,
    needs,
    subject_of,
    together,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

_KILLS = "The kernel would kill the program in the middle of the checkpoint"
_CRAWLS = "Past memory.high the kernel slows the program down so much that the checkpoint does not end in time"


class CgroupMemory(Hazard):
    """Measured: conformance case limit/cgroup-memory (the kernel kills the program in the middle of the checkpoint)."""

    id = "cgroup_memory"
    actions = frozenset((SUSPEND,))
    option = "cgroup_memory"

    @staticmethod
    def _dark(process: ProcessSnapshot) -> str:
        """What of its groups can't be seen; "" for nothing."""
        dark = [group for group in _memory_groups(process) if "memory" in group.unreadable]
        top = [group for group in _memory_groups(process) if group.hidden_ancestors]
        if "cgroups" in process.unreadable:
            return "their control groups can't be read"
        if dark and not dark[0].directory:
            return f"the control group {dark[0].path} can't be seen here (not mounted, or outside the cgroup namespace)"
        if dark:
            return f"memory limits of {comma(group.path for group in dark)} can't be read"
        if top:
            return f"memory limits above {top[0].path} can't be seen from this cgroup namespace"
        return ""

    def _unseen(self, processes: Sequence[ProcessSnapshot]) -> List[Finding]:
        by_place: Dict[str, List[ProcessSnapshot]] = {}
        for process in processes:
            place = "" if process.looks_suspended else self._dark(process)
            if place:
                by_place.setdefault(place, []).append(process)
        found = []
        for place, members in by_place.items():
            subject, pid = subject_of(members)
            found.append(
                self.finding(
                    subject,
                    f"{place}, so that a memory limit can't be ruled out",
                    "Past a limit, the kernel kills the program in mid-checkpoint, or slows it to a crawl",
                    "Compare the limits with the GPU memory, or run this on the host itself, not in a container",
                    pid,
                    severity=WARNING,
                )
            )
        return found

    def detect_all(self, context: Context, processes: Sequence[ProcessSnapshot]) -> List[Finding]:
        found = self._unseen(processes)
        groups: Dict[Tuple[str, str], Tuple[CgroupSnapshot, List[ProcessSnapshot]]] = {}
        for process in processes:
            for group in process.cgroups:
                groups.setdefault((group.hierarchy, group.path), (group, []))[1].append(process)
        for group, members in groups.values():
            for limit, name, reason in (
                (group.memory_max, "memory.max" if group.version == 2 else "memory.limit_in_bytes", _KILLS),
                (group.memory_high, "memory.high", _CRAWLS),
            ):
                finding = None if limit is None else self._short(context, group, members, limit, name, reason)
                if finding is not None:
                    found.append(finding)
                    break
        return found

    def _short(
        self,
        context: Context,
        group: CgroupSnapshot,
        members: List[ProcessSnapshot],
        limit: int,
        name: str,
        reason: str,
    ) -> Optional[Finding]:
        used, reclaimable = group.memory_current or 0, group.reclaimable or 0
        room = max(0, limit - used + reclaimable)
        total, moving = together(context, members)
        unknown = [process for process in members if need_of(context, process) is None]
        limits = f"{name} of control group {group.path} is {size(limit)}, {size(used)} of it in use"
        if reclaimable:
            limits += f" ({size(reclaimable)} of that can be reclaimed)"
        if group.memory_current is None and moving:
            subject, pid = subject_of(moving)
            evidence = f"{name} of control group {group.path} is {size(limit)}; how much of it is in use can't be read"
        elif total > room:
            subject, pid = subject_of(moving)
            evidence = f"{limits}; {needs(total, moving)}, {size(total - room)} more than there is"
        elif unknown:
            subject, pid = subject_of(unknown)
            evidence = f"{limits}; how much GPU memory is to go into it is not known"
        else:
            return None
        return self.finding(
            subject,
            evidence,
            reason,
            f"Raise it (systemctl set-property --runtime UNIT {'MemoryMax' if reason is _KILLS else 'MemoryHigh'}=..., "
            "or in the scheduler), or suspend fewer processes of that group",
            pid,
        )


def _memory_groups(process: ProcessSnapshot) -> List[CgroupSnapshot]:
    """Those that may limit memory: of the version 1 hierarchy of that name where there is one, else of version 2."""
    first = [group for group in process.cgroups if "memory" in group.hierarchy.split(",")]
    return first or [group for group in process.cgroups if group.version == 2]
