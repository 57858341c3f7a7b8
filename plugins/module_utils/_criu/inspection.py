# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What criu_image_info returns. Nothing of a process's memory is in it; paths, PIDs and names are."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Any, Dict, List, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import digest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import SPENT, living
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest, Member
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import (
    Broken,
    Image,
    Partial,
    find_image,
    list_images,
    list_partials,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable


def inspect_path(path: str, verify: str, now: float) -> Dict[str, Any]:
    """One image, or none. Raises CriuError: the place can't be trusted; OSError."""
    directory = os.path.dirname(path)
    beside = [one for one in list_partials(directory) if one.path == path + ".partial"]
    try:
        image = find_image(path)
    except CriuError as error:
        return result([], [Broken(path, str(error))], beside, verify, now)
    return result([image] if image is not None else [], [], beside, verify, now)


def inspect_store(store: str, verify: str, now: float) -> Dict[str, Any]:
    """All of a store. Raises CriuError: the place can't be trusted; OSError."""
    found = list_images(store)
    images = [one for one in found if isinstance(one, Image)]
    broken = [one for one in found if isinstance(one, Broken)]
    return result(images, broken, list_partials(store), verify, now)


def result(
    images: Sequence[Image], broken: Sequence[Broken], partials: Sequence[Partial], verify: str, now: float
) -> Dict[str, Any]:
    """verify: "none", "sizes" or "full"; now: seconds since the epoch."""
    return {
        "images": [describe(image, _verified(image, verify), living(image.life), verify, now) for image in images],
        "broken": [{"path": printable(one.path), "why": one.why} for one in broken],
        "partial": [dict(asdict(one), path=printable(one.path), by=one.by or None) for one in partials],
    }


def _verified(image: Image, how: str) -> Sequence[str]:
    try:
        return digest.verify(image.path, image.manifest.chunks, how)
    except OSError as error:
        return (f"it can't be read: {error.strerror or error}",)


def describe(
    image: Image, problems: Sequence[str], lives: Sequence[Identity], verify: str, now: float
) -> Dict[str, Any]:
    """Pure. problems: what was found by verifying. lives: who of it is alive."""
    manifest = image.manifest
    return {
        "path": image.path,
        "name": manifest.name,
        "lineage": manifest.lineage,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(manifest.created, 253402300799.0))),
        "age_seconds": max(0, int(now - manifest.created)),
        "bytes": manifest.bytes,
        "host_bytes": manifest.host_bytes,
        "device_bytes": sum(manifest.device_bytes.values()),
        "compressed": manifest.compressed or None,
        "pid": manifest.root,
        "tree": [_member(member) for member in manifest.tree],
        "gpus": _gpus(manifest),
        "files": [dict(asdict(one), path=printable(one.path)) for one in manifest.files],
        "driver": manifest.driver or None,
        "criu": manifest.criu,
        "criu_options": [printable(one) for one in manifest.options],
        "hostname": manifest.hostname,
        "kernel": manifest.kernel,
        "machine": manifest.machine,
        "snapshot": manifest.snapshot,
        "state": image.life.state,
        "spent": image.life.state == SPENT,
        "lives": [asdict(one) for one in lives],
        "verified": verify,
        "problems": list(problems),
        "run_id": manifest.run_id,
    }


def _member(member: Member) -> Dict[str, Any]:
    return {
        "pid": member.pid,
        "parent": member.parent,
        "name": printable(member.name),
        "executable": printable(member.executable),
        "uid": member.uid,
        "threads": len(member.threads),
        "cuda": member.cuda,
        "device_bytes": sum(member.device_bytes.values()),
        "state_before": member.state_before or None,
        "stopped_before": member.stopped_before,
    }


def _gpus(manifest: Manifest) -> List[Dict[str, Any]]:
    """Those that the tree had in use."""
    held = manifest.device_bytes
    return [
        {"uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "bytes": held[gpu.uuid]}
        for gpu in manifest.gpus
        if gpu.uuid in held
    ]
