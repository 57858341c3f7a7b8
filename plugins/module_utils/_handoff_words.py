# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One image in the words of a move, as they go from host to host by way of the controller: input from outside."""

from __future__ import annotations

import re
from typing import Any, Mapping, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import NAME, NAME_ALLOWED
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import SHARED, SOURCE
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import PARTIAL
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

_PATTERNS = {
    "name": (NAME, NAME_ALLOWED),
    "id": (re.compile(r"(?:[0-9a-f]{32})?"), "32 digits, 0-9a-f, or nothing"),
    "lineage": (re.compile(r"[A-Za-z0-9-]{0,64}"), "at most 64 letters, digits and -"),
    "manifest": (re.compile(r"(?:[0-9a-f]{64})?"), "64 digits, 0-9a-f, or nothing"),
    "lock": (re.compile(r"(?:[0-9a-f]{64})?"), "64 digits, 0-9a-f, or nothing"),
    "key": (re.compile(r"(?:[0-9a-f]{64})?"), "64 digits, 0-9a-f, or nothing"),
    "side": (re.compile(f"{SOURCE}|{SHARED}"), f"{SOURCE} or {SHARED}"),
}


@dataclass(frozen=True)
class Entry:
    """name: of the image in its store. id: of the move. manifest: SHA-256 of the manifest. lock: of whoever has
    spoken last. key: what the side that has given it up gives away."""

    name: str
    id: str = ""
    lineage: str = ""
    manifest: str = ""
    lock: str = ""
    key: str = ""
    side: str = SOURCE


def parse_entries(raw: Any) -> Tuple[Entry, ...]:
    """Raises ArgumentError. Names that only tell (path, before, after, into) are left out."""
    found = []
    for index, value in enumerate(raw):
        if not isinstance(value, Mapping) or "name" not in value:
            raise ArgumentError("handoffs", f"entry {index} has no name", "What the step before returned is allowed.")
        known = {name: str(value[name]) for name in _PATTERNS if name in value}
        for name, text in known.items():
            pattern, allowed = _PATTERNS[name]
            if not pattern.fullmatch(text) or (name == "name" and text.endswith(PARTIAL)):
                shown = printable(text)[:80]
                raise ArgumentError("handoffs", f"{name} of entry {index} is {shown!r}", f"Allowed: {allowed}.")
        found.append(Entry(**known))
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise ArgumentError("handoffs", "one image is there twice", "Name each once.")
    return tuple(found)


def bad_entry(directory: str, name: str) -> CriuError:
    return CriuError(
        directory,
        f"it holds {printable(name)}, which is no file of an image",
        "An image is regular files only, so that nothing in it leads to another place.",
        "Delete what has come, and run the migration again.",
    )
