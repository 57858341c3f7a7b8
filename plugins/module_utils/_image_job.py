# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the worker of an image has to know, and what was asked of the module. Frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, FrozenSet, Mapping, Optional, Tuple, Union

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import Options, Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.options import CriuOptions
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tool import Criu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import Backend
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity


@dataclass(frozen=True)
class ImageOptions:
    """The options of criu_image, typed. Times in seconds.

    state: present, restored or absent. pids, select, path, store: what and where. cuda: the options of every suspend
    and resume. step_timeout: 0 for one that is sized by the bytes to write or read. pid_namespace: "same" or "new", of
    a restored tree.
    """

    state: str
    pids: Tuple[Wanted, ...]
    select: Optional[Mapping[str, Any]]
    path: str
    store: str
    leave_running: bool
    all_or_nothing: bool
    parallel: int
    verify: str
    compress: str
    force: bool
    keep: Optional[int]
    max_age: Optional[float]
    allow: FrozenSet[str]
    device_map: Union[str, Mapping[str, str], None]
    criu: CriuOptions
    criu_executable: str
    step_timeout: float
    unit_policy: str
    pid_namespace: str
    cuda: Options
    journal: str
    run_id: str
    check: bool


@dataclass(frozen=True)
class ImageJob:
    """One tree and its image. root: of the tree to dump, or of the one that was dumped. lineage: joins the two.
    stopped: members that a run which has died had stopped. taken_over: the ids of such runs.
    """

    root: Identity
    path: str
    lineage: str
    name: str
    options: ImageOptions
    criu: Criu
    backend: Backend
    stopped: Tuple[Identity, ...] = ()
    taken_over: Tuple[str, ...] = ()
