# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal as a file: where it may lie, who may write it, how it is opened, and what it says when it can't be.

What it holds decides which process is continued and which setting of the host is written, so nobody but its owner may
be able to change it: neither the file nor a directory on the way to it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
import traceback
import weakref
from contextlib import closing, contextmanager
from typing import Callable, Iterator, List, Optional, Set, Tuple, TypeVar

try:
    import sqlite3
except ImportError:
    SQLITE_TRACE = traceback.format_exc()
else:
    SQLITE_TRACE = ""

from ._journal_check import problem
from ._journal_errors import JournalError, SqliteMissing
from ._journal_schema import APPLICATION_ID, SCRIPTS

#: How long one process waits for the others, in seconds. A writer is done in milliseconds, or reads the GPUs first.
BUSY_SECONDS = 60.0
#: Free bytes of the file system without which nothing is begun, so that a step begun can also be ended.
SPACE = 4 << 20

_MAGIC = b"SQLite format 3\0"
_LOSS = "Without it a process that is suspended could not be brought back after a crash."
Result = TypeVar("Result")


class JournalFile:
    """One connection to the database at `path`. Not for several threads at once; several processes have one each.

    It survives a fork: it is closed before, and each side opens its own when it needs it. SQLite's locks belong to a
    process, and a connection that is carried over believes that it holds them.
    """

    def __init__(self, path: str, create: bool = True, busy_seconds: float = BUSY_SECONDS) -> None:
        """create: make it when it is missing, and write to it. Otherwise nothing is written, and a journal that is
        missing reads as an empty one. Raises JournalError."""
        if SQLITE_TRACE:
            raise SqliteMissing(SQLITE_TRACE)
        self.path = os.path.abspath(path)
        self.writable = create
        self._busy_seconds = busy_seconds
        self._connection: Optional[sqlite3.Connection] = None
        self._pid = os.getpid()
        self._writing = False
        with self._os_words(), self._sqlite_words():
            if create:
                _make(self.path)
                self._check_space()
            self._check_content()
            self._connection = self._connect(check=True)
            if create:
                os.chmod(self.path, 0o600)
        _open_files.add(self)

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def subject(self) -> str:
        return f"journal {self.path}"

    def close(self) -> None:
        """Also done when the process ends. The next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            connection.close()

    def read(self, statement: str, values: Tuple[object, ...] = ()) -> Tuple[sqlite3.Row, ...]:
        """All rows. Raises JournalError."""
        connection = self._connected()
        with self._sqlite_words():
            return tuple(self._retried(lambda: connection.execute(statement, values).fetchall()))

    def has_table(self, name: str) -> bool:
        """A journal of an older release, opened for reading, lacks those that came later. Raises JournalError."""
        return bool(self.read("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)))

    @contextmanager
    def transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """The only writer of all processes, from the first line on; nothing when it raises. durable: it outlives the
        host when it ends; without, whoever dies but the host.

        Raises JournalError. Don't fork inside and use the journal in the child.
        """
        if not self.writable:
            raise RuntimeError(f"{self.subject} was opened for reading")
        if self._writing:
            raise RuntimeError(f"{self.subject} is in a transaction already")
        connection = self._connected()
        with self._sqlite_words():
            if not durable:
                connection.execute("PRAGMA synchronous = NORMAL")
            try:
                self._retried(lambda: connection.execute("BEGIN IMMEDIATE"))
                self._writing = True
                yield connection
                self._retried(lambda: connection.execute("COMMIT"))
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._writing = False
                if not durable:
                    connection.execute("PRAGMA synchronous = FULL")

    def before_fork(self) -> None:
        """Called by itself, in the parent."""
        if not self._writing:
            self.close()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            with self._os_words(), self._sqlite_words():
                self._connection = self._connect(check=False)
            self._pid = os.getpid()
        if self._pid != os.getpid():
            raise RuntimeError(f"{self.subject} was carried over a fork in the middle of a transaction")
        return self._connection

    def _connect(self, check: bool) -> sqlite3.Connection:
        if not self.writable and not os.path.lexists(self.path):
            return _empty()
        _check_place(self.path)
        return self._retried(lambda: self._opened(check))

    def _opened(self, check: bool) -> sqlite3.Connection:
        if self.writable and not check and _size(self.path):
            return self._prepared(self._sqlite("rw"), check)
        if self.writable:
            with _directory_lock(os.path.dirname(self.path), self._busy_seconds, self.subject):
                return self._prepared(self._sqlite("rw"), check)
        try:
            return self._prepared(self._sqlite("ro"), check)
        except sqlite3.OperationalError:
            # On a file system that can't be written, there is no place for the index of the write-ahead log.
            if _size(self.path + "-wal"):
                raise
            return self._prepared(self._sqlite("ro&immutable=1"), check)

    def _sqlite(self, mode: str) -> sqlite3.Connection:
        quoted = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        connection = sqlite3.connect(f"file:{quoted}?mode={mode}", uri=True, timeout=0, isolation_level=None)
        connection.row_factory = sqlite3.Row
        return connection

    def _prepared(self, connection: sqlite3.Connection, check: bool) -> sqlite3.Connection:
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            version = int(_pragma(connection, "user_version"))
            application = int(_pragma(connection, "application_id"))
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if application != APPLICATION_ID and (application or version or tables):
                raise self._foreign(f"it is a database of another program (application id {application})")
            if version > len(SCRIPTS):
                raise JournalError(
                    self.subject,
                    f"its schema is {version}, this release knows {len(SCRIPTS)}",
                    "A newer release of gpufleet.checkpoint wrote it, and this one would lose what it does not know.",
                    "Use that release or a newer one.",
                )
            if check and application:
                found = _pragma(connection, "quick_check(1)")
                if found != "ok":
                    raise self._corrupt(found)
                wrong = _problem(connection)
                if wrong:
                    raise self._corrupt(wrong)
            if self.writable:
                mode = _pragma(connection, "journal_mode = WAL")
                if mode != "wal":
                    raise JournalError(
                        self.subject,
                        f"SQLite can't keep a write-ahead log there (journal mode {mode})",
                        "Network file systems and some others don't allow it.",
                        "Name a journal on a local file system.",
                    )
                connection.execute("PRAGMA synchronous = FULL")
            if not self.writable and version == 0:
                # Made, but not filled yet: a program that was killed in between.
                raise _Unfinished()
            if self.writable and version < len(SCRIPTS):
                _migrate(connection, version)
            return connection
        except _Unfinished:
            connection.close()
            return _empty()
        except BaseException:
            connection.close()
            raise

    def _retried(self, action: Callable[[], Result]) -> Result:
        """Until it is not busy any more. SQLite's own timeout sleeps for up to a tenth of a second, and gives up
        at once where two connections recover or end at the same time; workers write often, and each only for a moment.
        """
        deadline = time.monotonic() + self._busy_seconds
        pause = 0.0005
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    def _check_content(self) -> None:
        """SQLite takes a file of a few bytes for an empty database, and would write over it."""
        if not _size(self.path):
            return
        _check_place(self.path)
        # Whoever closes a file gives up all locks that its process has on it, those of another connection, too.
        if any(file.is_open and file.path == self.path for file in _open_files):
            return
        with open(self.path, "rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise self._corrupt("file is not a database")

    def _check_space(self) -> None:
        free = self._free()
        if free < SPACE:
            raise self._full(f"the file system has {free >> 10} KiB free, {SPACE >> 10} KiB are needed")

    def _free(self) -> int:
        seen = os.statvfs(os.path.dirname(self.path))
        return seen.f_bavail * seen.f_frsize

    def _full(self, evidence: str) -> JournalError:
        return JournalError(
            self.subject,
            evidence,
            "No step is made that was not written down first.",
            f"Free space on the file system of {os.path.dirname(self.path)}.",
        )

    def _foreign(self, evidence: str) -> JournalError:
        return JournalError(self.subject, evidence, "It is not overwritten.", "Name another file as journal.")

    def _corrupt(self, evidence: str) -> JournalError:
        return JournalError(
            self.subject,
            f"it is damaged ({evidence})",
            _LOSS,
            f"Restore it from a backup. Without one, move {self.path} and the files beside it whose names begin like "
            "its own to another place, and look for suspended processes with cuda_checkpoint_info; a new one is made.",
        )

    @contextmanager
    def _os_words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JournalError(
                self.subject, f"{error.strerror} ({error.filename or self.path})", _LOSS, _remedy(error, self.path)
            ) from error

    @contextmanager
    def _sqlite_words(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> JournalError:
        text = str(error)
        if "disk is full" in text:
            return self._full(text)
        if "readonly" in text or "unable to open" in text:
            return JournalError(
                self.subject,
                f"SQLite says: {text}",
                "It can't be written, and no step is made that was not written down first.",
                f"Look for a read-only file system, an immutable file or no rights in {os.path.dirname(self.path)}.",
            )
        if "locked" in text or "busy" in text:
            return JournalError(
                self.subject,
                f"another process kept it for {self._busy_seconds:g} s",
                "Only one process at a time may write.",
                f"Find it with: fuser {self.path}",
            )
        if "disk I/O error" in text:
            free = self._free()
            if free < SPACE:
                # To open it again takes room for the index of the write-ahead log.
                return self._full(f"SQLite says: {text}, and the file system has {free >> 10} KiB free")
            return JournalError(
                self.subject,
                f"SQLite says: {text}",
                _LOSS,
                "Look for errors of the disk in the log of the kernel, and for a full file system.",
            )
        if "not a database" in text or "malformed" in text or "file is encrypted" in text:
            return self._corrupt(text)
        return JournalError(
            self.subject, f"SQLite says: {text}", _LOSS, "This is an error of the program: please report it."
        )


class _Unfinished(Exception):
    pass


_open_files: weakref.WeakSet[JournalFile] = weakref.WeakSet()


def _close_before_fork() -> None:
    for file in list(_open_files):
        file.before_fork()


os.register_at_fork(before=_close_before_fork)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    text = str(error)
    return "locked" in text or "busy" in text


def _problem(connection: sqlite3.Connection) -> str:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        return problem(connection, model)


def _pragma(connection: sqlite3.Connection, words: str) -> str:
    row = connection.execute(f"PRAGMA {words}").fetchone()
    return str(row[0])


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _empty() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    _migrate(connection, 0)
    return connection


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for script in SCRIPTS[version:]:
        for statement in script:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(SCRIPTS)}")
    connection.execute("COMMIT")


def _make(path: str) -> None:
    """The file, empty, and the directories that are missing: for their owner only, and there after a power cut."""
    directory = os.path.dirname(path)
    missing: List[str] = []
    while not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for name in reversed(missing):
        try:
            os.mkdir(name, 0o700)
        except FileExistsError:
            pass
        _sync(os.path.dirname(name))
    _check_place(path)
    if not os.path.lexists(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.close(handle)
        _sync(os.path.dirname(path))


def _sync(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _directory_lock(directory: str, seconds: float, subject: str) -> Iterator[None]:
    """One process at a time turns an empty file into a journal."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise JournalError(
                        subject,
                        f"another process has been opening it for {seconds:g} s",
                        "Only one process at a time may.",
                        f"Find it with: fuser {directory}",
                    ) from None
            time.sleep(0.001)
        yield
    finally:
        os.close(handle)


def _check_place(path: str) -> None:
    """Raises JournalError unless nobody but root and this user can change the file, or put another in its place."""
    owners = {0, os.geteuid()}
    for directory in _directories(path):
        _check_directory(path, directory, owners)
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(seen.st_mode):
        raise _refusal(path, "it is a symbolic link", f"Name the file that it leads to, {os.path.realpath(path)}.")
    if not stat.S_ISREG(seen.st_mode):
        raise _refusal(path, "it is not a regular file", "Name a file.")
    if seen.st_uid != os.geteuid():
        raise _refusal(
            path,
            f"it belongs to user id {seen.st_uid}, this is user id {os.geteuid()}",
            "Run the task as its owner (become_user), or name another file as journal.",
        )
    if seen.st_nlink > 1:
        raise _refusal(path, f"it has {seen.st_nlink} hard links", "Remove the others.")
    if seen.st_mode & 0o022:
        raise _refusal(
            path,
            f"others can write it (mode {stat.S_IMODE(seen.st_mode):04o})",
            f"Find out who did, then: chmod 600 {path}",
        )


def _directories(path: str) -> Tuple[str, ...]:
    """Every directory on the way to it, as it is written and as it is."""
    found: List[str] = []
    for name in (os.path.dirname(path), os.path.realpath(os.path.dirname(path))):
        while name not in found:
            found.append(name)
            name = os.path.dirname(name)
    return tuple(found)


def _check_directory(path: str, directory: str, owners: Set[int]) -> None:
    try:
        seen = os.lstat(directory)
    except FileNotFoundError:
        return
    if seen.st_uid not in owners:
        raise _refusal(
            path,
            f"{directory} belongs to user id {seen.st_uid}",
            "Name a journal in a directory that belongs to root or to the user who runs the task.",
        )
    if stat.S_ISLNK(seen.st_mode):
        return
    if not stat.S_ISDIR(seen.st_mode):
        raise _refusal(path, f"{directory} is not a directory", "Name a file in a directory.")
    # In a directory with the sticky bit, others can't replace what is not theirs, but the journal itself needs its own.
    sticky_is_enough = directory not in (os.path.dirname(path), os.path.realpath(os.path.dirname(path)))
    if seen.st_mode & 0o022 and not (seen.st_mode & stat.S_ISVTX and sticky_is_enough):
        raise _refusal(
            path,
            f"others can write {directory} (mode {stat.S_IMODE(seen.st_mode):04o})",
            "Name a journal in a directory that only its owner can write.",
        )


def _refusal(path: str, evidence: str, remedy: str) -> JournalError:
    return JournalError(
        f"journal {path}",
        evidence,
        "What it holds decides which processes are continued, so nobody else may be able to change it.",
        remedy,
    )


def _remedy(error: OSError, path: str) -> str:
    if isinstance(error, PermissionError):
        return "Run the task as the owner of the journal (become), or name another file as journal."
    return (
        f"Make {os.path.dirname(path)} a directory of a local file system that can be written, or name another journal."
    )
