# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which names an image directory may hold, and what each is."""

from __future__ import annotations

import os
import re
import stat
from typing import Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

MANIFEST = "manifest.json"
LIFE = "life.json"
#: Of the process that is at work in a directory. Names that begin with a dot are never part of an image.
OWNER = ".owner"
#: CRIU writes it when it restores.
_STATS = "stats-restore"

#: What is hashed and restored: CRIU's own names, and those of compressed files. Never a path.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@:=-]{0,199}")
NAME_ALLOWED = "letters, digits and . _ + @ : = -, a letter or a digit first, at most 200"


def is_content(name: str) -> bool:
    """Not what changes over the life of an image, and what it says about itself."""
    return not (name in (MANIFEST, LIFE, _STATS) or name.startswith(".") or name.endswith(".log"))


def content(directory: str) -> Tuple[str, ...]:
    """The names of what has to be hashed, sorted. Raises CriuError for anything but regular files, and for names that
    no manifest may have; OSError."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if not is_content(entry.name):
                continue
            if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode) or not NAME.fullmatch(entry.name):
                raise CriuError(
                    directory,
                    f"it holds {printable(entry.name)}, which is no file of an image",
                    "An image is regular files only, so that nothing in it leads to another place.",
                    "Remove it if you know where it comes from; otherwise report it.",
                )
            found.append(entry.name)
    return tuple(sorted(found))
