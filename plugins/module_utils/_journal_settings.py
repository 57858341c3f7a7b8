# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the host that are changed for a while, and who still needs the change."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterator, Optional

from ._journal_file import JournalFile
from ._process import Identity

if TYPE_CHECKING:
    import sqlite3


@dataclass(frozen=True)
class Change:
    """boot_id: of the boot in which it was made. before: the value to put back. during: the value that was set."""

    boot_id: str
    before: str
    during: str


class Setting:
    """One setting, while nobody else can look at its entry."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    @property
    def change(self) -> Optional[Change]:
        row = self._connection.execute("SELECT * FROM settings WHERE name = ?", (self._name,)).fetchone()
        return None if row is None else Change(row["boot_id"], row["before"], row["during"])

    def record(self, change: Change) -> None:
        self._connection.execute(
            "INSERT INTO settings (name, boot_id, before, during) VALUES (?, ?, ?, ?)",
            (self._name, change.boot_id, change.before, change.during),
        )

    def forget(self) -> None:
        """The change and its users."""
        self._connection.execute("DELETE FROM settings WHERE name = ?", (self._name,))

    def join(self, user: Identity) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO setting_users (name, pid, start_ticks, boot_id) VALUES (?, ?, ?, ?)",
            (self._name, user.pid, user.start_ticks, user.boot_id),
        )

    def leave(self, user: Identity) -> None:
        self._connection.execute(
            "DELETE FROM setting_users WHERE name = ? AND pid = ? AND start_ticks = ? AND boot_id = ?",
            (self._name, user.pid, user.start_ticks, user.boot_id),
        )

    def is_used(self, alive: Callable[[Identity], bool]) -> bool:
        """By somebody who lives."""
        rows = self._connection.execute(
            "SELECT pid, start_ticks, boot_id FROM setting_users WHERE name = ?", (self._name,)
        ).fetchall()
        return any(alive(Identity(row["pid"], row["start_ticks"], row["boot_id"])) for row in rows)


def is_changed(file: JournalFile, name: str) -> bool:
    """Whether the setting has an entry, asked without waiting for anybody."""
    return bool(file.read("SELECT 1 FROM settings WHERE name = ?", (name,)))


@contextmanager
def setting(file: JournalFile, name: str) -> Iterator[Setting]:
    """Written when it ends, nothing when it raises. It ends with the host, as the change does: an entry says of which
    boot it is. Raises JournalError."""
    with file.transaction(durable=False) as connection:
        yield Setting(connection, name)
