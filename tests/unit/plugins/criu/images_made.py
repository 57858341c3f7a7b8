# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images as a dump leaves them, with a few bytes in place of a process's memory."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import digest, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import Life, write_life
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import (
    Manifest,
    ManifestGpu,
    Member,
    write_manifest,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular

UNSPENT = Life()
BOOT = "6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11"
GPU = "GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a"
FILES = {
    "inventory.img": b"inventory",
    "pages-1.img": bytes(range(256)) * 1000,
    "pages-2.img": b"",
    "tmpfs-dev-64.tar.gz.img": b"files",
}

SHELL = Member(4711, 1, 4711, 4711, 100, "sh", "/usr/bin/dash", 0, (4711,), False, {}, "", False)
WORKER = Member(
    4712,
    4711,
    4711,
    4711,
    101,
    "pyth\n\udcff",
    "/usr/bin/python3.12",
    1000,
    (4712, 4713, 4714),
    True,
    {GPU: 8 << 30},
    "running",
    True,
)


def make_manifest(**changed: Any) -> Manifest:
    whole = Manifest(
        lineage="5b1d7c0e6f2a4a0f9a4b6d1c2e3f4a5b",
        created=1796000000.25,
        hostname="gpu07",
        kernel="6.12.48+deb13-amd64",
        boot_id=BOOT,
        machine="x86_64",
        driver="580.159.04",
        gpus=(ManifestGpu(GPU, 0, "NVIDIA H200", 150754820096),),
        criu="4.1.1",
        options=("--shell-job", "--external", "dev[1/3]:null"),
        root=4711,
        tree=(SHELL, WORKER),
        host_bytes=536870912,
        files=(
            OpenRegular("/var/log/a b\n\udcfe.log", 12, False, True),
            OpenRegular("/tmp/gone", 3, True),
            OpenRegular("/var/log/grows", -1),
        ),
        chunks=(
            digest.FileDigest("inventory.img", 9, 1 << 20, ("0" * 64,)),
            digest.FileDigest("pages-1.img", (1 << 20) + 1, 1 << 20, ("a" * 64, "b" * 64)),
        ),
        snapshot=False,
        compressed="",
        run_id="20261130T020145-7f3a9c",
        name="inference-4711",
        selection='{"unit":"inference.service"}',
    )
    return replace(whole, **changed)


def fill(partial: str, files: Mapping[str, bytes] | None = None) -> None:
    for name, data in (FILES if files is None else files).items():
        Path(partial, name).write_bytes(data)


def make_image(path: Path, life: Life = UNSPENT, chunk: int = 1 << 16, **changed: Any) -> Manifest:
    """A sealed one, with checksums of what is in it."""
    partial = store.make_partial(str(path))
    fill(partial)
    Path(partial, "dump.log").write_text("said")
    changed.setdefault("name", path.name)
    made = make_manifest(chunks=digest.digest(partial, store.content(partial), chunk), **changed)
    write_manifest(partial, made)
    write_life(partial, life)
    store.seal(partial, str(path))
    return made


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))
