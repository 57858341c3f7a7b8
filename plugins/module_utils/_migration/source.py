# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the processes that are to be migrated, and those that are on their way already. Changes nothing."""

from __future__ import annotations

import os
import socket
import time
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import handoff, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import MOVED, RESTORING, UNSPENT, Life
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest, ManifestGpu, member_of
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Image
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tool import Criu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_machine_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.evidence import (
    LIVE,
    SourceEvidence,
    TreeEvidence,
    forecast,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.read_cpu import read_cpu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.read_files import (
    build_ids_of,
    directories_of,
    files_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.estimate import host_memory
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot, read_snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._survey import Survey

#: What is on its way, of the images of a selection. A restore that broke off is: its processes are half here at best.
UNDERWAY = (UNSPENT, RESTORING, MOVED)


class Source:
    """One reading. gpus: reads those of the host."""

    def __init__(self, journal: Journal, criu: Criu, gpus: Callable[[], Tuple[GpuSnapshot, ...]]) -> None:
        self._journal = journal
        self._criu = criu
        self._gpus = gpus

    def read(self, select: Optional[Mapping[str, Any]], place: str) -> SourceEvidence:
        """select: as Survey takes it. place: the store that their images go to. Raises SelectError, JournalError,
        CriuError, NvmlError, OSError."""
        survey = Survey(self._journal, lambda pids: read_snapshot(pids, gpus=self._gpus))
        subjects = {one.pid: one for one in survey.selected(select)}
        trees: List[Tree] = []
        for pid in subjects:
            if not self._has_ancestor(pid, subjects):
                tree = read_tree(pid)
                if tree is not None:
                    trees.append(tree)
        survey.snapshot = read_snapshot([pid for tree in trees for pid in tree.pids], gpus=self._gpus)
        found = joined([self._live(tree, survey) for tree in trees], self._stored(select, place))
        cpu, flags = read_cpu()
        return SourceEvidence(socket.gethostname(), read_machine_id(), cpu, flags, tuple(found))

    def _has_ancestor(self, pid: int, others: Mapping[int, object]) -> bool:
        tree = read_tree(pid)
        parent = tree.root.parent if tree is not None else 0
        while parent > 1:
            if parent in others:
                return True
            above = read_tree(parent)
            parent = above.root.parent if above is not None else 0
        return False

    def _live(self, tree: Tree, survey: Survey) -> TreeEvidence:
        snapshot = survey.snapshot
        if snapshot is None:
            raise LookupError("nothing was read")
        held = {one.pid: dict(survey.subject(snapshot, one.pid).device_bytes or {}) for one in tree.cuda}
        files = files_of(tree.members)
        return TreeEvidence(
            manifest=self._forecast(tree, snapshot, held),
            state=LIVE,
            handoff="",
            peer="",
            build_ids=build_ids_of(one.path for one in files if not one.writable and not one.deleted),
            directories=directories_of(tree.members),
        )

    def _forecast(self, tree: Tree, snapshot: Snapshot, held: Mapping[int, Dict[str, int]]) -> Manifest:
        root = snapshot.process(tree.root.pid)
        host, gpus = snapshot.host, snapshot.gpus
        # Of one that is suspended, it is in host memory already.
        on_gpus = sum(one.used_bytes or 0 for gpu in gpus for one in gpu.processes if one.pid in tree.pids)
        size = sum(one.rss_anon_bytes for one in tree.members) + (host_memory(on_gpus) if on_gpus else 0)
        return Manifest(
            lineage=uuid.uuid4().hex,
            created=time.time(),
            hostname=socket.gethostname(),
            kernel=host.kernel,
            boot_id=host.boot_id,
            machine=host.machine,
            driver=host.driver_version,
            gpus=tuple(ManifestGpu(gpu.uuid, gpu.index, gpu.name, gpu.total_bytes) for gpu in gpus),
            criu=".".join(map(str, self._criu.version)),
            options=(),
            root=tree.root.pid,
            tree=tuple(member_of(one, held.get(one.pid, {})) for one in tree.members),
            host_bytes=size,
            files=files_of(tree.members),
            chunks=forecast(size),
            snapshot=False,
            compressed="",
            run_id="",
            name=store.image_name(root) if root is not None else f"pid-{tree.root.pid}",
        )

    def _stored(self, select: Optional[Mapping[str, Any]], place: str) -> List[TreeEvidence]:
        """Dumped by an earlier run of the same migration."""
        found = []
        machine = read_machine_id()
        for entry in store.list_images(place):
            if not isinstance(entry, Image) or entry.manifest.snapshot or entry.life.state not in UNDERWAY:
                continue
            if entry.manifest.selection != store.selection(select):
                continue
            mark = entry.life.handoff
            state, peer = _whereabouts(entry.life, machine)
            found.append(
                TreeEvidence(
                    manifest=entry.manifest,
                    state=state,
                    handoff="" if mark is None else mark.id,
                    peer=peer,
                    build_ids=build_ids_of(
                        one.path for one in entry.manifest.files if not one.writable and not one.deleted
                    ),
                    directories=(),
                )
            )
        return sorted(found, key=lambda one: os.path.basename(one.manifest.name))


def _whereabouts(life: Life, machine: str) -> Tuple[str, str]:
    """State, and the machine id of the host that it was given up for. One image that both see says "unspent" again
    when the other host has taken it."""
    elsewhere = handoff.taken_by(life)
    if elsewhere and elsewhere != machine:
        return MOVED, elsewhere
    return life.state, life.handoff.peer if life.state == MOVED and life.handoff is not None else ""


def joined(live: Sequence[TreeEvidence], stored: Sequence[TreeEvidence]) -> List[TreeEvidence]:
    """Each name once. What runs under the name of an image is what a restore has made of it so far, or somebody else;
    unless its dump was broken off before the tree was ended: then that is dumped, and the image with it."""
    names = {one.manifest.name for one in live}
    kept = [one for one in stored if one.manifest.name not in names or not _is_unended(one)]
    taken = {one.manifest.name for one in kept}
    return [one for one in live if one.manifest.name not in taken] + kept


def _is_unended(tree: TreeEvidence) -> bool:
    boot = tree.manifest.boot_id
    alive = (is_alive(Identity(one.pid, one.start_ticks, boot)) for one in tree.manifest.tree)
    return tree.state == UNSPENT and any(alive)
