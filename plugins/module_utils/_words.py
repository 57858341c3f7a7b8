# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and texts from outside, as they can stand in a message."""

from __future__ import annotations


def printable(text: str) -> str:
    """Control characters, line ends, and what could not be decoded, escaped as Python writes them."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "backslashreplace").decode("ascii") for one in text
    )
