# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs of CRIU that an image can't keep, because it goes with the failure that they tell of."""

from __future__ import annotations

import os
import shutil

KEPT = 50


def keep(log: str, journal: str, name: str) -> str:
    """Copy a log to where the journal is, for root only; the oldest beyond KEPT go. Returns its new path, "" where none
    is. Raises nothing: a log is no reason to fail."""
    directory = os.path.join(os.path.dirname(journal), "logs")
    path = os.path.join(directory, name)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as target, open(log, "rb") as source:
            shutil.copyfileobj(source, target)
        found = sorted((os.path.getmtime(os.path.join(directory, one)), one) for one in os.listdir(directory))
        for _at, old in found[:-KEPT]:
            os.unlink(os.path.join(directory, old))
    except OSError:
        return ""
    return path
