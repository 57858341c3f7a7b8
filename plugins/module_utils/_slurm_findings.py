# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that a drain would end, in words for the operator. Pure."""

from __future__ import annotations

import time
from typing import Collection, List

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._slurm import Job, blocked_by
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

DOCS = "https://github.com/gpufleet/checkpoint/blob/main/docs/schedulers.md"
#: What `allow` takes.
STEP = "slurm_step"
LIMIT = "slurm_time_limit"
# More than what is left of a window, so that the job does not end with it.
_SPARE_MINUTES = 10


def _instant(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _subject(job: Job) -> str:
    return f"Slurm job {job.id} ({printable(job.name)[:60]}) of {printable(job.user)}"


def _step(job: Job, mode: str) -> Finding:
    end = f", and ends at {_instant(job.end)} at the latest" if job.end is not None else ", without a time limit"
    what = "reboots the host" if mode != "disk" else "writes its processes to the disk, which ends them here"
    return Finding(
        id=STEP,
        severity=BLOCKING,
        subject=_subject(job),
        evidence=f"it is {job.state} on this node{end}",
        reason=f"The drain {what}: Slurm sees the step end, ends the job and gives its GPU to the next one",
        remedy=f"Wait until it has ended, requeue it (scontrol requeue {job.id}), or suspend in memory without a "
        "reboot, where the job stays RUNNING",
        option=STEP,
        reference=f"{DOCS}#{STEP}",
        pid=None,
    )


def _limit(job: Job, end: int, until: int) -> Finding:
    minutes = max(0, until - end) // 60 + _SPARE_MINUTES
    return Finding(
        id=LIMIT,
        severity=BLOCKING,
        subject=_subject(job),
        evidence=f"it is {job.state} on this node, and its time limit ends at {_instant(end)}, before the window does "
        f"({_instant(until)})",
        reason="Its time runs on while it is suspended; at its limit Slurm ends it",
        remedy=f"Raise its limit (scontrol update JobId={job.id} TimeLimit=+{minutes}), wait until it has ended, or "
        "shorten the window (gpu_drain_window)",
        option=LIMIT,
        reference=f"{DOCS}#{LIMIT}",
        pid=None,
    )


def findings(jobs: Collection[Job], mode: str, reboots: bool, until: int, allow: Collection[str]) -> List[Finding]:
    """until: unix seconds of the end of the window. What `allow` names is a warning."""
    ended, short = blocked_by(jobs, mode, reboots, until)
    found = [_step(job, mode) for job in ended]
    found += [_limit(job, job.end, until) for job in short if job.end is not None]
    return [finding.allowed() if finding.option in allow else finding for finding in found]
