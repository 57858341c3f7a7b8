# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What criu_image returns: the same on success, on failure and in check mode. Nothing of a process's memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List, Optional, Sequence, Union

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import SPENT
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding, warning_lines
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_absent import Absent
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_engine import ImageEngine, Subject
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import grouped


def report(engine: Union[ImageEngine, Absent, None], seconds: float = 0.0) -> Dict[str, Any]:
    """Nothing where the options were not even read. seconds: how long the module itself took."""
    if engine is None:
        return {}
    findings: Sequence[Finding] = engine.findings if isinstance(engine, ImageEngine) else ()
    images = [_shown(subject) for subject in engine.subjects]
    return {
        "changed": any(subject.changed for subject in engine.subjects),
        "state": engine.options.state,
        "run_id": engine.options.run_id,
        "seconds": round(seconds, 3),
        "images": images,
        "findings": [asdict(finding) for finding in findings],
        "diff": {
            "before": "".join(f"{one.path}: {one.before}{_replaced(one)}\n" for one in engine.subjects),
            "after": "".join(f"{one.path}: {one.after}{_replacing(engine, one)}\n" for one in engine.subjects),
        },
    }


def _is_replaced(subject: Subject) -> bool:
    """An image goes where another one was: present before and after."""
    return subject.changed and subject.planned and subject.before == subject.after == "present"


def _replaced(subject: Subject) -> str:
    if not _is_replaced(subject) or subject.image is None:
        return ""
    kind = "spent" if subject.image.life.state == SPENT else "snapshot" if subject.image.manifest.snapshot else "image"
    return f" ({kind}, PID {subject.pid} runs)"


def _replacing(engine: Union[ImageEngine, Absent], subject: Subject) -> str:
    if not _is_replaced(subject):
        return ""
    runs = engine.options.leave_running
    return f" ({'snapshot' if runs else 'image'}, PID {subject.pid} {'runs' if runs else 'has ended'})"


def warnings(engine: Union[ImageEngine, Absent, None]) -> List[str]:
    """What an operator has to see who does not read the result."""
    if engine is None:
        return []
    found = warning_lines(engine.findings) if isinstance(engine, ImageEngine) else []
    return [*engine.warnings, *found, *grouped((one.path, note) for one in engine.subjects for note in one.notes)]


def _shown(subject: Subject) -> Dict[str, Any]:
    details = subject.details
    shown: Dict[str, Any] = {
        "path": subject.path,
        "name": subject.name,
        "pid": _pid(subject),
        "lineage": subject.lineage,
        "before": subject.before,
        "after": subject.after,
        "changed": subject.changed,
        "ended": subject.ended,
        "pids": list(details.get("pids", [])) or _pids(subject),
        "bytes": details.get("bytes", _bytes(subject)),
        "device_bytes": details.get("device_bytes", _device_bytes(subject)),
        "seconds": dict(subject.seconds),
        "criu_options": list(details.get("criu_options", [])),
        "log": details.get("log", ""),
        "warnings": list(subject.notes),
    }
    for name in ("identities", "image_pids"):
        if name in details:
            shown[name] = details[name]
    if subject.failure is not None:
        shown["error"] = {
            "step": subject.failure.step,
            "text": subject.failure.text,
            "remedy": subject.failure.remedy,
        }
    return shown


def _pid(subject: Subject) -> Optional[int]:
    if subject.root is not None:
        return subject.root.pid
    return subject.image.manifest.root if subject.image is not None else None


def _pids(subject: Subject) -> Sequence[int]:
    if subject.tree is not None:
        return list(subject.tree.pids)
    return list(subject.image.manifest.pids) if subject.image is not None else []


def _bytes(subject: Subject) -> Optional[int]:
    return None if subject.image is None else sum(one.bytes for one in subject.image.manifest.chunks)


def _device_bytes(subject: Subject) -> Optional[int]:
    if subject.image is None:
        return None
    return sum(sum(member.device_bytes.values()) for member in subject.image.manifest.tree)
