# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm: a step that ends gives its GPU away, and a job's time runs on while it is suspended."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    IMAGES,
    SUSPEND,
    Context,
    ProcessHazard,
    name_of,
    span,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import place
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import natural


class SlurmStep(ProcessHazard):
    """By its control group, else SLURM_JOB_ID. The limit: SLURM_JOB_END_TIME, unix seconds, since Slurm 22.05."""

    id = "slurm_step"
    actions = IMAGES | {SUSPEND}
    option = "slurm_step"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        where = place(process)
        if where.slurm_job is None:
            return None
        step = "" if where.slurm_step is None else f", step {where.slurm_step}"
        job = f"it is in Slurm job {where.slurm_job}{step}"
        if context.action in IMAGES:
            return self.finding(
                name_of(process),
                job,
                "The dump ends it: Slurm sees the step end, ends the job and gives the GPU to the next one",
                "Suspend it in memory in its place, where the job stays RUNNING; or consent if the job may end",
                process.pid,
            )
        told = natural((process.environment or {}).get("SLURM_JOB_END_TIME", ""))
        left = None if told is None else told - context.snapshot.taken
        if left is None:
            limit = "its time limit is not in its environment"
        else:
            limit = f"its time limit ends in {span(left)}" if left > 0 else "its time limit has passed"
        return self.finding(
            name_of(process),
            f"{job}, and {limit}",
            "The job stays RUNNING and its time runs on while it is suspended; at its limit Slurm ends it",
            f"Compare it with your window (squeue -h -j {where.slurm_job} -o %L), and raise it where it is short "
            f"(scontrol update JobId={where.slurm_job} TimeLimit=+60)",
            process.pid,
            severity=WARNING,
            option="",
        )
