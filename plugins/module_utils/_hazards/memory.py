# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host memory: what is on the GPUs has to fit into it, in the control groups and on the host."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import CgroupSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    MIB,
    SUSPEND,
    Context,
    Hazard,
    comma,
    name_of,
    names_of,
    size,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

#: Beyond what NVML counts for a process, contexts included (measured: 3 MiB), and beside page tables.
MARGIN = 64 * MIB

_NEVER = "a process of which one checkpoint was refused can never be checkpointed again"


def need_of(context: Context, process: ProcessSnapshot) -> Optional[int]:
    """Bytes of host memory that its checkpoint will take; 0 where it is suspended already; None is unknown."""
    if process.looks_suspended:
        return 0
    held = context.bytes_of(process.pid)
    return None if held is None else held + held // 256 + MARGIN


def _together(context: Context, processes: Iterable[ProcessSnapshot]) -> Tuple[int, List[ProcessSnapshot]]:
    """The sum of the needs that are known, and the processes that have one."""
    needs = [(process, need_of(context, process)) for process in processes]
    moving = [(process, need) for process, need in needs if need]
    return sum(need for _process, need in moving), [process for process, _need in moving]


def _subject(processes: List[ProcessSnapshot]) -> Tuple[str, Optional[int]]:
    return names_of(processes), processes[0].pid if len(processes) == 1 else None


def _needs(total: int, processes: List[ProcessSnapshot]) -> str:
    return f"{'it needs' if len(processes) == 1 else f'the {len(processes)} need'} {size(total)}"


class CgroupMemory(Hazard):
    """Measured: conformance case limit/cgroup. The kernel kills the program in the middle of the checkpoint."""

    id = "cgroup_memory"
    actions = frozenset((SUSPEND,))
    option = "cgroup_memory"

    @staticmethod
    def _dark(process: ProcessSnapshot) -> str:
        """What of its groups can't be seen; "" for nothing."""
        dark = [group for group in process.cgroups if "memory" in group.unreadable]
        top = [group for group in process.cgroups if group.hidden_ancestors and _tells_memory(group)]
        if "cgroups" in process.unreadable:
            return "their control groups can't be read"
        if dark:
            return f"memory limits of {comma(group.path for group in dark)} can't be read here"
        if top:
            return f"memory limits above {top[0].path} can't be seen from this cgroup namespace"
        return ""

    def _unseen(self, processes: List[ProcessSnapshot]) -> List[Finding]:
        by_place: Dict[str, List[ProcessSnapshot]] = {}
        for process in processes:
            place = "" if process.looks_suspended else self._dark(process)
            if place:
                by_place.setdefault(place, []).append(process)
        found = []
        for place, members in by_place.items():
            subject, pid = _subject(members)
            found.append(
                self.finding(
                    subject,
                    f"{place}, so that a limit can't be ruled out",
                    "Past a limit, the kernel kills the program in mid-checkpoint, or slows it to a crawl",
                    "Compare the limits with the GPU memory, or run this on the host itself, not in a container",
                    pid,
                    severity=WARNING,
                )
            )
        return found

    def detect_all(self, context: Context, processes: Iterable[ProcessSnapshot]) -> List[Finding]:
        everyone = list(processes)
        found = self._unseen(everyone)
        groups: Dict[Tuple[str, str], Tuple[CgroupSnapshot, List[ProcessSnapshot]]] = {}
        for process in everyone:
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
        total, moving = _together(context, members)
        unknown = [process for process in members if need_of(context, process) is None]
        limits = f"{name} of its control group {group.path} is {size(limit)}, {size(used)} of it in use"
        if reclaimable:
            limits += f" ({size(reclaimable)} of that can be reclaimed)"
        if total > room:
            subject, pid = _subject(moving)
            evidence = f"{limits}; {_needs(total, moving)}, {size(total - room)} more than there is"
        elif unknown:
            subject, pid = _subject(unknown)
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


_KILLS = "The kernel would kill the program in the middle of the checkpoint"
_CRAWLS = "Past memory.high the kernel slows the program down so much that the checkpoint does not end in time"


def _tells_memory(group: CgroupSnapshot) -> bool:
    return group.version == 2 or "memory" in group.hierarchy.split(",")


class HostMemory(Hazard):
    """Measured: conformance cases limit/overcommit and limit/rlimit-data (2, then 999 for ever)."""

    id = "host_memory"
    actions = frozenset((SUSPEND,))
    option = "host_memory"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        """What limits this one process."""
        need = need_of(context, process)
        if need is None:
            return self.finding(
                name_of(process),
                "how much GPU memory it holds is not known: NVML does not say",
                "Whether the host has room for it can't be checked. If it has not, the driver refuses the checkpoint "
                f"(2), and {_NEVER}",
                "Run this in the host's PID namespace; compare nvidia-smi with the memory that is available",
                process.pid,
            )
        if need and "limits" in process.unreadable:
            return self._limit(process, "its limits (/proc/PID/limits) can't be read")
        for name, limit, used in (
            ("RLIMIT_DATA", process.data_limit_bytes, process.data_bytes),
            ("RLIMIT_AS", process.address_limit_bytes, process.virtual_bytes),
        ):
            if need and limit is not None and used + need > limit:
                return self._limit(
                    process, f"its {name} is {size(limit)}, {size(used)} of it in use, and it needs {size(need)}"
                )
        return None

    def _limit(self, process: ProcessSnapshot, evidence: str) -> Finding:
        return self.finding(
            name_of(process),
            evidence,
            f"The driver refuses such a checkpoint (2), and {_NEVER}",
            f"Raise it: prlimit --pid {process.pid} --data=unlimited --as=unlimited",
            process.pid,
        )

    def detect_all(self, context: Context, processes: Iterable[ProcessSnapshot]) -> List[Finding]:
        everyone = list(processes)
        found = super().detect_all(context, everyone)
        total, moving = _together(context, everyone)
        if not total:
            return found
        host = context.snapshot.host
        subject, pid = _subject(moving)
        if host.memory_available is None:
            evidence = "how much memory the host has available can't be read (/proc/meminfo)"
        elif total > host.memory_available:
            evidence = (
                f"the host has {size(host.memory_available)} available, and {_needs(total, moving)}, "
                f"{size(total - host.memory_available)} more"
            )
        elif host.commit_headroom is not None and total > host.commit_headroom:
            evidence = (
                f"vm.overcommit_memory is 2, {size(host.commit_headroom)} may still be promised, and "
                f"{_needs(total, moving)}"
            )
        else:
            return found
        found.append(
            self.finding(
                subject,
                evidence,
                f"The driver refuses the checkpoint (2) or the kernel kills a program, and {_NEVER}",
                "Free memory"
                + (" or set vm.overcommit_memory=0" if host.commit_headroom is not None else "")
                + (", or suspend fewer processes at once" if len(moving) > 1 else ""),
                pid,
            )
        )
        return found
