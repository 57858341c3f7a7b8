# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of a tree that CRIU has to end itself, since its connections would hear of any other end.

From that moment until it is sealed, the partial image is all that there is of the tree. So what the manifest needs
beside CRIU's files is in it before CRIU begins, and whoever comes after a death can finish it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import digest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.compress import SUFFIX
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import content
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import write_file
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import FieldError, read_limited
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import (
    MOST,
    Manifest,
    from_json,
    to_json,
    write_manifest,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

FILE = ".ending"


def announce(partial: str, manifest: Manifest) -> None:
    """CRIU is about to end the tree. manifest: without its chunks. Durable. Raises OSError."""
    write_file(partial, FILE, to_json(replace(manifest, chunks=())))


def announced(partial: str) -> Optional[Manifest]:
    """None: nobody was about to end it. Raises CriuError where that can't be read, OSError."""
    path = os.path.join(partial, FILE)
    try:
        return from_json(read_limited(path, MOST), sealed=False)
    except FileNotFoundError:
        return None
    except FieldError as error:
        raise CriuError(
            path,
            str(error),
            "It tells what the image was to be of, and is damaged.",
            f"Look at {partial}: it may hold the only copy of a process.",
        ) from None


def is_only_copy(partial: str) -> bool:
    """Whether CRIU was told to end the tree, and it has ended. Raises CriuError, OSError."""
    manifest = announced(partial)
    return manifest is not None and not any(
        is_alive(Identity(one.pid, one.start_ticks, manifest.boot_id)) for one in manifest.tree
    )


def complete(partial: str) -> Manifest:
    """Write the manifest, from what was announced and what is there. The caller is at work on it. Raises CriuError,
    OSError: then it can be tried again."""
    manifest = announced(partial)
    if manifest is None:
        raise ValueError(f"nothing is announced in {partial}")
    names = content(partial)
    torn = [name for name in names if name.endswith(SUFFIX) and name[: -len(SUFFIX)] in names]
    for name in torn:
        os.unlink(os.path.join(partial, name))  # compressing it was broken off
    kept = [name for name in names if name not in torn]
    compressed = "zstd" if any(name.endswith(SUFFIX) for name in kept) else ""
    whole = replace(manifest, compressed=compressed, chunks=digest.digest(partial, kept))
    write_manifest(partial, whole)
    return whole


def forget(image: str) -> None:
    """It has its name. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(image, FILE))
