# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the collection's journal says, read through the collection's own module_utils."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from .spec import Spec

_BASE = "ansible_collections.gpufleet.checkpoint.plugins.module_utils"


def _load(spec: Spec, name: str) -> Any:
    if spec.collections not in sys.path:
        sys.path.append(spec.collections)
    return importlib.import_module(f"{_BASE}.{name}")


class Reader:
    """An open journal; None until the collection has made it."""

    def __init__(self, spec: Spec) -> None:
        self._process = _load(spec, "_process")
        module = _load(spec, "_journal")
        self._journal = module.open_journal(spec.journal, create=False) if Path(spec.journal).exists() else None

    def latest(self, pid: int) -> Optional[Dict[str, Any]]:
        identity = self._process.read_identity(pid)
        if identity is None or self._journal is None:
            return None
        found = self._journal.latest(identity)
        return None if found is None else _plain(found)

    def step(self, pid: int) -> str:
        found = self.latest(pid)
        return "" if found is None else str(found["step"])

    def live(self) -> List[Dict[str, Any]]:
        if self._journal is None:
            return []
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return [_plain(one) for one in self._journal.live(boot_id) if self._process.is_alive(one.identity)]

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
    return {"live": reader.live(), "reservations": reader.reservations()}
