# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""scontrol and squeue: asking about a node, draining and releasing it."""

from __future__ import annotations

import os
from typing import List, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import MOST_BYTES, Command, Said
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.tool import ToolError, find
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._slurm import (
    JOB_FORMAT,
    Job,
    Node,
    SlurmError,
    parse_jobs,
    parse_node,
)

SECONDS = 120.0


def _find(executable: str, option: str) -> str:
    try:
        return find(executable)
    except ToolError as error:
        raise SlurmError(
            f"{option}: {error}. Slurm's client tools have to be on the host that the task runs on. Install them, name "
            f"their path with {option}, or delegate to a host that has them (gpu_drain_scheduler_delegate)."
        ) from error


class Slurm:
    """The tools, called in the C locale and with times in unix seconds. Raises SlurmError."""

    def __init__(self, scontrol: str, squeue: str) -> None:
        self._scontrol, self._squeue = _find(scontrol, "scontrol"), _find(squeue, "squeue")
        for name in list(os.environ):
            if name.startswith("SQUEUE_") or name == "SCONTROL_ALL":
                del os.environ[name]
        os.environ["SLURM_TIME_FORMAT"] = "%s"

    def _run(self, argv: Sequence[str]) -> Said:
        said = Command(argv).finish(SECONDS)
        if said.problem:
            raise SlurmError(
                f"{said.problem}. Check on the host that the task runs on that slurmctld answers: scontrol ping."
            )
        return said

    def _must(self, argv: Sequence[str]) -> str:
        said = self._run(argv)
        if said.status != 0:
            raise SlurmError(_refusal(argv, said))
        if len(said.out) >= MOST_BYTES:
            raise SlurmError(f"{' '.join(argv)}: it said more than {MOST_BYTES} bytes, which is not read to its end.")
        return said.out

    def node(self, name: str) -> Node:
        node = parse_node(self._must([self._scontrol, "-o", "show", "node", name]))
        if node.name != name:
            raise SlurmError(f"scontrol show node {name}: it told about {node.name}. Name the node as Slurm does.")
        return node

    def jobs(self, name: str) -> List[Job]:
        return parse_jobs(self._must([self._squeue, "--local", "-h", "-w", name, "-o", JOB_FORMAT]))

    def drain(self, name: str, reason: str) -> str:
        """What scontrol said against it, "" for nothing. Whether it is drained is to be read again."""
        return self._update(name, "State=DRAIN", f"Reason={reason}")

    def resume(self, name: str, reason: str) -> str:
        """As drain()."""
        return self._update(name, "State=RESUME", f"Reason={reason}")

    def _update(self, name: str, *words: str) -> str:
        argv = [self._scontrol, "update", f"NodeName={name}", *words]
        said = self._run(argv)
        return "" if said.status == 0 else _refusal(argv, said)


def _refusal(argv: Sequence[str], said: Said) -> str:
    words = "; ".join(said.lines) or "without a word"
    remedy = "Check the name of the node (scontrol show node), and that slurmctld answers (scontrol ping)"
    if "user id" in words or "denied" in words.lower():
        remedy = "Only SlurmUser, root and operators may change a node: set become: true, or delegate to another host"
    return f"{' '.join(argv)}: exit status {said.status}, {words}. {remedy}."
