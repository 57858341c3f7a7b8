# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and texts from outside, as they can stand in a message."""

from __future__ import annotations

from typing import Dict, Iterable, List, Tuple


def printable(text: str) -> str:
    """Control characters, line ends, and what could not be decoded, escaped as Python writes them."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "backslashreplace").decode("ascii") for one in text
    )


def grouped(notes: Iterable[Tuple[str, str]]) -> List[str]:
    """Pairs of a name and what is to be told of it: each text once, behind all that it is true of."""
    names: Dict[str, List[str]] = {}
    for name, note in notes:
        names.setdefault(note, []).append(name)
    return [f"{', '.join(who)}: {note}" for note, who in names.items()]
