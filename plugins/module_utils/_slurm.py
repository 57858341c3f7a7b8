# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What scontrol and squeue say about a node, and what a drain may do about it. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Collection, FrozenSet, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines, natural

#: For `squeue -o`. The name comes last: it can contain anything but a line end.
JOB_FORMAT = "%i|%u|%T|%e|%j"

_STAMP = "gpufleet "
# What Slurm writes, after the reason that was there.
_NOT_RESPONDING = "Not responding"
_AND = " : "
_DRAINED = frozenset(("DRAIN", "DRAINED", "DRAINING"))
# States without new jobs that somebody decided on, or that Slurm leaves for somebody to look at.
_OUT = frozenset(("DOWN", "ERROR", "FAIL", "FAILING"))
# Of jobs that have no process on the node.
_AWAY = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED REVOKED SPECIAL_EXIT "
    "TIMEOUT".split()
)
_NO_END = frozenset(("NONE", "N/A", "Unknown"))
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
# Fields whose text is anybody's, so that it may look like any other field.
_FREE_TEXT = re.compile(r"\s(Reason|Comment|Extra)=")
_REASON_END = re.compile(r" \[([^\s\[\]@]+)@([^\s\[\]@]+)\](?=\s*\Z|\s+[A-Z][A-Za-z]*=)")


class SlurmError(Exception):
    """str(): what was asked, what was said, what helps."""


@dataclass(frozen=True)
class Node:
    """state: as scontrol writes it. reason, by, since: of its last drain, also of one that is over."""

    name: str
    state: str
    reason: str
    by: str
    since: Optional[int]

    @property
    def flags(self) -> FrozenSet[str]:
        return frozenset(part.rstrip("*~#!%$@^-") for part in self.state.split("+"))

    @property
    def drained(self) -> bool:
        return bool(self.flags & _DRAINED)

    @property
    def out(self) -> bool:
        """No job starts on it, drained or not."""
        return self.drained or bool(self.flags & _OUT)


@dataclass(frozen=True)
class Job:
    """end: unix seconds of its time limit, None without one."""

    id: str
    user: str
    state: str
    end: Optional[int]
    name: str


def check_name(name: str) -> None:
    """Raises SlurmError for what scontrol would take for several nodes, or for all."""
    if not _NODE_NAME.match(name) or name.upper() == "ALL":
        raise SlurmError(
            f"node: {name!r} is not the name of one node. Slurm takes commas, brackets and ALL for several, and all of "
            "them would be drained. Name one, as scontrol show node lists it (gpu_drain_node, where it differs from "
            "the name in the inventory)."
        )


def stamp(run_id: str) -> str:
    """The reason of a drain."""
    return _STAMP + run_id


def released(run_id: str) -> str:
    """The reason after it, which newer versions go on showing: none of a drain."""
    return f"{_STAMP}{run_id} released"


def parse_node(text: str) -> Node:
    """One line of `scontrol -o show node NAME`. Raises SlurmError."""
    line = text.strip()
    free = _FREE_TEXT.search(line)
    fixed = line[: free.start()] if free else line
    name = re.match(r"NodeName=(\S+)", fixed)
    state = re.search(r"\sState=(\S+)", fixed)
    if "\n" in line or name is None or state is None:
        raise SlurmError(
            f"scontrol -o show node said what is no node: {line[:200]!r}. Run it by hand on the host that the "
            "task runs on."
        )
    if free is None or free.group(1) != "Reason":
        return Node(name.group(1), state.group(1), "", "", None)
    rest = line[free.end() :]
    end = _REASON_END.search(rest)
    if end is None:
        return Node(name.group(1), state.group(1), rest, "", None)
    return Node(name.group(1), state.group(1), rest[: end.start()], end.group(1), natural(end.group(2)))


def parse_jobs(text: str) -> List[Job]:
    """Those of `squeue -h -w NODE -o JOB_FORMAT` that have processes on the node. Raises SlurmError."""
    jobs = []
    for line in lines(text):
        if not line.strip():
            continue
        parts = line.split("|", 4)
        if (
            len(parts) != 5
            or not re.match("[0-9]", parts[0])
            or not (natural(parts[3]) is not None or parts[3] in _NO_END)
        ):
            raise SlurmError(
                f"squeue said what is no job: {line[:200]!r}. Run it by hand on the host that the task runs on: "
                f"SLURM_TIME_FORMAT=%s squeue --local -h -o '{JOB_FORMAT}'."
            )
        identifier, user, state, end, name = parts
        if state not in _AWAY:
            jobs.append(Job(identifier, user, state, natural(end), name))
    return jobs


def whose(node: Node, runs: Collection[str]) -> str:
    """Who keeps jobs away from it: "" for nobody, "ours" for one of these runs, "theirs" for anybody else.

    Slurm itself appends to a reason when a drained node does not answer for long, as during its reboot. Where nobody
    has drained it, and Slurm gave it up only because it did not answer, it can come back at any moment: nobody's. After
    a drain the reason is still shown, and says nothing by itself.
    """
    said, silent = node.reason, node.reason.endswith(_NOT_RESPONDING)
    if silent:
        said = said[: -len(_NOT_RESPONDING)]
        said = said[: -len(_AND)] if said.endswith(_AND) else said
    if node.drained:
        return "ours" if said in [stamp(run) for run in runs] else "theirs"
    if not node.out or (silent and (not said or said.startswith(_STAMP))):
        return ""
    return "theirs"


def blocked_by(jobs: Collection[Job], mode: str, reboots: bool, until: int) -> Tuple[List[Job], List[Job]]:
    """Jobs that would end because of the drain, and jobs that would reach their time limit before `until`."""
    if mode == "disk" or reboots:
        return list(jobs), []
    return [], [job for job in jobs if job.end is not None and job.end <= until]


def expected(node: Node, run_id: str) -> Node:
    """What it would be, drained by this run, or for "" released."""
    parts = [part for part in node.state.split("+") if part.rstrip("*~#!%$@^-") not in _DRAINED]
    if run_id:
        return replace(node, state="+".join([*parts[:1], "DRAIN", *parts[1:]]), reason=stamp(run_id), by="", since=None)
    return replace(node, state="+".join("IDLE" if part in _OUT else part for part in parts))
