# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether threads may be held at all: Yama restricts ptrace."""

from __future__ import annotations

from typing import List, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    RESUME,
    SUSPEND,
    Context,
    Hazard,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

_RULES = {
    1: "lets a user trace only what he has started",
    2: "lets nobody but root trace",
    3: "lets nobody trace, root included, until the next boot",
}


class YamaPtrace(Hazard):
    """Rules of kernel.yama.ptrace_scope: Documentation/admin-guide/LSM/Yama.rst of the kernel."""

    id = "yama_ptrace"
    actions = frozenset((SUSPEND, RESUME))

    def detect_all(self, context: Context, processes: Sequence[ProcessSnapshot]) -> List[Finding]:
        scope = context.snapshot.host.yama_ptrace_scope
        if not processes or not scope or (context.uid == 0 and scope < 3):
            return []
        rule = _RULES.get(scope, "is not known")
        return [
            self.finding(
                "This host",
                f"kernel.yama.ptrace_scope is {scope}, which {rule}, and this runs as user {context.uid}",
                "The threads of a process are held while it is suspended and resumed, which is done by tracing it",
                "Boot with another value (sysctl.d)" if scope == 3 else "Run this as root (become: true)",
                None,
            )
        ]
