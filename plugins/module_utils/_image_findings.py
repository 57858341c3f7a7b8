# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What speaks against an image before anything is touched, beside what the hazards of its processes say."""

from __future__ import annotations

import os
from typing import Dict, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import size
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

DOCS = "https://github.com/gpufleet/checkpoint/blob/main/docs/images.md"
OPTIONS = frozenset(("disk_space", "second_life"))
#: Beyond the memory: CRIU's other files, its log, the manifest. Bytes.
MARGIN = 64 << 20


def busy(path: str, worker: int, run: str, step: str) -> Finding:
    return Finding(
        id="image_busy",
        severity="blocking",
        subject=path,
        evidence=f"worker PID {worker} of run {run} is at step {step}",
        reason="One worker at a time deals with an image",
        remedy="Wait until it is done, and run the task again; longer with step_timeout",
        option="",
        reference=f"{DOCS}#busy",
        pid=None,
    )


def second_life(path: str, original: Identity) -> Finding:
    return Finding(
        id="second_life",
        severity="blocking",
        subject=path,
        evidence=f"it is a snapshot of PID {original.pid}, which is alive",
        reason="Two lives of one process write to the same files and answer the same peers",
        remedy="End the original first",
        option="second_life",
        reference=f"{DOCS}#lives",
        pid=original.pid,
    )


def elsewhere(path: str, why: str) -> Finding:
    """why: as barred() says it."""
    return Finding(
        id="image_elsewhere",
        severity="blocking",
        subject=path,
        evidence=why,
        reason="Two lives of one process write to the same files and answer the same peers",
        remedy="Run gpufleet.checkpoint.migrate again: it carries on, or brings the process back here",
        option="second_life",
        reference=f"{DOCS}#image_elsewhere",
        pid=None,
    )


def terminal(tree: Tree) -> Tuple[Finding, ...]:
    """Measured: it is dumped with --shell-job, and criu restore without that terminal refuses the image ("Don't have
    tty to inherit session from"). So nobody may override it: the image would be of no use."""
    members = [member for member in tree.members if member.tty]
    if not members:
        return ()
    return (
        Finding(
            id="terminal",
            severity="blocking",
            subject=f"PID {tree.root.pid} ({tree.root.name})",
            evidence=f"{', '.join(f'PID {one.pid} ({one.name})' for one in members[:8])} of its tree has a terminal",
            reason="CRIU restores a terminal only from within the very same one, which no task has",
            remedy="Start it without one: setsid, nohup with its output in a file, or as a service",
            option="",
            reference=f"{DOCS}#terminals",
            pid=tree.root.pid,
        ),
    )


def bytes_of(tree: Tree, gpus: Sequence[GpuSnapshot]) -> int:
    """What its image will take: host memory, and GPU memory that is host memory by then."""
    on_gpus = sum(one.used_bytes or 0 for gpu in gpus for one in gpu.processes if one.pid in tree.pids)
    return on_gpus + sum(member.rss_anon_bytes for member in tree.members)


def room(
    trees: Sequence[Tree], gpus: Sequence[GpuSnapshot], places: Sequence[str], allowed: bool
) -> Tuple[Finding, ...]:
    """Is there space on the file systems that the images go to? places: the path of each tree's image."""
    needed: Dict[int, int] = {}
    where: Dict[int, str] = {}
    for tree, path in zip(trees, places):
        directory = _existing(os.path.dirname(path))
        device = os.stat(directory).st_dev
        needed[device] = needed.get(device, 0) + bytes_of(tree, gpus) + MARGIN
        where[device] = directory
    found = []
    for device, total in needed.items():
        stats = os.statvfs(where[device])
        free = stats.f_bavail * stats.f_frsize
        if free < total:
            found.append(
                Finding(
                    id="disk_space",
                    severity="warning" if allowed else "blocking",
                    subject=where[device],
                    evidence=f"{size(free)} free, {size(total)} are needed for {len(trees)} image(s)",
                    reason="A dump that runs out of space is of no use, and takes its time",
                    remedy="Make room, or name another store; old images go with state: absent, keep and max_age",
                    option="disk_space",
                    reference=f"{DOCS}#space",
                    pid=None,
                )
            )
    return tuple(found)


def _existing(directory: str) -> str:
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    return directory
