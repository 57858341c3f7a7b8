# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which units are held, for whom, and what they were before: entries among the journal's settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from ._journal import Journal
from ._journal_settings import Change, setting
from ._process_model import Identity

_PREFIX = "unit_hold "
_IMAGE = "image:"


@dataclass(frozen=True)
class Row:
    """One unit, held for one owner. boot_id: of the boot in which it was held: no hold outlives that.

    watchdog_usec: what the watchdog was, 0 where it is not held. reach: of the drop-in. main: the unit's main process
    then. runner: who held it. users: the processes that are in the unit. beside: the directory of the control group in
    which its process lives since it was restored.
    """

    unit: str
    owner: str
    boot_id: str
    watchdog_usec: int
    reach: str
    main: Optional[Identity]
    runner: Optional[Identity]
    users: Tuple[Identity, ...]
    beside: str = ""

    @property
    def lineage(self) -> str:
        """Of the image that it is held for, "" for a process."""
        return self.owner[len(_IMAGE) :] if self.owner.startswith(_IMAGE) else ""

    @property
    def name(self) -> str:
        return f"{_PREFIX}{self.owner} {self.unit}"


def image_owner(lineage: str) -> str:
    return f"{_IMAGE}{lineage}"


def process_owner(identity: Identity) -> str:
    return f"process:{identity.pid}:{identity.start_ticks}:{identity.boot_id}"


def read_rows(journal: Journal) -> Tuple[Row, ...]:
    """All of them, of this boot and of earlier ones. Raises JournalError."""
    found = journal.file.read(
        "SELECT * FROM settings WHERE substr(name, 1, ?) = ? ORDER BY name", (len(_PREFIX), _PREFIX)
    )
    if not found:
        return ()
    users: Sequence[Tuple[str, Identity]] = [
        (row["name"], Identity(row["pid"], row["start_ticks"], row["boot_id"]))
        for row in journal.file.read("SELECT * FROM setting_users ORDER BY pid")
    ]
    rows: List[Row] = []
    for row in found:
        owner, _space, unit = row["name"][len(_PREFIX) :].partition(" ")
        before, during = json.loads(row["before"]), json.loads(row["during"])
        rows.append(
            Row(
                unit=unit,
                owner=owner,
                boot_id=row["boot_id"],
                watchdog_usec=before["watchdog_usec"],
                reach=during["reach"],
                main=_identity(before["main"]),
                runner=_identity(during["runner"]),
                users=tuple(identity for name, identity in users if name == row["name"]),
                beside=during["beside"],
            )
        )
    return tuple(rows)


def record(journal: Journal, row: Row) -> None:
    """Durable when it returns, in place of an earlier one of that name. Raises JournalError."""
    before = {"watchdog_usec": row.watchdog_usec, "main": _plain(row.main)}
    during = {"reach": row.reach, "runner": _plain(row.runner), "beside": row.beside}
    with setting(journal.file, row.name) as entry:
        entry.forget()
        entry.record(Change(row.boot_id, json.dumps(before), json.dumps(during)))
        for user in row.users:
            entry.join(user)


def forget(journal: Journal, rows: Sequence[Row]) -> None:
    """Raises JournalError."""
    for row in rows:
        with setting(journal.file, row.name) as entry:
            entry.forget()


def _plain(identity: Optional[Identity]) -> Optional[List[object]]:
    return None if identity is None else [identity.pid, identity.start_ticks, identity.boot_id]


def _identity(plain: Optional[List[object]]) -> Optional[Identity]:
    return None if plain is None else Identity(int(str(plain[0])), int(str(plain[1])), str(plain[2]))
