# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host remembers of each image that was made, or brought back to life.

A worker that dies in between leaves stopped processes, an incomplete image or half a tree behind: the row says which,
and how far it can have got.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

from ._journal_fence import check_suspend
from ._journal_file import JournalFile
from ._process import Identity

if TYPE_CHECKING:
    import sqlite3

IMAGE_STATUSES: FrozenSet[str] = frozenset(
    ("active", "dumped", "sealed", "gone", "restoring", "restored", "undone", "failed", "held", "moved", "returned")
)
#: Somebody is at work on these, or died at it, unless the row is finished: a snapshot ends as "sealed".
LIVE_IMAGES: FrozenSet[str] = frozenset(("active", "dumped", "sealed", "restoring"))
#: What is measured of an image: until it is on the disk, until CRIU has made its tree again, and until all of it has
#: come from another host. A process's steps have other names.
DUMP_STEP, RESTORE_STEP, TRANSFER_STEP = "criu_dump", "criu_restore", "image_transfer"
LEAVES: FrozenSet[str] = frozenset(("killed", "running"))

_COLUMNS = (
    "lineage",
    "path",
    "run_id",
    "pid",
    "start_ticks",
    "boot_id",
    "leave",
    "step",
    "status",
    "worker_pid",
    "worker_start_ticks",
    "worker_boot_id",
    "stopped",
    "message",
    "finished",
    "created",
    "updated",
)


@dataclass(frozen=True)
class ImageRow:
    """What one run did with one image.

    lineage: joins a process, its image and its later lives. root: of the tree that is dumped, or was. path: of the
    image. leave: "killed" or "running", what becomes of the tree.
    step: the last one begun.
    status: "active" (a worker dumps, or died at it), "dumped" (the image is complete, but has not its name yet),
    "sealed" (it has; the tree may still be there), "gone" (the tree has ended), "restoring", "restored", "undone" (the
    tree goes on, the image is deleted), "failed"; of a move "held" (a copy has come), "moved" (it was given up here, or
    taken) and "returned".
    stopped: members of the tree that the worker stopped, and that go on when somebody continues them.
    finished: by finish_image(); no step has begun since.
    created, updated: seconds since the epoch.
    """

    id: int
    lineage: str
    path: str
    run_id: str
    root: Identity
    leave: str
    step: str
    status: str
    worker: Optional[Identity]
    stopped: Tuple[Identity, ...]
    message: str
    finished: bool
    created: float
    updated: float


class Images:
    """The table of images. Every method may raise JournalError; what raised was not done."""

    def __init__(self, file: JournalFile, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock

    def begin(
        self,
        lineage: str,
        path: str,
        run_id: str,
        root: Identity,
        leave: str,
        worker: Optional[Identity],
        before: float,
        status: str = "active",
        suspends: bool = False,
    ) -> ImageRow:
        """A new row. before: what ended earlier is forgotten, in seconds since the epoch. suspends: processes that run
        are going to be suspended for it."""
        now = self._clock()
        values: Tuple[object, ...] = (
            lineage,
            path,
            run_id,
            root.pid,
            root.start_ticks,
            root.boot_id,
            _one_of(leave, LEAVES, "leave"),
            "",
            _one_of(status, IMAGE_STATUSES, "status"),
            *_worker(worker),
            "[]",
            "",
            0,
            now,
            now,
        )
        with self._file.transaction() as connection:
            if suspends:
                check_suspend(connection, self._file.subject, run_id)
            _forget(connection, before)
            cursor = connection.execute(
                f"INSERT INTO images ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})", values
            )
            return _row(
                connection.execute("SELECT * FROM images WHERE id = ?", (int(cursor.lastrowid or 0),)).fetchone()
            )

    def change(
        self,
        number: int,
        step: Optional[str] = None,
        status: Optional[str] = None,
        stopped: Optional[Sequence[Identity]] = None,
        message: Optional[str] = None,
        finished: bool = False,
        durable: bool = True,
    ) -> None:
        """None leaves a field as it is. Raises KeyError for an id that there is none of, ValueError for a status that
        there is none of."""
        columns: Dict[str, object] = {"updated": self._clock(), "finished": int(finished)}
        if step is not None:
            columns["step"] = step
        if status is not None:
            columns["status"] = _one_of(status, IMAGE_STATUSES, "status")
        if stopped is not None:
            columns["stopped"] = json.dumps([[one.pid, one.start_ticks, one.boot_id] for one in stopped])
        if message is not None:
            columns["message"] = message
        with self._file.transaction(durable) as connection:
            cursor = connection.execute(
                f"UPDATE images SET {', '.join(name + ' = ?' for name in columns)} WHERE id = ?",
                (*columns.values(), number),
            )
            if cursor.rowcount != 1:
                raise KeyError(number)

    def measured(self, number: int, step: str, seconds: float, moved: int) -> None:
        """moved: bytes of memory. Raises ValueError for a step that there is none of, JournalError for an image."""
        if step not in (DUMP_STEP, RESTORE_STEP, TRANSFER_STEP):
            raise ValueError(f"step {step!r}")
        with self._file.transaction(durable=False) as connection:
            connection.execute(
                "INSERT INTO image_steps (image, step, at, seconds, bytes) VALUES (?, ?, ?, ?, ?)",
                (number, step, self._clock() - seconds, seconds, moved),
            )

    def history(self, step: str, limit: int) -> Tuple[Tuple[int, float, float, int], ...]:
        """Image, at, seconds and bytes of the last ones, newest first."""
        if not self._file.has_table("image_steps"):
            return ()
        rows = self._file.read(
            "SELECT image, at, seconds, bytes FROM image_steps WHERE step = ? ORDER BY id DESC LIMIT ?", (step, limit)
        )
        return tuple((row["image"], row["at"], row["seconds"], row["bytes"]) for row in rows)

    def latest(self, path: str) -> Optional[ImageRow]:
        found = self._read("WHERE path = ? ORDER BY id DESC LIMIT 1", (path,))
        return found[0] if found else None

    def of_root(self, root: Identity) -> Tuple[ImageRow, ...]:
        return self._read(
            "WHERE boot_id = ? AND pid = ? AND start_ticks = ? ORDER BY id DESC",
            (root.boot_id, root.pid, root.start_ticks),
        )

    def of_lineage(self, lineage: str) -> Tuple[ImageRow, ...]:
        return self._read("WHERE lineage = ? ORDER BY id DESC", (lineage,))

    def of_run(self, run_id: str) -> Tuple[ImageRow, ...]:
        return self._read("WHERE run_id = ? ORDER BY id", (run_id,))

    def moved(self, limit: int) -> Tuple[ImageRow, ...]:
        """Those that were given up for another host or taken from one, newest first."""
        return self._read("WHERE status = 'moved' ORDER BY id DESC LIMIT ?", (limit,))

    def unfinished(self, path: str, root: Optional[Identity]) -> Tuple[ImageRow, ...]:
        key = ("", 0, 0) if root is None else (root.boot_id, root.pid, root.start_ticks)
        return self._read(
            "WHERE finished = 0 AND (path = ? OR (boot_id = ? AND pid = ? AND start_ticks = ?)) ORDER BY id",
            (path, *key),
        )

    def live(self) -> Tuple[ImageRow, ...]:
        names = sorted(LIVE_IMAGES)
        return self._read(f"WHERE finished = 0 AND status IN ({', '.join('?' * len(names))}) ORDER BY id", tuple(names))

    def _read(self, condition: str, values: Tuple[object, ...]) -> Tuple[ImageRow, ...]:
        if not self._file.has_table("images"):
            return ()  # opened for reading, and of a release that made no images
        return tuple(_row(row) for row in self._file.read(f"SELECT * FROM images {condition}", values))


def _one_of(value: str, known: FrozenSet[str], name: str) -> str:
    if value not in known:
        raise ValueError(f"{name} {value!r}")
    return value


def _worker(worker: Optional[Identity]) -> Tuple[object, object, object]:
    return (None, None, None) if worker is None else (worker.pid, worker.start_ticks, worker.boot_id)


def _row(row: sqlite3.Row) -> ImageRow:
    return ImageRow(
        id=row["id"],
        lineage=row["lineage"],
        path=row["path"],
        run_id=row["run_id"],
        root=Identity(row["pid"], row["start_ticks"], row["boot_id"]),
        leave=row["leave"],
        step=row["step"],
        status=row["status"],
        worker=None
        if row["worker_pid"] is None
        else Identity(row["worker_pid"], row["worker_start_ticks"], row["worker_boot_id"]),
        stopped=tuple(Identity(*one) for one in json.loads(row["stopped"])),
        message=row["message"],
        finished=bool(row["finished"]),
        created=row["created"],
        updated=row["updated"],
    )


def _forget(connection: sqlite3.Connection, before: float) -> None:
    """What is over. An image itself says whether it was spent."""
    found = connection.execute("SELECT id FROM images WHERE updated < ? AND finished = 1", (before,))
    old: List[int] = [row["id"] for row in found]
    connection.executemany("DELETE FROM images WHERE id = ?", [(number,) for number in old])
