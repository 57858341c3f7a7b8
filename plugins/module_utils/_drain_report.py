# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_drain and gpu_drain_info return. No command line and no environment of a process is in it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _drain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_holders import DeviceHolder
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import Drain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_engine import Call, identity_dict
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_judge import ImageSeen, Verdict
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_rows import FailureRecord, PhaseRecord
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable


def drain(
    row: Optional[Drain],
    before: str,
    boot_id: str,
    verdict: Verdict,
    images: Sequence[ImageSeen],
    holders: Sequence[DeviceHolder],
    timeline: Sequence[PhaseRecord],
    failures: Sequence[FailureRecord],
    findings: Sequence[Finding],
) -> Dict[str, Any]:
    """row: None for a host that has no such drain."""
    reached = [one.at for one in timeline]
    return {
        "phase": row.phase if row else "",
        "phase_before": before,
        "todo": list(_drain.todo(row.phase)) if row else [],
        "run_id": row.run_id if row else "",
        "runs": list(row.runs) if row else [],
        "attempt": row.attempt if row else 0,
        "kind": row.kind if row else "",
        "mode": row.mode if row else "",
        "store": row.store if row else "",
        "boot_id": boot_id,
        "rebooted": row is not None and boot_id != (row.suspended_boot_id or row.boot_id),
        "others": list(verdict.others),
        "since": max(reached) if reached else (row.updated if row else 0.0),
        "controller": row.controller if row else "",
        "message": row.message if row else "",
        "opened": row.opened if row else 0.0,
        "closed": row.closed if row else None,
        "declares": list(row.declares) if row else [],
        "processes": [
            {
                "identity": identity_dict(one.identity),
                "executable": printable(one.executable),
                "device_bytes": one.device_bytes,
                "state": one.state,
            }
            for one in verdict.processes
        ],
        "pids": [identity_dict(one) for one in verdict.pids],
        "images": [
            {"path": printable(one.path), "pid": one.pid, "state": one.state, "bytes": one.bytes} for one in images
        ],
        "lost": [asdict(one) for one in verdict.lost],
        "holders": [one.as_dict() for one in holders],
        "packages": _drain.packages_of(row.packages if row else {}),
        "scheduler": dict(row.scheduler) if row else {},
        "timeline": [asdict(one) for one in timeline],
        "failures": [asdict(one) for one in failures],
        "findings": [one.as_dict() for one in findings],
    }


def of_call(call: Call) -> Dict[str, Any]:
    """Also of one that failed: as far as it has come."""
    row = call.row
    timeline: Tuple[PhaseRecord, ...] = call.drains.timeline(row.id) if row is not None and row.id else ()
    failures: Tuple[FailureRecord, ...] = call.drains.failures(row.id) if row is not None and row.id else ()
    images = call.scene.images if call.scene is not None else ()
    return drain(row, call.before, call.boot_id, call.verdict, images, call.holders, timeline, failures, call.findings)


def difference(call: Call) -> Dict[str, str]:
    row = call.row
    held = _drain.packages_of(row.packages)["held"] if row is not None else []
    return {
        "before": _lines(call.before, call.packages_before),
        "after": _lines(row.phase if row is not None else "", held),
    }


def _lines(phase: str, held: Sequence[str]) -> str:
    return f"phase: {phase or 'none'}\nheld packages: {' '.join(held) or 'none'}\n"
