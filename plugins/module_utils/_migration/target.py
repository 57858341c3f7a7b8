# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what a target has of what is to come there. Changes nothing."""

from __future__ import annotations

import os
import socket
from typing import Dict, Mapping, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import living
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Image
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.target import (
    Target,
    numbers_of,
    own_run,
    pid_max,
    read_holders,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tool import Criu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_host, read_machine_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.decide import Place, Present, needed_paths
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.evidence import SourceEvidence
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.read_cpu import read_cpu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.read_files import build_ids_of, size_of


def read_place(source: SourceEvidence, gpus: Sequence[GpuSnapshot], criu: Criu, place: str) -> Place:
    """place: the store that the images come to. Raises CriuError: the store; OSError."""
    cpu, flags = read_cpu()
    files, directories = needed_paths(source)
    numbers = sorted({number for tree in source.trees for number in numbers_of(tree.manifest)})
    return Place(
        target=Target(
            host=read_host(),
            gpus=tuple(gpus),
            criu=criu.version,
            holders=read_holders(numbers),
            files={path: size_of(path) for path in files},
            pid_max=pid_max(),
            own=own_run(),
        ),
        hostname=socket.gethostname(),
        machine=read_machine_id(),
        cpu=cpu,
        flags=flags,
        build_ids=build_ids_of(path for tree in source.trees for path in tree.build_ids),
        directories=tuple(path for path in directories if os.path.isdir(path)),
        images=_images(place),
        disk=_free(place),
        processes=sum(len(gpu.processes) for gpu in gpus),
    )


def _images(place: str) -> Mapping[str, Present]:
    found: Dict[str, Present] = {}
    for entry in store.list_images(place):
        if isinstance(entry, Image):
            handoff = entry.life.handoff
            found[os.path.basename(entry.path)] = Present(
                lineage=entry.manifest.lineage,
                state=entry.life.state,
                handoff="" if handoff is None else handoff.id,
                alive=bool(living(entry.life)),
            )
    return found


def _free(place: str) -> int:
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    stats = os.statvfs(place)
    return stats.f_bavail * stats.f_frsize
