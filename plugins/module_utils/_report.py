# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cuda_checkpoint returns: the same on success, on failure and in check mode."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List, Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._engine import Engine
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import warning_lines
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._plan import INTERRUPTED
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject, describe, result
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import grouped


def report(engine: Optional[Engine], seconds: float = 0.0) -> Dict[str, Any]:
    """Nothing where the options were not even read. seconds: how long the module itself took."""
    if engine is None:
        return {}
    options = engine.options
    check = options.check
    processes: List[Dict[str, Any]] = []
    before: List[str] = []
    after: List[str] = []
    for subject in engine.subjects:
        shown = result(subject, engine.gpus, options.full_command)
        if check and engine.decided:
            _foresee(subject, shown, options.goal)
        processes.append(shown)
        was, is_now = describe(shown["before"], _was_parked(subject)), describe(shown["after"], shown["parked"])
        if subject.kind == INTERRUPTED and subject.operation is not None and shown["changed"]:
            was = f"interrupted at {subject.operation.step}"
        elif was == is_now and "guard" in subject.plan:
            was, is_now = f"{was}, no guard", f"{is_now}, guarded"
        before.append(_line(subject, was))
        after.append(_line(subject, is_now))
    return {
        "changed": any(shown["changed"] for shown in processes),
        "state": options.goal,
        "run_id": options.run_id,
        "backend": engine.backend.name,
        "huge_pages": engine.huge_pages,
        "units": [one.as_dict() for one in engine.units],
        "seconds": round(seconds, 3),
        "processes": processes,
        "findings": [asdict(finding) for finding in engine.findings],
        "diff": {"before": "".join(before), "after": "".join(after)},
    }


def warnings(engine: Optional[Engine]) -> List[str]:
    """What an operator has to see who does not read the result."""
    if engine is None:
        return []
    notes = grouped((subject.name, note) for subject in engine.subjects for note in subject.words)
    return [*engine.warnings, *warning_lines(engine.findings), *notes]


def _foresee(subject: Subject, shown: Dict[str, Any], goal: str) -> None:
    """What a run would come to: where the plan leads."""
    if not subject.plan:
        return
    shown["after"] = goal
    shown["changed"] = True
    shown["parked"] = goal == "checkpointed" and ("park" in subject.plan or bool(subject.view.stopped))


def _was_parked(subject: Subject) -> bool:
    return subject.view.state == "checkpointed" and bool(subject.view.stopped)


def _line(subject: Subject, state: str) -> str:
    return f"{subject.name}: {state}\n"
