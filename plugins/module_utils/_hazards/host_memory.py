# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of the host, and limits of a process: what is on the GPUs has to fit into them."""

from __future__ import annotations

from typing import List, Optional, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    SUSPEND,
    Context,
    ProcessHazard,
    name_of,
    size,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.need import (
    NEVER,
    need_of,
    needs,
    subject_of,
    together,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot


class HostMemory(ProcessHazard):
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
                f"(2), and {NEVER}",
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
            f"The driver refuses such a checkpoint (2), and {NEVER}",
            f"Raise it: prlimit --pid {process.pid} --data=unlimited --as=unlimited",
            process.pid,
        )

    def detect_all(self, context: Context, processes: Sequence[ProcessSnapshot]) -> List[Finding]:
        found = super().detect_all(context, processes)
        total, moving = together(context, processes)
        if not total:
            return found
        host = context.snapshot.host
        subject, pid = subject_of(moving)
        if host.memory_available is None:
            evidence = "how much memory the host has available can't be read (/proc/meminfo)"
        elif total > host.memory_available:
            evidence = (
                f"the host has {size(host.memory_available)} available, and {needs(total, moving)}, "
                f"{size(total - host.memory_available)} more"
            )
        elif host.commit_headroom is not None and total > host.commit_headroom:
            evidence = (
                f"vm.overcommit_memory is 2, {size(host.commit_headroom)} may still be promised, and "
                f"{needs(total, moving)}"
            )
        else:
            return found
        found.append(
            self.finding(
                subject,
                evidence,
                f"The driver refuses the checkpoint (2) or the kernel kills a program, and {NEVER}",
                "Free memory"
                + (" or set vm.overcommit_memory=0" if host.commit_headroom is not None else "")
                + (", or suspend fewer processes at once" if len(moving) > 1 else ""),
                pid,
            )
        )
        return found
