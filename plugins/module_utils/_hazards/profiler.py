# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profilers inside a process."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    SUSPEND,
    Context,
    ProcessHazard,
    comma,
    name_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

#: What Nsight and nvprof load into a program. libcupti says nothing: every PyTorch process maps it.
INJECTED = ("libcuinj64.", "libToolsInjection64.", "libInterceptorInjectionTarget.", "libcuda-injection.")


class ProfilerAttached(ProcessHazard):
    """Reported, not measured: a process with an attached profiler (CUPTI) is refused."""

    id = "profiler_attached"
    actions = frozenset((SUSPEND,))
    option = "profiler_attached"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        loaded = [name for name in process.libraries or () if name.startswith(INJECTED)]
        told = (process.environment or {}).get("CUDA_INJECTION64_PATH", "")
        if loaded:
            evidence = f"a profiler is loaded into it ({comma(loaded)})"
        elif told:
            evidence = f"it was started with a library to be loaded into CUDA (CUDA_INJECTION64_PATH={told})"
        else:
            return None
        return self.finding(
            name_of(process),
            evidence,
            "The driver does not support the checkpoint of a process with a profiler (reported), and after one refusal "
            "it can never be checkpointed again",
            "Run it without the profiler (nsys, ncu, nvprof)",
            process.pid,
        )
