# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host remembers of each process that was worked on, through a crash or a reboot.

Each step is written before it is made, and is on the disk when the call returns. Whoever comes after a dead worker
reads how far it can have got. docs/journal.md has the tables.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ._journal_errors import TakenOverError
from ._journal_fence import check_suspend
from ._journal_file import BUSY_SECONDS, JournalFile
from ._journal_images import DUMP_STEP, RESTORE_STEP, TRANSFER_STEP, ImageRow, Images
from ._journal_reservations import Reservations, Shortage
from ._process import Identity, is_alive

if TYPE_CHECKING:
    import sqlite3

STATUSES: FrozenSet[str] = frozenset(("active", "suspended", "done", "failed", "undone", "unknown"))
#: A process whose last operation ended like this has nothing that a later run would have to know.
SETTLED: FrozenSet[str] = frozenset(("done", "undone"))
#: What is older is forgotten, but for operations of this boot that are not settled, or were refused. In seconds.
KEPT_SECONDS = 90 * 86400.0

_TEXT = ("goal", "state_before", "guard", "stopped_by", "backend", "message", "executable", "run_id")
_TEXT_OR_NONE = ("signal_mask",)
_NUMBER_OR_NONE = ("restore_tid", "refused")


@dataclass(frozen=True)
class Operation:
    """What one run did with one process.

    identity: of the process. goal: the state that was asked for. state_before: what it was in.
    step: the last one begun.
    status: "active" (a worker is at it, or died at it), "suspended", "done", "failed", "undone" (back where it was),
    "unknown" (the driver gave no answer in time).
    worker: who makes the calls, and guards. park, guard: as in the module's options.
    restore_tid: CUDA's restore thread. signal_mask: the one that it had before it was held.
    stopped_by: "", "us" or "other".
    device_bytes: GPU UUID to bytes held when it was suspended.
    refused: the CUresult of a checkpoint that the driver refused; None: it refused none.
    created, updated: seconds since the epoch.
    """

    id: int
    run_id: str
    identity: Identity
    executable: str
    uid: int
    goal: str
    state_before: str
    step: str
    status: str
    worker: Optional[Identity]
    park: bool
    guard: str
    restore_tid: Optional[int]
    signal_mask: Optional[str]
    stopped_by: str
    backend: str
    message: str
    created: float
    updated: float
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    refused: Optional[int] = None


@dataclass(frozen=True)
class StepRecord:
    """A step that was made. operation: the id of its row, which for those of images is an image's. at: when
    it began, seconds since the epoch. bytes: of GPU memory that its process held; of an image, memory of its tree."""

    operation: int
    step: str
    at: float
    seconds: float
    bytes: int


class Journal:
    """Safe with many processes at once, each with a Journal of its own. Also after a fork. Every method may raise
    JournalError; what raised was not done."""

    def __init__(self, file: JournalFile, clock: Callable[[], float] = time.time) -> None:
        self.file = file
        self._clock = clock
        self._reservations = Reservations(file)
        self._images = Images(file, clock)

    @property
    def path(self) -> str:
        return self.file.path

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """The next use opens it again."""
        self.file.close()

    # Operations

    def begin(
        self,
        *,
        run_id: str,
        identity: Identity,
        executable: str,
        uid: int,
        goal: str,
        state_before: str,
        step: str,
        worker: Optional[Identity],
        park: bool,
        guard: str,
        backend: str,
        stopped_by: str = "",
        device_bytes: Optional[Mapping[str, int]] = None,
        restore_tid: Optional[int] = None,
        signal_mask: Optional[str] = None,
        message: str = "",
        after: Optional[int] = None,
        durable: bool = True,
    ) -> Operation:
        """A new operation, "active", about to make its first step. durable: see JournalFile.transaction.

        after: the id of the operation that its maker knows as the last one of this process, 0 for none. Raises
        TakenOverError where another one has begun since: two runs must not drive one process; and where a drain of this
        run has begun to bring its processes back.
        """
        now = self._clock()
        operation = Operation(
            id=0,
            run_id=run_id,
            identity=identity,
            executable=executable,
            uid=uid,
            goal=goal,
            state_before=state_before,
            step=step,
            status="active",
            worker=worker,
            park=park,
            guard=guard,
            restore_tid=restore_tid,
            signal_mask=signal_mask,
            stopped_by=stopped_by,
            backend=backend,
            message=message,
            created=now,
            updated=now,
            device_bytes=dict(device_bytes or {}),
        )
        columns = _columns_of(operation)
        with self.file.transaction(durable) as connection:
            if after is not None:
                _check_last(connection, self.file.subject, identity, after)
            if worker is not None and goal == "checkpointed" and state_before in ("running", "locked"):
                check_suspend(connection, self.file.subject, run_id)
            _forget(connection, now - KEPT_SECONDS, identity.boot_id)
            cursor = connection.execute(
                f"INSERT INTO operations ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
                tuple(columns.values()),
            )
            number = int(cursor.lastrowid or 0)
            _set_device_bytes(connection, number, operation.device_bytes)
            _insert_step(connection, number, step, now)
            return _read_one(connection, number)

    def step(self, operation: int, name: str, **changed: object) -> None:
        """About to make this step. changed: fields of the operation that change with it, `status` included."""
        now = self._clock()
        with self.file.transaction(durable=False) as connection:
            _change(connection, operation, now, dict(changed, step=name))
            _insert_step(connection, operation, name, now)

    def update(self, operation: int, **changed: object) -> None:
        """Fields of the operation; `device_bytes` and `worker` included."""
        with self.file.transaction(durable=False) as connection:
            _change(connection, operation, self._clock(), changed)

    def finish(
        self,
        operation: int,
        status: str,
        message: str = "",
        seconds: Optional[Mapping[str, float]] = None,
        **changed: object,
    ) -> None:
        """What became of it. seconds: of each step that was made, by its name. A process that is suspended is not at
        its end: `harden` says when that has to be on the disk."""
        with self.file.transaction(durable=status != "suspended") as connection:
            _change(connection, operation, self._clock(), dict(changed, status=status, message=message))
            held = connection.execute("SELECT sum(bytes) FROM device_bytes WHERE operation = ?", (operation,))
            total = held.fetchone()[0]
            for name, taken in (seconds or {}).items():
                connection.execute(
                    "UPDATE steps SET seconds = ?, bytes = ? WHERE id ="
                    " (SELECT max(id) FROM steps WHERE operation = ? AND step = ?)",
                    (float(taken), total, operation, name),
                )

    def harden(self) -> None:
        """Everything that anybody has written so far outlives the host."""
        with self.file.transaction() as connection:
            connection.execute("UPDATE operations SET id = id WHERE id = (SELECT max(id) FROM operations)")

    def get(self, operation: int) -> Operation:
        """Raises KeyError for an id that there is none of."""
        found = self._read("WHERE id = ?", (operation,))
        if not found:
            raise KeyError(operation)
        return found[0]

    def latest(self, identity: Identity) -> Optional[Operation]:
        """The last one of this process; None if it was never worked on."""
        found = self._read(
            "WHERE boot_id = ? AND pid = ? AND start_ticks = ? ORDER BY id DESC LIMIT 1",
            (identity.boot_id, identity.pid, identity.start_ticks),
        )
        return found[0] if found else None

    def guard(self, identity: Identity, tracer: int) -> Optional[Identity]:
        """The live worker of an operation of this process that has the PID of its tracer. It need not be the last one:
        a guard stays while the next worker makes ready to take over, and outlives one that dies at that. tracer: 0 for
        none. None: it is none of ours."""
        if tracer == 0:
            return None
        rows = self.file.read(
            "SELECT worker_pid, worker_start_ticks, worker_boot_id FROM operations"
            " WHERE boot_id = ? AND pid = ? AND start_ticks = ? AND worker_pid = ? ORDER BY id DESC LIMIT 1",
            (identity.boot_id, identity.pid, identity.start_ticks, tracer),
        )
        found = Identity(*rows[0]) if rows else None
        return found if found is not None and is_alive(found) else None

    def live(self, boot_id: str) -> Tuple[Operation, ...]:
        """The last operation of each process of this boot that is not settled: "active", "suspended", "failed" or
        "unknown". The process may have ended since."""
        return self._read(
            "WHERE id IN (SELECT max(id) FROM operations WHERE boot_id = ? GROUP BY pid, start_ticks)"
            " AND status NOT IN ('done', 'undone') ORDER BY id",
            (boot_id,),
        )

    def refused(self, identity: Identity) -> Optional[int]:
        """The CUresult of a checkpoint of this process that the driver once refused: it refuses every later one, too
        (docs/driver-findings.md). None: it never did."""
        rows = self.file.read(
            "SELECT refused FROM operations WHERE boot_id = ? AND pid = ? AND start_ticks = ? AND refused IS NOT NULL"
            " ORDER BY id LIMIT 1",
            (identity.boot_id, identity.pid, identity.start_ticks),
        )
        return int(rows[0]["refused"]) if rows else None

    def of_run(self, run_id: str) -> Tuple[Operation, ...]:
        """Everything that one run did, in its order."""
        return self._read("WHERE run_id = ? ORDER BY id", (run_id,))

    def of_process(self, identity: Identity) -> Tuple[Operation, ...]:
        """Everything that was done with one process, in its order."""
        return self._read(
            "WHERE boot_id = ? AND pid = ? AND start_ticks = ? ORDER BY id",
            (identity.boot_id, identity.pid, identity.start_ticks),
        )

    def history(self, step: str, limit: int = 100) -> Tuple[StepRecord, ...]:
        """The last steps of this name that were measured, newest first: what estimates are made of."""
        if step in (DUMP_STEP, RESTORE_STEP, TRANSFER_STEP):
            return tuple(
                StepRecord(image, step, at, seconds, moved)
                for image, at, seconds, moved in self._images.history(step, limit)
            )
        rows = self.file.read(
            "SELECT operation, step, at, seconds, bytes FROM steps"
            " WHERE step = ? AND seconds IS NOT NULL ORDER BY id DESC LIMIT ?",
            (step, limit),
        )
        return tuple(
            StepRecord(row["operation"], row["step"], row["at"], row["seconds"], row["bytes"] or 0) for row in rows
        )

    def steps(self, operation: int) -> Tuple[str, ...]:
        """The names of the steps that were begun, in their order."""
        rows = self.file.read("SELECT step FROM steps WHERE operation = ? ORDER BY id", (operation,))
        return tuple(str(row["step"]) for row in rows)

    def _read(self, condition: str, values: Tuple[object, ...]) -> Tuple[Operation, ...]:
        rows = self.file.read(f"SELECT * FROM operations {condition}", values)
        held = self.file.read(
            f"SELECT operation, gpu, bytes FROM device_bytes WHERE operation IN ({', '.join('?' * len(rows))})",
            tuple(row["id"] for row in rows),
        )
        return _operations(rows, held)

    # Reservations of GPU memory

    def reserve(
        self,
        wants: Sequence[Tuple[Identity, Mapping[str, int]]],
        free: Callable[[], Mapping[str, int]],
        alive: Callable[[Identity], bool] = is_alive,
    ) -> List[Optional[Shortage]]:
        """Reserve GPU memory for processes that are to be restored: for each None, or what lacks."""
        return self._reservations.reserve(wants, free, alive)

    def release(self, owner: Identity) -> None:
        """Give back what this owner reserved, if anything."""
        self._reservations.release(owner)

    def reserved(self, alive: Callable[[Identity], bool] = is_alive, but: Iterable[Identity] = ()) -> Mapping[str, int]:
        """GPU UUID to bytes that live owners reserved; `but` those of these owners."""
        return self._reservations.reserved(alive, but)

    def drop_reservations(self, alive: Callable[[Identity], bool] = is_alive) -> None:
        """Those of owners that are gone. A journal that was opened for reading is left as it is."""
        self._reservations.drop(alive)

    # Images

    def begin_image(
        self,
        *,
        lineage: str,
        path: str,
        run_id: str,
        root: Identity,
        leave: str,
        worker: Optional[Identity],
        status: str = "active",
    ) -> ImageRow:
        """A new row, of an image that is to be made, or with status "restoring" brought back. leave: "killed" or
        "running". Raises ValueError for another leave or status."""
        oldest = self._clock() - KEPT_SECONDS
        # The root of a tree that is brought back has ended before.
        suspends = worker is not None and is_alive(root)
        return self._images.begin(lineage, path, run_id, root, leave, worker, oldest, status, suspends)

    def image_step(
        self,
        image: int,
        step: str,
        status: Optional[str] = None,
        stopped: Optional[Sequence[Identity]] = None,
        message: Optional[str] = None,
        durable: bool = True,
    ) -> None:
        """About to make this step. None leaves a field as it is. durable: see JournalFile.transaction. Raises KeyError
        for an id that there is none of."""
        self._images.change(image, step, status, stopped, message, durable=durable)

    def finish_image(self, image: int, status: str, message: str = "") -> None:
        """What became of it: nobody is at work on it any more. Raises KeyError for an id that there is none of."""
        self._images.change(image, status=status, message=message, finished=True)

    def image_measured(self, image: int, step: str, seconds: float, moved: int) -> None:
        """step: DUMP_STEP, RESTORE_STEP or TRANSFER_STEP, over. moved: bytes of memory of the tree. Raises ValueError
        for another."""
        self._images.measured(image, step, seconds, moved)

    def image_latest(self, path: str) -> Optional[ImageRow]:
        """The last row of the image at this path; None if this host never made nor restored one there."""
        return self._images.latest(path)

    def images_of(self, root: Identity) -> Tuple[ImageRow, ...]:
        """Of the tree with this root, newest first."""
        return self._images.of_root(root)

    def images_of_lineage(self, lineage: str) -> Tuple[ImageRow, ...]:
        """Of a process and its later lives, newest first."""
        return self._images.of_lineage(lineage)

    def images_of_run(self, run_id: str) -> Tuple[ImageRow, ...]:
        """Everything that one run did with images, in its order."""
        return self._images.of_run(run_id)

    def images_moved(self, limit: int = 20) -> Tuple[ImageRow, ...]:
        """The last ones that were given up for another host or taken from one, newest first."""
        return self._images.moved(limit)

    def unfinished_images(self, path: str, root: Optional[Identity]) -> Tuple[ImageRow, ...]:
        """At which somebody is at work, or died: of this path, or of this root. In their order."""
        return self._images.unfinished(path, root)

    def live_images(self) -> Tuple[ImageRow, ...]:
        """Those that are not finished, of any boot: somebody is at work, or died at it."""
        return self._images.live()


def open_journal(path: str, create: bool = True, busy_seconds: float = BUSY_SECONDS) -> Journal:
    """create: make it if it is missing, and write to it. Without, nothing is written, and a missing one reads as empty.

    Raises JournalError: a place that others can write, a file of somebody else, a symbolic link, a newer schema,
    damage, no space, no rights. SqliteMissing (a JournalError) when this Python lacks sqlite3.
    """
    return Journal(JournalFile(path, create, busy_seconds))


def _check_last(connection: sqlite3.Connection, subject: str, identity: Identity, after: int) -> None:
    row = connection.execute(
        "SELECT id, run_id FROM operations WHERE boot_id = ? AND pid = ? AND start_ticks = ? ORDER BY id DESC LIMIT 1",
        (identity.boot_id, identity.pid, identity.start_ticks),
    ).fetchone()
    if (row["id"] if row is not None else 0) != after:
        raise TakenOverError(
            subject,
            f"run {row['run_id'] if row is not None else '?'} has taken over PID {identity.pid} in the meantime",
            "Two runs must not drive one process.",
            "Wait for that run, and run the task again.",
        )


def _columns_of(operation: Operation) -> Dict[str, object]:
    worker = operation.worker
    return {
        "run_id": operation.run_id,
        "pid": operation.identity.pid,
        "start_ticks": operation.identity.start_ticks,
        "boot_id": operation.identity.boot_id,
        "executable": operation.executable,
        "uid": operation.uid,
        "goal": operation.goal,
        "state_before": operation.state_before,
        "step": operation.step,
        "status": operation.status,
        "worker_pid": worker.pid if worker else None,
        "worker_start_ticks": worker.start_ticks if worker else None,
        "worker_boot_id": worker.boot_id if worker else None,
        "park": int(operation.park),
        "guard": operation.guard,
        "restore_tid": operation.restore_tid,
        "signal_mask": operation.signal_mask,
        "stopped_by": operation.stopped_by,
        "refused": operation.refused,
        "backend": operation.backend,
        "message": operation.message,
        "created": operation.created,
        "updated": operation.updated,
    }


def _operations(rows: Iterable[sqlite3.Row], held: Iterable[sqlite3.Row]) -> Tuple[Operation, ...]:
    device_bytes: Dict[int, Dict[str, int]] = {}
    for row in held:
        device_bytes.setdefault(row["operation"], {})[row["gpu"]] = row["bytes"]
    return tuple(_operation(row, device_bytes.get(row["id"], {})) for row in rows)


def _operation(row: sqlite3.Row, device_bytes: Mapping[str, int]) -> Operation:
    return Operation(
        id=row["id"],
        run_id=row["run_id"],
        identity=Identity(row["pid"], row["start_ticks"], row["boot_id"]),
        executable=row["executable"],
        uid=row["uid"],
        goal=row["goal"],
        state_before=row["state_before"],
        step=row["step"],
        status=row["status"],
        worker=None
        if row["worker_pid"] is None
        else Identity(row["worker_pid"], row["worker_start_ticks"], row["worker_boot_id"]),
        park=bool(row["park"]),
        guard=row["guard"],
        restore_tid=row["restore_tid"],
        signal_mask=row["signal_mask"],
        stopped_by=row["stopped_by"],
        backend=row["backend"],
        message=row["message"],
        created=row["created"],
        updated=row["updated"],
        device_bytes=device_bytes,
        refused=row["refused"],
    )


def _read_one(connection: sqlite3.Connection, operation: int) -> Operation:
    row = connection.execute("SELECT * FROM operations WHERE id = ?", (operation,)).fetchone()
    held = connection.execute("SELECT * FROM device_bytes WHERE operation = ?", (operation,)).fetchall()
    return _operations([row], held)[0]


def _insert_step(connection: sqlite3.Connection, operation: int, step: str, now: float) -> None:
    connection.execute("INSERT INTO steps (operation, step, at) VALUES (?, ?, ?)", (operation, step, now))


def _set_device_bytes(connection: sqlite3.Connection, operation: int, held: Mapping[str, int]) -> None:
    connection.execute("DELETE FROM device_bytes WHERE operation = ?", (operation,))
    connection.executemany(
        "INSERT INTO device_bytes (operation, gpu, bytes) VALUES (?, ?, ?)",
        [(operation, gpu, int(count)) for gpu, count in held.items()],
    )


def _change(connection: sqlite3.Connection, operation: int, now: float, changed: Mapping[str, object]) -> None:
    columns: Dict[str, object] = {"updated": now}
    for name, value in changed.items():
        if name == "device_bytes" and isinstance(value, Mapping):
            _set_device_bytes(connection, operation, value)
        else:
            columns.update(_column(name, value))
    cursor = connection.execute(
        f"UPDATE operations SET {', '.join(name + ' = ?' for name in columns)} WHERE id = ?",
        (*columns.values(), operation),
    )
    if cursor.rowcount != 1:
        raise KeyError(operation)


def _column(name: str, value: object) -> Dict[str, object]:
    """The columns of one changed field. Raises TypeError or ValueError for what an operation can't have."""
    if name == "status":
        if value not in STATUSES:
            raise ValueError(f"status {value!r}")
        return {name: value}
    if name == "park" and isinstance(value, bool):
        return {name: int(value)}
    if name == "worker" and (value is None or isinstance(value, Identity)):
        return {
            "worker_pid": None if value is None else value.pid,
            "worker_start_ticks": None if value is None else value.start_ticks,
            "worker_boot_id": None if value is None else value.boot_id,
        }
    texts = (*_TEXT, "step")
    if (
        (name in texts and isinstance(value, str))
        or (name in _TEXT_OR_NONE and (value is None or isinstance(value, str)))
        or (name in _NUMBER_OR_NONE and (value is None or isinstance(value, int)))
    ):
        return {name: value}
    raise TypeError(f"{name}={value!r}")


def _forget(connection: sqlite3.Connection, before: float, boot_id: str) -> None:
    old: List[int] = [
        row["id"]
        for row in connection.execute(
            "SELECT id FROM operations WHERE updated < ?"
            " AND ((status IN ('done', 'undone') AND refused IS NULL) OR boot_id != ?)",
            (before, boot_id),
        )
    ]
    connection.executemany("DELETE FROM operations WHERE id = ?", [(number,) for number in old])
