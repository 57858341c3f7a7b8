# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a database is a journal as this collection writes it. SQLite itself takes any value for any column, and runs
whatever triggers a file brings along."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Tuple

from ._journal_schema import SCRIPTS

if TYPE_CHECKING:
    import sqlite3

_KINDS: Mapping[str, Tuple[str, ...]] = {
    "TEXT": ("text",),
    "INTEGER": ("integer",),
    "REAL": ("real",),
}
#: Of a column of JSON: what it holds.
_JSON: Mapping[str, Mapping[str, str]] = {
    "images": {"stopped": "identities"},
    "drains": {
        "runs": "texts",
        "selection": "object",
        "processes": "processes",
        "scheduler": "object",
        "packages": "object",
        "declares": "texts",
    },
}
_HOLD = "unit_hold "
#: Of what is counted in seconds, also since the epoch.
_MOST = 10**12


def problem(connection: sqlite3.Connection, model: sqlite3.Connection) -> str:
    """What is not as this collection writes it, "" for nothing. model: an empty database in memory, to be filled.
    Raises sqlite3.Error."""
    # Another process may bring it up to a newer release meanwhile.
    connection.execute("BEGIN")
    try:
        return _problem(connection, model)
    finally:
        connection.execute("ROLLBACK")


def _problem(connection: sqlite3.Connection, model: sqlite3.Connection) -> str:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    for script in SCRIPTS[:version]:
        for statement in script:
            model.execute(statement)
    known, found = _schema(model), _schema(connection)
    for name in sorted({*known, *found}):
        if known.get(name) != found.get(name):
            what = "there is no" if name not in found else "it has another" if name in known else "it has a"
            return f"{what} {name}"
    for name in sorted(known):
        kind, _space, table = name.partition(" ")
        said = _table(connection, table) if kind == "table" else ""
        if said:
            return said
    return ""


def _schema(connection: sqlite3.Connection) -> Dict[str, str]:
    """Kind and name of each table, index, view and trigger, and the statement that has made it."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite^_%' ESCAPE '^'")
    return {f"{kind} {name}": str(sql) for kind, name, sql in rows.fetchall()}


def _table(connection: sqlite3.Connection, table: str) -> str:
    wrong = {}
    for _number, column, declared, needed, _default, key in connection.execute(
        f"PRAGMA table_info({table})"
    ).fetchall():
        kinds = _KINDS[declared] + (() if needed or key else ("null",))
        listed = ", ".join(f"'{kind}'" for kind in kinds)
        wrong[column] = f"typeof({column}) NOT IN ({listed})"
        if declared == "REAL":
            wrong[column] += f" OR {column} NOT BETWEEN 0 AND {_MOST:d}"
    if connection.execute(f"SELECT 1 FROM {table} WHERE {' OR '.join(wrong.values())} LIMIT 1").fetchone():
        for column, condition in wrong.items():
            row = connection.execute(f"SELECT rowid FROM {table} WHERE {condition} LIMIT 1").fetchone()
            if row is not None:
                return f"{column} of row {row[0]} of {table} is not what is written there"
    for column, shape in _JSON.get(table, {}).items():
        for number, text in connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
            if not _fits(shape, text):
                return f"{column} of row {number} of {table} is not what is written there"
    if table == "settings":
        for name, before, during in connection.execute("SELECT name, before, during FROM settings").fetchall():
            if name.startswith(_HOLD) and not (_fits("before", before) and _fits("during", during)):
                return f"the row {name!r} of settings is not what is written there"
    return ""


def _fits(shape: str, text: str) -> bool:
    try:
        return _SHAPES[shape](json.loads(text))
    except (ValueError, RecursionError):
        return False


def _is_identity(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value[:2])
        and isinstance(value[2], str)
    )


def _is_process(value: Any) -> bool:
    identity = value.get("identity") if isinstance(value, dict) else None
    return isinstance(identity, dict) and _is_identity([identity.get(key) for key in ("pid", "start_ticks", "boot_id")])


def _is_before(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("watchdog_usec"), int)
        and "main" in value
        and (value["main"] is None or _is_identity(value["main"]))
    )


def _is_during(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in ("reach", "beside"))
        and "runner" in value
        and (value["runner"] is None or _is_identity(value["runner"]))
    )


_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    "identities": lambda value: isinstance(value, list) and all(_is_identity(one) for one in value),
    "texts": lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "object": lambda value: isinstance(value, dict),
    "processes": lambda value: isinstance(value, list) and all(_is_process(one) for one in value),
    "before": _is_before,
    "during": _is_during,
}
