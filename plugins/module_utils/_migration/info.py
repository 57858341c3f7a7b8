# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_migration_info returns."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuReader
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import TRANSFER_STEP
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.decide import Verdict, Wish, decide
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.evidence import (
    SourceEvidence,
    TreeEvidence,
    pack,
    unpack,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.source import Source
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.target import read_place
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import estimate
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable


def of_source(journal: str, criu: str, store: str, select: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Raises what reading the host raises."""
    with ExitStack() as resources:
        gpus = resources.enter_context(GpuReader())
        known = resources.enter_context(open_journal(journal, create=False))
        found = Source(known, tool.find(criu), gpus.read).read(select, store)
        moved = [
            {"path": row.path, "run_id": row.run_id, "what": printable(row.message)} for row in known.images_moved()
        ]
        return dict(shown(found), moved=moved)


def shown(found: SourceEvidence) -> Dict[str, Any]:
    return {
        "evidence": pack(found),
        "hostname": printable(found.hostname),
        "machine": found.machine,
        "trees": [_tree(tree) for tree in found.trees],
        "image_bytes": sum(tree.manifest.bytes for tree in found.trees),
        "driver": found.trees[0].manifest.driver if found.trees else "",
    }


def _tree(tree: TreeEvidence) -> Dict[str, Any]:
    manifest = tree.manifest
    return {
        "name": manifest.name,
        "state": tree.state,
        "id": tree.handoff,
        "peer": tree.peer,
        "pid": manifest.root,
        "pids": list(manifest.pids),
        "lineage": manifest.lineage,
        "executable": printable(manifest.tree[0].executable),
        "device_bytes": sum(manifest.device_bytes.values()),
        "image_bytes": manifest.bytes,
    }


def of_target(journal: str, criu: str, store: str, evidence: str, wish: Wish) -> Dict[str, Any]:
    """Raises FieldError for evidence that is none, and what reading the host raises."""
    source = unpack(evidence)
    with ExitStack() as resources:
        gpus = resources.enter_context(GpuReader())
        known = resources.enter_context(open_journal(journal, create=False))
        place = read_place(source, gpus.read(), tool.find(criu), store)
        rate = estimate.rate(known.history(TRANSFER_STEP), 0.0)
        return dict(
            judged(decide(source, place, wish), place.hostname, place.machine),
            processes=place.processes,
            transfer_rate={"bytes_per_second": round(rate.bytes_per_second), "measured": rate.measured},
        )


def judged(verdict: Verdict, hostname: str, machine: str) -> Dict[str, Any]:
    return {
        "hostname": printable(hostname),
        "machine": machine,
        "fits": verdict.is_fit,
        "findings": [asdict(one) for one in verdict.findings],
        "refusals": refusals(verdict.findings),
        "device_map": dict(verdict.device_map),
        "here": list(verdict.here),
        "image_bytes": verdict.image_bytes,
        "free_bytes": verdict.free,
    }


def refusals(findings: "tuple[Finding, ...]") -> List[str]:
    """One text for each finding that blocks."""
    return [one.message() for one in findings if one.severity == BLOCKING]
