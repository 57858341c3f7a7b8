# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a preflight is asked, and what it answers."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass


@dataclass(frozen=True)
class Options:
    """The options of gpu_preflight, typed. pids, select: None for both means every CUDA process. Times in seconds."""

    pids: Optional[Tuple[Wanted, ...]]
    select: Optional[Mapping[str, Any]]
    required: Tuple[str, ...]
    fail_on: str
    allow: FrozenSet[str]
    store: Optional[str]
    window: Optional[float]
    backend: str
    executable: Optional[str]
    criu: str
    journal: str
    full_command: bool


@dataclass(frozen=True)
class Verdict:
    """failed: the message of a run that fails, "" for one that does not."""

    result: Dict[str, Any]
    failed: str
