# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU memory that a restore is about to take, so that two restores can't both count on the same free bytes.

A restore without room loses the process, so what is uncertain counts against it: bytes that a restore has already taken
count as used and as reserved until it is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ._journal_file import JournalFile
from ._process import Identity

if TYPE_CHECKING:
    import sqlite3


@dataclass(frozen=True)
class Shortage:
    """A GPU without room. All in bytes; free: as the driver says, None for a GPU that it does not list; reserved: by
    other restores."""

    gpu: str
    needed: int
    free: Optional[int]
    reserved: int


class Reservations:
    """Keyed by their owner, the process that makes the restore. They end with it, whether it gives them back or not."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def reserve(
        self,
        wants: Sequence[Tuple[Identity, Mapping[str, int]]],
        free: Callable[[], Mapping[str, int]],
        alive: Callable[[Identity], bool],
    ) -> List[Optional[Shortage]]:
        """wants: owners, and what each needs. needs, free: GPU UUID to bytes. free is called once, while every other
        process waits, so that nothing changes between look and entry. Those that fit are entered, in order; the others
        get a Shortage. A second reservation of the same owner replaces its first."""
        with self._file.transaction(durable=False) as connection:
            connection.executemany(
                "DELETE FROM reservations WHERE boot_id = ? AND pid = ? AND start_ticks = ?",
                [_key(owner) for owner, _needs in wants],
            )
            taken = _sum(_drop_dead(connection, alive))
            room = free()
            return [self._enter(connection, owner, needs, room, taken) for owner, needs in wants]

    def _enter(
        self,
        connection: sqlite3.Connection,
        owner: Identity,
        needs: Mapping[str, int],
        room: Mapping[str, int],
        taken: Dict[str, int],
    ) -> Optional[Shortage]:
        for gpu, needed in needs.items():
            known = room.get(gpu)
            reserved = taken.get(gpu, 0)
            if known is None or known - reserved < needed:
                return Shortage(gpu, needed, known, reserved)
        connection.executemany(
            "INSERT INTO reservations (boot_id, pid, start_ticks, gpu, bytes) VALUES (?, ?, ?, ?, ?)",
            [(*_key(owner), gpu, int(needed)) for gpu, needed in needs.items()],
        )
        for gpu, needed in needs.items():
            taken[gpu] = taken.get(gpu, 0) + needed
        return None

    def release(self, owner: Identity) -> None:
        with self._file.transaction(durable=False) as connection:
            connection.execute(
                "DELETE FROM reservations WHERE boot_id = ? AND pid = ? AND start_ticks = ?", _key(owner)
            )

    def reserved(self, alive: Callable[[Identity], bool], but: Iterable[Identity]) -> Mapping[str, int]:
        left_out = set(but)
        rows = self._file.read("SELECT * FROM reservations")
        return _sum(row for row in rows if _owner(row) not in left_out and alive(_owner(row)))

    def drop(self, alive: Callable[[Identity], bool]) -> None:
        rows = self._file.read("SELECT * FROM reservations")
        if self._file.writable and not all(alive(owner) for owner in {_owner(row) for row in rows}):
            with self._file.transaction(durable=False) as connection:
                _drop_dead(connection, alive)


def _drop_dead(connection: sqlite3.Connection, alive: Callable[[Identity], bool]) -> Iterable[sqlite3.Row]:
    rows = connection.execute("SELECT * FROM reservations").fetchall()
    living = {owner: alive(owner) for owner in {_owner(row) for row in rows}}
    connection.executemany(
        "DELETE FROM reservations WHERE boot_id = ? AND pid = ? AND start_ticks = ?",
        [_key(owner) for owner, lives in living.items() if not lives],
    )
    return [row for row in rows if living[_owner(row)]]


def _owner(row: sqlite3.Row) -> Identity:
    return Identity(row["pid"], row["start_ticks"], row["boot_id"])


def _key(owner: Identity) -> Tuple[str, int, int]:
    return owner.boot_id, owner.pid, owner.start_ticks


def _sum(rows: Iterable[sqlite3.Row]) -> Dict[str, int]:
    total: Dict[str, int] = {}
    for row in rows:
        total[row["gpu"]] = total.get(row["gpu"], 0) + row["bytes"]
    return total
