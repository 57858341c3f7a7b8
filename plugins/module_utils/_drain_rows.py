# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains in the host's journal: the row that has the host, those before it, and what each went through."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import ENDS, PHASES, Drain, Found
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import KEPT_SECONDS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_file import JournalFile
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

if TYPE_CHECKING:
    import sqlite3

_TEXTS = ("run_id", "kind", "controller", "phase", "mode", "store", "boot_id", "suspended_boot_id", "message")
_JSON = ("runs", "selection", "processes", "scheduler", "packages", "declares")
_COLUMNS = (*_TEXTS, *_JSON, "attempt", "after_operation", "after_image", "opened", "updated", "closed")


@dataclass(frozen=True)
class PhaseRecord:
    """A phase that was reached. at: seconds since the epoch."""

    phase: str
    attempt: int
    at: float
    boot_id: str
    message: str


@dataclass(frozen=True)
class FailureRecord:
    """What failed in a phase. at: when it was told, in seconds since the epoch."""

    phase: str
    attempt: int
    at: float
    message: str


class Drains:
    """The tables of drains. Every method may raise JournalError; what raised was not done."""

    def __init__(self, file: JournalFile, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock

    def find(self, run_id: str) -> Found:
        """The open row, and the newest closed one: of this run, "" for any. As it is now, without the lock."""
        if not self._file.has_table("drains"):
            return Found(None, None)  # opened for reading, and of a release that drained nothing
        rows = self._file.read("SELECT * FROM drains ORDER BY id DESC")
        phases = self._file.read("SELECT drain, max(at) AS at FROM drain_phases GROUP BY drain")
        return _found([_row(row) for row in rows], {row["drain"]: row["at"] for row in phases}, run_id)

    def newest(self, run_id: str) -> Optional[Drain]:
        """Open or closed."""
        if not self._file.has_table("drains"):
            return None
        rows = [_row(row) for row in self._file.read("SELECT * FROM drains ORDER BY id DESC")]
        return next((row for row in rows if not run_id or run_id in row.runs), None)

    def closed(self, limit: int) -> Tuple[Drain, ...]:
        """The last ones, newest first."""
        if not self._file.has_table("drains"):
            return ()
        rows = self._file.read("SELECT * FROM drains WHERE closed IS NOT NULL ORDER BY id DESC LIMIT ?", (limit,))
        return tuple(_row(row) for row in rows)

    def timeline(self, drain: int) -> Tuple[PhaseRecord, ...]:
        """In its order."""
        if not self._file.has_table("drain_phases"):
            return ()
        rows = self._file.read("SELECT * FROM drain_phases WHERE drain = ? ORDER BY id", (drain,))
        return tuple(
            PhaseRecord(row["phase"], row["attempt"], row["at"], row["boot_id"], row["message"]) for row in rows
        )

    def failures(self, drain: int) -> Tuple[FailureRecord, ...]:
        """In their order."""
        if not self._file.has_table("drain_failures"):
            return ()
        rows = self._file.read("SELECT * FROM drain_failures WHERE drain = ? ORDER BY id", (drain,))
        return tuple(FailureRecord(row["phase"], row["attempt"], row["at"], row["message"]) for row in rows)

    @contextmanager
    def lock(self) -> Iterator[Change]:
        """Nobody else reads or writes a drain until it ends; durable then, nothing when it raises."""
        with self._file.transaction() as connection:
            yield Change(connection, self._clock())


class Change:
    """What may be done under the lock."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self._now = now

    def find(self, run_id: str) -> Found:
        rows = self._connection.execute("SELECT * FROM drains ORDER BY id DESC").fetchall()
        phases = self._connection.execute("SELECT drain, max(at) AS at FROM drain_phases GROUP BY drain").fetchall()
        return _found([_row(row) for row in rows], {row["drain"]: row["at"] for row in phases}, run_id)

    def get(self, drain: int) -> Drain:
        """Raises KeyError for an id that there is none of."""
        row = self._connection.execute("SELECT * FROM drains WHERE id = ?", (drain,)).fetchone()
        if row is None:
            raise KeyError(drain)
        return _row(row)

    def open(self, run_id: str, attempt: int, phase: str, boot_id: str, **values: object) -> Drain:
        """A new row. What is long over is forgotten. Raises ValueError where a row is open already."""
        if self._connection.execute("SELECT 1 FROM drains WHERE closed IS NULL").fetchone():
            raise ValueError("a drain is open")
        self._forget()
        fields: Dict[str, object] = {
            "kind": "drain",
            "controller": "",
            "mode": "memory",
            "store": "",
            "suspended_boot_id": "",
            "message": "",
            "runs": (run_id,),
            "selection": {},
            "processes": (),
            "scheduler": {},
            "packages": {},
            "declares": (),
            **values,
            "run_id": run_id,
            "attempt": attempt,
            "phase": phase,
            "boot_id": boot_id,
        }
        columns = {name: _column(name, value) for name, value in fields.items()}
        columns["after_operation"] = self._last("operations")
        columns["after_image"] = self._last("images")
        columns["opened"] = columns["updated"] = self._now
        cursor = self._connection.execute(
            f"INSERT INTO drains ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
            tuple(columns.values()),
        )
        number = int(cursor.lastrowid or 0)
        self._record(number, phase, attempt, boot_id, str(fields["message"]))
        return self.get(number)

    def update(self, drain: int, **values: object) -> Drain:
        """Fields, but not the phase."""
        columns = {name: _column(name, value) for name, value in values.items() if name != "phase"}
        if len(columns) != len(values):
            raise TypeError("phase")
        columns["updated"] = self._now
        self._set(drain, columns)
        return self.get(drain)

    def reach(self, drain: int, phase: str, boot_id: str, message: str = "", **values: object) -> Drain:
        """A phase, with the fields that change with it. With one that ends it, the row is closed."""
        columns = {name: _column(name, value) for name, value in values.items()}
        columns.update(phase=_column("phase", phase), message=message, updated=self._now)
        if phase in ENDS:
            columns["closed"] = self._now
        self._set(drain, columns)
        row = self.get(drain)
        self._record(drain, phase, row.attempt, boot_id, message)
        return row

    def fail(self, drain: int, message: str) -> Drain:
        """What failed, under the phase that the drain is in. What was told of it before in fewer words is told anew."""
        row = self.get(drain)
        last = self._connection.execute(
            "SELECT * FROM drain_failures WHERE drain = ? ORDER BY id DESC LIMIT 1", (drain,)
        ).fetchone()
        same = last is not None and (last["phase"], last["attempt"]) == (row.phase, row.attempt)
        if same and message.endswith(last["message"]):
            self._connection.execute("UPDATE drain_failures SET message = ? WHERE id = ?", (message, last["id"]))
        else:
            self._connection.execute(
                "INSERT INTO drain_failures (drain, phase, attempt, at, message) VALUES (?, ?, ?, ?, ?)",
                (drain, row.phase, row.attempt, self._now, message),
            )
        return self.update(drain, message=message)

    def _set(self, drain: int, columns: Mapping[str, object]) -> None:
        cursor = self._connection.execute(
            f"UPDATE drains SET {', '.join(name + ' = ?' for name in columns)} WHERE id = ?",
            (*columns.values(), drain),
        )
        if cursor.rowcount != 1:
            raise KeyError(drain)

    def _record(self, drain: int, phase: str, attempt: int, boot_id: str, message: str) -> None:
        self._connection.execute(
            "INSERT INTO drain_phases (drain, phase, attempt, at, boot_id, message) VALUES (?, ?, ?, ?, ?, ?)",
            (drain, phase, attempt, self._now, boot_id, message),
        )

    def _last(self, table: str) -> int:
        """The highest id that the table ever had: AUTOINCREMENT gives none of them again."""
        row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        return 0 if row is None else int(row["seq"])

    def _forget(self) -> None:
        """The last one stays, however old: it tells what the host was left as."""
        self._connection.execute(
            "DELETE FROM drains WHERE closed < ? AND id != (SELECT max(id) FROM drains)", (self._now - KEPT_SECONDS,)
        )


def _found(rows: List[Drain], since: Mapping[int, float], run_id: str) -> Found:
    open_row = next((row for row in rows if row.is_open), None)
    last = next((row for row in rows if not row.is_open and (not run_id or run_id in row.runs)), None)
    return Found(open_row, last, since.get(open_row.id, 0.0) if open_row is not None else 0.0)


def _column(name: str, value: object) -> object:
    """As the table has it. Raises TypeError or ValueError for what a drain can't have."""
    if name == "phase" and value not in PHASES:
        raise ValueError(f"phase {value!r}")
    if name in _JSON:
        return json.dumps(value)
    if (name in _TEXTS and isinstance(value, str)) or (name == "attempt" and isinstance(value, int)):
        return value
    raise TypeError(f"{name}={value!r}")


def _row(row: sqlite3.Row) -> Drain:
    loaded: Dict[str, Any] = {name: json.loads(row[name]) for name in _JSON}
    for name in ("runs", "processes", "declares"):
        loaded[name] = tuple(loaded[name])
    plain = {name: row[name] for name in _COLUMNS if name not in _JSON}
    return Drain(id=row["id"], **plain, **loaded)
