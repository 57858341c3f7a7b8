# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module asks of the worker of a process, and what the worker answers: one JSON line each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Optional, Tuple


@dataclass(frozen=True)
class Command:
    """do: state, probe, lock, unlock, suspend, resume, adopt, go_on, leave.

    timeout_ms: of a lock. unlock: resume up to running, else up to locked. pairs: GPU UUIDs, old and new, empty for a
    plain restore. state_before: the CUDA state that the run found; the worker is told, since others may have asked.
    undo: a way back, made also where it can't be journalled.
    """

    do: str
    state_before: str = ""
    timeout_ms: int = 0
    unlock: bool = True
    undo: bool = False
    pairs: Tuple[Tuple[str, str], ...] = ()

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def command_from(line: bytes) -> Command:
    raw = json.loads(line)
    raw["pairs"] = tuple((old, new) for old, new in raw["pairs"])
    return Command(**raw)


@dataclass(frozen=True)
class Outcome:
    """What a command came to.

    ok: the state that was wanted has been read. state: the CUDA state that was read, "unknown", or "gone".
    stopped: "" | "us" | "other". step: where it failed. code: CUresult. seconds: by step. notes: what an operator
    should know though it went well. huge_pages: what was done with that setting.
    busy: another run drives the process; nothing was done to it. details: what a result shows beyond that.
    """

    ok: bool
    state: str
    stopped: str = ""
    step: str = ""
    code: Optional[int] = None
    text: str = ""
    remedy: str = ""
    seconds: Dict[str, float] = field(default_factory=dict)
    notes: Tuple[str, ...] = ()
    huge_pages: str = ""
    busy: bool = False
    lost_worker: bool = False
    late: bool = False
    details: Dict[str, Any] = field(default_factory=dict)

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def outcome_from(line: bytes) -> Outcome:
    raw: Dict[str, Any] = json.loads(line)
    raw["notes"] = tuple(raw["notes"])
    return Outcome(**raw)
