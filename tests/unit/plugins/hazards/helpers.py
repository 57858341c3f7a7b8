# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recordings, and what is asked of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import Context, Finding, evaluate
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from tests.recorder.recording import Recording, load

RECORDINGS = Path(__file__).resolve().parent / "recordings"
SETS = tuple(sorted(path.name for path in RECORDINGS.iterdir() if path.is_dir()))
SIMULATED = "sim-580"

GIB = 1 << 30


def recording(label: str, where: str = SIMULATED) -> Recording:
    return load(RECORDINGS / where / f"{label}.json")


def context(
    taken: Recording,
    action: str = "suspend",
    *,
    targets: Optional[Tuple[int, ...]] = None,
    device_bytes: Optional[Mapping[int, Mapping[str, Optional[int]]]] = None,
    parked: bool = False,
    uid: Optional[int] = None,
    reserved: Optional[Mapping[str, int]] = None,
    criu: Tuple[int, ...] = (4, 1, 1),
) -> Context:
    """As a run would ask: what NVML counts, or for suspended processes what was held."""
    pids = tuple(taken.targets) if targets is None else targets
    known: Dict[int, Mapping[str, Optional[int]]] = {
        pid: taken.held.get(pid) or taken.snapshot.device_bytes(pid) for pid in pids
    }
    return Context(
        snapshot=taken.snapshot,
        targets=pids,
        action=action,
        device_bytes=known if device_bytes is None else device_bytes,
        parked_by_us=frozenset(pids) if parked else frozenset(),
        uid=taken.uid if uid is None else uid,
        reserved=reserved or {},
        criu=criu,
    )


def changed(taken: Recording, **fields: Any) -> Recording:
    """Every target with other values than were recorded."""
    processes = tuple(
        replace(process, **fields) if process.pid in taken.targets else process for process in taken.snapshot.processes
    )
    return replace(taken, snapshot=replace(taken.snapshot, processes=processes))


def on_host(taken: Recording, **fields: Any) -> Recording:
    return replace(taken, snapshot=replace(taken.snapshot, host=replace(taken.snapshot.host, **fields)))


def with_gpus(taken: Recording, **fields: Any) -> Recording:
    gpus = tuple(replace(gpu, **fields) for gpu in taken.snapshot.gpus)
    return replace(taken, snapshot=replace(taken.snapshot, gpus=gpus))


def target(taken: Recording, number: int = 0) -> ProcessSnapshot:
    process = taken.snapshot.process(taken.targets[number])
    assert process is not None
    return process


def blocking(found: Tuple[Finding, ...]) -> List[Finding]:
    return [finding for finding in found if finding.severity == "blocking"]


def the_only(found: Tuple[Finding, ...], identifier: str) -> Finding:
    """The one blocking finding there is."""
    (finding,) = blocking(found)
    assert finding.id == identifier
    return finding


def of(found: Tuple[Finding, ...], identifier: str) -> List[Finding]:
    return [finding for finding in found if finding.id == identifier]


__all__ = [
    "GIB",
    "RECORDINGS",
    "SETS",
    "blocking",
    "changed",
    "context",
    "evaluate",
    "of",
    "on_host",
    "recording",
    "target",
    "the_only",
    "with_gpus",
]
