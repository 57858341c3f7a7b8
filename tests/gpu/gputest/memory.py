# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the collection's journal says, read through the collection's own module_utils."""

from __future__ import annotations

import importlib
import sqlite3
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from .spec import Spec

_BASE = "ansible_collections.gpufleet.checkpoint.plugins.module_utils"


def _load(spec: Spec, name: str) -> Any:
    if spec.collections not in sys.path:
        sys.path.append(spec.collections)
    return importlib.import_module(f"{_BASE}.{name}")


class Reader:
    """An open journal; nothing in it until the collection has made it."""

    def __init__(self, spec: Spec) -> None:
        self._fast = sqlite3.connect(f"file:{spec.journal}?mode=ro", uri=True) if Path(spec.journal).exists() else None
        self._process = _load(spec, "_process")
        module = _load(spec, "_journal")
        self._journal = module.open_journal(spec.journal, create=False) if Path(spec.journal).exists() else None

    def latest(self, pid: int) -> Optional[Dict[str, Any]]:
        identity = self._process.read_identity(pid)
        if identity is None or self._journal is None:
            return None
        found = self._journal.latest(identity)
        return None if found is None else _plain(found)

    def glance(self, pid: int, start_ticks: int) -> Tuple[int, str, int]:
        """Operation, step and PID of the worker of the last operation, quickly enough to meet a step while it lasts."""
        if self._fast is None:
            return (0, "", 0)
        row = self._fast.execute(
            "SELECT id, step, worker_pid FROM operations WHERE pid = ? AND start_ticks = ? ORDER BY id DESC LIMIT 1",
            (pid, start_ticks),
        ).fetchone()
        return (0, "", 0) if row is None else (int(row[0]), str(row[1]), int(row[2] or 0))

    def steps(self, pid: int) -> List[str]:
        """Of the last operation, in their order."""
        found = self.latest(pid)
        return [] if found is None or self._journal is None else list(self._journal.steps(found["id"]))

    def live(self) -> List[Dict[str, Any]]:
        if self._journal is None:
            return []
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return [_plain(one) for one in self._journal.live(boot_id) if self._process.is_alive(one.identity)]

    def images(self) -> List[Dict[str, Any]]:
        """Those that somebody has begun and nobody has ended."""
        return [] if self._journal is None else [_plain(one) for one in self._journal.live_images()]

    def reservations(self) -> Dict[str, int]:
        if self._journal is None:
            return {}
        return dict(self._journal.reserved())


def _plain(operation: Any) -> Dict[str, Any]:
    return asdict(operation) if is_dataclass(operation) and not isinstance(operation, type) else dict(operation)


def latest(spec: Spec, pids: List[int]) -> List[Dict[str, Any]]:
    reader = Reader(spec)
    return [reader.latest(pid) or {} for pid in pids]


def left(spec: Spec, pids: List[int]) -> List[Dict[str, Any]]:
    """Operations that still live for these processes."""
    return [one for one in Reader(spec).live() if one["identity"]["pid"] in pids]


def all_left(spec: Spec) -> Dict[str, Any]:
    """What the journal must not hold when every process runs or is gone."""
    reader = Reader(spec)
    return {"live": reader.live(), "reservations": reader.reservations(), "images": reader.images()}
