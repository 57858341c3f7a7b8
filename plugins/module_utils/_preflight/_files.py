# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts of the kernel and files of the loader, read without an error: what can't be read is None."""

from __future__ import annotations

import os
from typing import List, Optional


def text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return None


def data(path: str, most: int = -1) -> Optional[bytes]:
    try:
        with open(path, "rb") as stream:
            return stream.read(most)
    except OSError:
        return None


def number(path: str) -> Optional[int]:
    word = (text(path) or "").strip()
    return int(word) if word.lstrip("-").isdigit() else None


def names(path: str) -> List[str]:
    """Of a directory, sorted; none where it can't be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def link(path: str) -> str:
    """The last part of where it leads, "" where it is no link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
