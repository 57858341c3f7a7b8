# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One process of a run: what was seen of it, what is to be done, and what came of it."""

from __future__ import annotations

import pwd
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _plan
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import NAMES
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Outcome
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

GIB = float(1 << 30)
RUNAWAY_STATE = "running_without_gpu"
#: The name of a worker, in /proc/PID/comm: 15 characters at most.
WORKER_NAME = "gpufleet-hold"


@dataclass
class Subject:
    """device_bytes: GPU UUID to bytes, by NVML or, for a suspended process, by the journal; None: nobody knows.
    pairs: GPU UUIDs, old and new, for its restore; empty for a plain one. traced_by_us: its tracer is a worker of this
    journal.
    """

    process: ProcessSnapshot
    operation: Optional[Operation]
    kind: str
    traced_by_us: bool = False
    view: _plan.View = field(default_factory=lambda: _plan.View("unknown"))
    device_bytes: Optional[Dict[str, int]] = None
    plan: Tuple[str, ...] = ()
    pairs: Tuple[Tuple[str, str], ...] = ()
    findings: List[Finding] = field(default_factory=list)
    state: str = "unknown"
    stopped: str = ""
    guarded: bool = False
    guard: str = "none"
    guard_pid: Optional[int] = None
    touched: bool = False
    mended: bool = False
    failure: Optional[Outcome] = None
    undo_failure: Optional[Outcome] = None
    undone: bool = False
    seconds: Dict[str, float] = field(default_factory=dict)
    notes: List[str] = field(default_factory=list)
    huge_pages: str = ""

    @property
    def pid(self) -> int:
        return self.process.identity.pid

    @property
    def name(self) -> str:
        return f"PID {self.pid} ({printable(self.process.name)})"

    @property
    def total_bytes(self) -> int:
        return sum((self.device_bytes or {}).values())

    @property
    def parked(self) -> bool:
        """Suspended and stopped; also where it was stopped by somebody else before."""
        return self.state == "checkpointed" and bool(self.stopped)

    @property
    def words(self) -> List[str]:
        """What the operator has to know of it."""
        if self.stopped == "other" and self.state in ("running", "locked"):
            return [*self.notes, f"it is stopped, as it was found: kill -CONT {self.pid} lets it run"]
        return self.notes

    def saw(self, view: _plan.View) -> None:
        """What the process was before anything is done."""
        self.view = view
        self.state = view.state
        self.stopped = view.stopped
        self.guarded = view.guarded

    def carries_on(self, earlier: Subject) -> None:
        """What an earlier turn of the same run has done to the process is this run's doing, too."""
        if earlier.process.identity != self.process.identity or not earlier.changed:
            return
        self.view = earlier.view
        self.mended = self.mended or earlier.mended
        self.touched = True
        for step, seconds in earlier.seconds.items():
            self.seconds[step] = round(self.seconds.get(step, 0.0) + seconds, 6)
        self.plan = earlier.plan + tuple(step for step in self.plan if step not in earlier.plan)
        self.notes[:0] = [note for note in earlier.notes if note not in self.notes]

    def came_to(self, outcome: Outcome) -> None:
        """What a command of the run itself came to. Where another run drives the process, this one did nothing."""
        self.touched = self.touched or not outcome.busy
        self._took(outcome)
        self.failure = None if outcome.ok else outcome

    def went_back(self, outcome: Outcome) -> None:
        """What a command that undoes came to."""
        self._took(outcome)
        self.undo_failure = None if outcome.ok else outcome
        self.undone = outcome.ok

    def _took(self, outcome: Outcome) -> None:
        self.state = outcome.state
        self.stopped = outcome.stopped
        self.huge_pages = outcome.huge_pages or self.huge_pages
        for step, seconds in outcome.seconds.items():
            self.seconds[step] = round(self.seconds.get(step, 0.0) + seconds, 6)
        self.notes.extend(note for note in outcome.notes if note and note not in self.notes)

    @property
    def changed(self) -> bool:
        return self.mended or (self.touched and self._differs)

    @property
    def _differs(self) -> bool:
        return (self.state, self.stopped, self.guarded) != (
            self.view.state,
            self.view.stopped,
            self.view.guarded,
        )


def _after(subject: Subject) -> str:
    if subject.state == "gone":
        return "ended"
    return RUNAWAY_STATE if subject.kind == _plan.RUNAWAY and not subject.touched else subject.state


def describe(state: str, parked: bool) -> str:
    return "checkpointed, parked" if parked else state


def failure_text(subject: Subject, outcome: Outcome) -> str:
    """Subject, step, what the driver said, remedy."""
    if outcome.step == "gate":
        return f"{outcome.text} {outcome.remedy}"
    words = [f"{subject.name}: {outcome.step or 'the step'} failed"]
    if outcome.code is not None:
        words.append(f"with {outcome.code} {NAMES.get(outcome.code, 'UNKNOWN')}")
    text = f"{' '.join(words)}: {outcome.text or 'the state that was read is ' + outcome.state}"
    return " ".join(part for part in (text.rstrip(".") + ".", outcome.remedy) if part)


def waiting_words(name: str) -> str:
    """Of a signal that a stopped process has been sent."""
    return f"{name} is pending: it acts when the process runs again"


def lost_words(operation: Operation) -> str:
    """Of a process that was suspended and has ended since."""
    return (
        f"PID {operation.identity.pid} ({printable(operation.executable)}), suspended by run {operation.run_id}, has "
        "ended since: it does not come back. Its own log and the kernel's may tell why; start it again."
    )


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def result(subject: Subject, gpus: Sequence[GpuSnapshot], full_command: bool) -> Dict[str, Any]:
    """What a module returns of a process."""
    index: Mapping[str, int] = {gpu.uuid: gpu.index for gpu in gpus}
    bytes_by_gpu = subject.device_bytes or {}
    shown: Dict[str, Any] = {
        "pid": subject.pid,
        "identity": {
            "pid": subject.pid,
            "start_ticks": subject.process.identity.start_ticks,
            "boot_id": subject.process.identity.boot_id,
        },
        "executable": subject.process.executable,
        "user": user_name(subject.process.uid),
        "before": RUNAWAY_STATE if subject.kind == _plan.RUNAWAY else subject.view.state,
        "after": _after(subject),
        "changed": subject.changed,
        "parked": subject.parked,
        "guard": {
            "kind": subject.guard if subject.guarded else "none",
            "pid": subject.guard_pid if subject.guarded else None,
        },
        "plan": list(subject.plan),
        "gpus": [
            {"uuid": uuid, "index": index.get(uuid), "bytes": held} for uuid, held in sorted(bytes_by_gpu.items())
        ],
        "device_bytes": None if subject.device_bytes is None else subject.total_bytes,
        "seconds": dict(subject.seconds),
        "gib_per_second": {
            step: round(subject.total_bytes / GIB / subject.seconds[step], 3)
            for step in ("checkpoint", "restore")
            if subject.seconds.get(step) and subject.total_bytes
        },
        "findings": [finding.id for finding in subject.findings],
        "warnings": list(subject.words),
    }
    if full_command:
        shown["command"] = list(subject.process.command)
    problem = subject.failure or subject.undo_failure
    if problem is not None:
        shown["error"] = {
            "step": problem.step,
            "code": problem.code,
            "name": None if problem.code is None else NAMES.get(problem.code, "UNKNOWN"),
            "text": problem.text,
            "remedy": problem.remedy,
        }
    return shown
