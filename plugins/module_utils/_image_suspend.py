# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CUDA members of a tree, suspended and resumed for an image: the same engine as cuda_checkpoint's."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Dict, List, Mapping, Sequence, Tuple, Union

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError, Options, Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree, TreeMember
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import Backend
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_map import DeviceMapError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._engine import Engine, Failed, Refused
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuReader, NvmlError, NvmlMissing
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import freezer
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import HoldError, ProcessEndedError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.process import Handle, foreign_tracer
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity

RELEASE_SECONDS = 30.0
_PAUSE = 0.001
PARENT_IN_TREE = "park_unsafe_parent"


def in_tree_only(tree: Tree) -> bool:
    """Every CUDA member has its parent in the tree, which stands still before it is suspended: nobody sees it stop."""
    return all(member.pid != tree.root.pid for member in tree.cuda)


def wanted(members: Sequence[TreeMember]) -> Tuple[Wanted, ...]:
    return tuple(Wanted(one.pid, one.identity.start_ticks, one.identity.boot_id) for one in members)


def bring(
    goal: str,
    members: Sequence[TreeMember],
    options: Options,
    backend: Backend,
    journal: Journal,
    device_map: Union[str, Mapping[str, str], None] = None,
) -> Engine:
    """Take these CUDA processes to a state. Raises CriuError with the engine's own words."""
    chosen = replace(options, goal=goal, pids=wanted(members), select=None, device_map=device_map, check=False)
    try:
        with GpuReader() as gpus:
            engine = Engine(chosen, backend, journal, gpus.read)
            engine.run()
            return engine
    except (ArgumentError, DeviceMapError, Refused, Failed, NvmlError, NvmlMissing) as error:
        names = ", ".join(f"PID {one.pid} ({one.name})" for one in members)
        raise CriuError(names, str(error), "", "") from None


def bring_back(
    goals: Mapping[int, str], tree: Tree, options: Options, backend: Backend, journal: Journal
) -> Tuple[str, ...]:
    """Each PID to the state that it was in before, guarded again if it was parked. Returns what did not work."""
    problems: List[str] = []
    by_goal: Dict[str, List[TreeMember]] = {}
    for member in tree.cuda:
        if member.pid in goals:
            by_goal.setdefault(goals[member.pid], []).append(member)
    for goal, members in by_goal.items():
        if goal in ("running", "locked", "checkpointed"):
            try:
                bring(goal, members, options, backend, journal)
            except CriuError as error:
                problems.append(error.evidence)
    return tuple(problems)


def release_guards(members: Sequence[TreeMember], journal: Journal, seconds: float = RELEASE_SECONDS) -> None:
    """CRIU attaches itself, and waits for ever for a frozen process: a guard makes room. The process stays parked."""
    for member in members:
        guard = journal.guard(member.identity, foreign_tracer(member.pid)[1])
        if guard is not None:
            _ask_to_leave(guard)
    end = time.monotonic() + seconds
    for member in members:
        try:
            freezer.thaw(member.identity)
        except HoldError as error:
            raise CriuError(error.subject, error.evidence, error.reason, error.remedy) from None
        while True:
            thread, tracer = foreign_tracer(member.pid)
            if not tracer:
                break
            if time.monotonic() > end:
                raise CriuError(
                    f"PID {member.pid} ({member.name})",
                    f"its thread {thread} is still traced by PID {tracer}",
                    "CRIU has to attach itself, and a process can have one tracer only.",
                    "Let that tracer go, and run the task again.",
                )
            time.sleep(_PAUSE)


def _ask_to_leave(worker: Identity) -> None:
    try:
        handle = Handle(worker)
        try:
            handle.send(signal.SIGTERM)
        finally:
            handle.close()
    except ProcessEndedError:
        pass
