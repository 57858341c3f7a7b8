# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_drain_info returns. Nothing is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _drain, _drain_findings, _drain_report
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_holders import DeviceHolder, read_holders
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import Drain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_evidence import guards, read_scene
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_judge import Scene, judge, suspender
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_rows import Drains
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id, read_host
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_text

HISTORY = 10


def inspect(journal: Journal, run_id: str, select: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Raises JournalError, CriuError, SelectError, NvmlError, NvmlMissing."""
    drains = Drains(journal.file)
    found = drains.find(run_id)
    row = drains.newest(run_id) if run_id else found.open or found.last
    criteria = select or (row.selection if row is not None and row.is_open else {}) or {"all": True}
    scene = read_scene(journal, row, criteria)
    host = read_host()
    return {
        "drain": _shown(journal, drains, row, scene) if row is not None else None,
        "history": [_past(one) for one in drains.closed(HISTORY)],
        "host": {
            "boot_id": read_boot_id(),
            "uptime_seconds": float(read_text("/proc/uptime").split()[0]),
            "driver": host.driver_version,
        },
        "cuda": _cuda(journal, scene),
    }


def _shown(journal: Journal, drains: Drains, row: Drain, scene: Scene) -> Dict[str, Any]:
    if not row.is_open:
        # Whoever is suspended now is another run's, or nobody's.
        scene = replace(scene, ours=frozenset())
    verdict = judge(scene)
    holders: Tuple[DeviceHolder, ...] = ()
    if row.phase in (_drain.SUSPENDED, _drain.MAINTENANCE):
        holders = read_holders(guards(journal))
    findings = _drain_findings.of(verdict, holders, row.declares)
    timeline, failures = drains.timeline(row.id), drains.failures(row.id)
    return _drain_report.drain(
        row, row.phase, read_boot_id(), verdict, scene.images, holders, timeline, failures, findings
    )


def _past(row: Drain) -> Dict[str, Any]:
    return {
        "run_id": row.run_id,
        "runs": list(row.runs),
        "kind": row.kind,
        "mode": row.mode,
        "phase": row.phase,
        "attempt": row.attempt,
        "controller": row.controller,
        "opened": row.opened,
        "closed": row.closed,
        "message": row.message,
    }


def _cuda(journal: Journal, scene: Scene) -> List[Dict[str, Any]]:
    found = []
    for one in scene.seen:
        if not one.selected:
            continue
        made = suspender(journal.of_process(one.identity)) if one.suspended else None
        loose = one.suspended and not one.stopped and (made is None or made.park)
        state = "running_without_gpu" if loose else "suspended" if one.suspended else "running"
        found.append({"pid": one.identity.pid, "state": state, "run_id": made.run_id if made is not None else None})
    return found
