# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What criu_image returns: the same on success, on failure and in check mode. Nothing of a process's memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List, Optional, Sequence, Union

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
            "before": "".join(f"{one['path']}: {one['before']}\n" for one in images),
            "after": "".join(f"{one['path']}: {one['after']}\n" for one in images),
        },
    }


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
