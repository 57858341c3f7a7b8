# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A drain that brings its processes back does not suspend one more: not by a module that an attempt has left behind,
which was killed with its connection, goes on by itself, and has only now come so far."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, FrozenSet

from ._journal_errors import TakenOverError

if TYPE_CHECKING:
    import sqlite3

_BACK: FrozenSet[str] = frozenset(("undoing", "restoring", "restored"))


def check_suspend(connection: sqlite3.Connection, subject: str, run_id: str) -> None:
    """Inside the transaction that begins a suspend. Raises TakenOverError."""
    row = connection.execute("SELECT runs, phase FROM drains WHERE closed IS NULL").fetchone()
    if row is None or row["phase"] not in _BACK or run_id not in json.loads(row["runs"]):
        return
    raise TakenOverError(
        subject,
        f"run {run_id} is at {row['phase']} on this host: a later attempt of it brings back what it has suspended",
        "What is suspended from here on would be left behind.",
        "Let that attempt go on.",
    )
