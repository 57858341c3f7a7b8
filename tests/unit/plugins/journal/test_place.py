# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a journal may lie, and what is said of one that can't be used. Nothing that is refused is changed."""

import builtins
import importlib.util
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _journal_file
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_rows import Drains
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._huge_pages import HugePages
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError, SqliteMissing
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_schema import APPLICATION_ID, SCRIPTS
from tests.unit.plugins.journal.helpers import BOOT, Words, begin, identity, me


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(path: Path | str, create: bool = True) -> JournalError:
    with pytest.raises(JournalError) as caught:
        open_journal(str(path), create)
    error = caught.value
    assert error.subject == f"journal {path}"
    assert str(error) == f"{error.subject}: {error.evidence}. {error.reason} {error.remedy}"
    assert error.reason.endswith(".") and error.remedy and not error.evidence.endswith(".")
    return error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.db"


@pytest.fixture
def used(path: Path) -> Path:
    with open_journal(str(path)) as journal:
        begin(journal)
    return path


def test_what_is_missing_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "var/lib/checkpoint.db"
    before = os.umask(0)
    try:
        with open_journal(str(path)) as journal:
            begin(journal)
            files = {file.name: mode(file) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert set(files) == {"checkpoint.db", "checkpoint.db-shm", "checkpoint.db-wal"}
    assert set(files.values()) == {0o600}
    assert mode(path.parent) == mode(tmp_path / "var") == 0o700


def test_reading_makes_nothing_and_finds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "var/lib/checkpoint.db"
    with open_journal(str(path), create=False) as journal:
        assert journal.latest(identity(12)) is None
        assert journal.live(BOOT) == () == journal.history("lock")
        assert journal.reserved() == {}
        journal.drop_reservations()
        with pytest.raises(RuntimeError, match="opened for reading"):
            begin(journal)
    assert list(tmp_path.iterdir()) == []


def test_reading_a_journal_that_was_made_and_not_filled(path: Path) -> None:
    path.touch(0o600)
    with open_journal(str(path), create=False) as journal:
        assert journal.live(BOOT) == ()
    assert path.stat().st_size == 0
    with open_journal(str(path)) as journal:
        assert begin(journal).id == 1


def test_a_reader_writes_nothing(used: Path) -> None:
    before = used.read_bytes()
    used.chmod(0o640)
    with open_journal(str(used), create=False) as journal:
        assert journal.latest(identity(12)) is not None
        with pytest.raises(RuntimeError, match="opened for reading"):
            begin(journal)
    assert used.read_bytes() == before and mode(used) == 0o640


def test_a_name_with_characters_that_mean_something_in_a_uri(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=ro #1 %41 é.db"
    with open_journal(str(path)) as journal:
        begin(journal)
    assert path.stat().st_size > 0
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_relative_path_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_journal("checkpoint.db") as journal:
        monkeypatch.chdir("/")
        journal.close()
        begin(journal)
    assert (tmp_path / "checkpoint.db").is_file()


@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_something_else_stays_as_it_is(tmp_path: Path, create: bool) -> None:
    path = tmp_path / "hostname"
    path.write_text("h1\n")
    path.chmod(0o644)
    refused(path, create)
    assert path.read_text() == "h1\n" and mode(path) == 0o644


def test_readable_for_others_is_mended(used: Path) -> None:
    used.chmod(0o644)
    open_journal(str(used)).close()
    assert mode(used) == 0o600


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("bits", [0o620, 0o602])
def test_writable_for_others(used: Path, bits: int, create: bool) -> None:
    used.chmod(bits)
    error = refused(used, create)
    assert error.evidence == f"others can write it (mode {bits:04o})"
    assert error.reason.startswith("What it holds decides which processes are continued")
    assert error.remedy == f"Find out who did, then: chmod 600 {used}"
    assert mode(used) == bits


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("bits", [0o770, 0o1777])
def test_in_a_directory_that_others_can_write(tmp_path: Path, bits: int, create: bool) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    open_journal(str(directory / "checkpoint.db")).close()
    directory.chmod(bits)
    error = refused(directory / "checkpoint.db", create)
    assert error.evidence == f"others can write {directory} (mode {bits:04o})"


def test_below_a_directory_that_others_can_write(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True, mode=0o700)
    shared.chmod(0o777)
    assert refused(shared / "mine/checkpoint.db").evidence == f"others can write {shared} (mode 0777)"
    # Nobody else can take away what lies in a directory with the sticky bit.
    shared.chmod(0o1777)
    open_journal(str(shared / "mine/checkpoint.db")).close()


def test_a_symbolic_link(used: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(used)
    error = refused(link)
    assert error.evidence == "it is a symbolic link" and str(used) in error.remedy
    dangling = tmp_path / "dangling.db"
    dangling.symlink_to(tmp_path / "nowhere")
    assert refused(dangling).evidence == refused(dangling, create=False).evidence == "it is a symbolic link"
    assert not (tmp_path / "nowhere").exists()


def test_through_a_directory_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with open_journal(str(tmp_path / "link/checkpoint.db")) as journal:
        begin(journal)
    assert (tmp_path / "real/checkpoint.db").is_file()
    (tmp_path / "real").chmod(0o777)
    assert "others can write" in refused(tmp_path / "link/checkpoint.db").evidence


@pytest.mark.parametrize("create", [True, False])
def test_what_is_no_file(tmp_path: Path, create: bool) -> None:
    (tmp_path / "directory.db").mkdir()
    os.mkfifo(tmp_path / "pipe.db")
    assert refused(tmp_path / "directory.db", create).evidence == "it is not a regular file"
    assert refused(tmp_path / "pipe.db", create).evidence == "it is not a regular file"


def test_below_what_is_no_directory(used: Path) -> None:
    assert refused(used / "checkpoint.db").evidence == f"{used} is not a directory"


def test_a_file_with_a_second_name(used: Path, tmp_path: Path) -> None:
    os.link(used, tmp_path / "second.db")
    assert refused(used).evidence == "it has 2 hard links"


@pytest.mark.parametrize("create", [True, False])
def test_of_somebody_else(used: Path, create: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = os.getuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    error = refused(used, create)
    assert f"belongs to user id {os.getuid()}" in error.evidence
    assert "journal" in error.remedy


def database(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("create", [True, False])
def test_a_newer_schema(used: Path, create: bool) -> None:
    database(used, f"PRAGMA user_version = {len(SCRIPTS) + 1}")
    before = used.read_bytes()
    error = refused(used, create)
    assert error.evidence == f"its schema is {len(SCRIPTS) + 1}, this release knows {len(SCRIPTS)}"
    assert error.remedy == "Use that release or a newer one."
    assert used.read_bytes() == before


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("statement", ["CREATE TABLE t (x)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"])
def test_a_database_of_another_program(path: Path, statement: str, create: bool) -> None:
    before = database(path, statement).read_bytes()
    error = refused(path, create)
    assert "it is a database of another program" in error.evidence
    assert (error.reason, error.remedy) == ("It is not overwritten.", "Name another file as journal.")
    assert path.read_bytes() == before


@pytest.mark.parametrize("create", [True, False])
def test_damage(used: Path, create: bool) -> None:
    size = used.stat().st_size
    with used.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    before = used.read_bytes()
    error = refused(used, create)
    assert error.evidence.startswith("it is damaged (")
    assert "Without it a process that is suspended could not be brought back" in error.reason
    assert f"move {used} " in error.remedy and "cuda_checkpoint_info" in error.remedy
    assert used.read_bytes() == before


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("content", [b"no database at all, but long enough to have a header" * 20, b"x"])
def test_no_database(path: Path, content: bytes, create: bool) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    assert refused(path, create).evidence == "it is damaged (file is not a database)"
    assert path.read_bytes() == content


def test_a_truncated_one(used: Path) -> None:
    os.truncate(used, 8192)
    assert refused(used).evidence.startswith("it is damaged (")


def test_no_alarm_about_a_journal_with_something_in_every_table(used: Path) -> None:
    with open_journal(str(used)) as journal:
        assert journal.reserve([(me(), {"GPU-a": 1})], lambda: {"GPU-a": 1}) == [None]
        assert HugePages(journal, Words(used.with_name("enabled"))).acquire(me(), "auto")
        row = journal.begin_image(lineage="a", path="/i", run_id="run", root=me(), leave="killed", worker=None)
        journal.image_measured(row.id, "criu_dump", 1.0, 1)
        with Drains(journal.file).lock() as change:
            change.fail(change.open("run", 1, "claimed", BOOT).id, "why")
        tables = [row["name"] for row in journal.file.read("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert len(tables) > 5
        assert not [name for name in tables if not journal.file.read(f"SELECT 1 FROM {name}")]
        with open_journal(str(used)) as other, open_journal(str(used), create=False) as reader:
            assert other.reserved() == reader.reserved() == {"GPU-a": 1}


def test_damage_that_turns_up_later_is_told_by_the_call(used: Path) -> None:
    with open_journal(str(used)) as journal:
        journal.close()
        with used.open("r+b") as file:
            file.write(b"gone" * 1024)
        with pytest.raises(JournalError, match="it is damaged"):
            journal.live(BOOT)


def test_no_space_is_told_before_anything_begins(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = os.statvfs(tmp_path)
    values: list[Any] = list(seen)
    values[4] = (_journal_file.SPACE - 1) // seen.f_frsize
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(values))
    error = refused(path)
    assert "KiB free, 4096 KiB are needed" in error.evidence
    assert error.remedy == f"Free space on the file system of {tmp_path}."
    with open_journal(str(path), create=False) as journal:
        assert journal.live(BOOT) == ()


@pytest.mark.parametrize("blocks", [1, 1 << 20])
def test_an_io_error_on_a_full_disk_is_one_of_space(path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """A connection that is opened again there can't make the index of its log; SQLite calls that an I/O error."""
    with open_journal(str(path)) as journal:
        values: list[Any] = list(os.statvfs(path.parent))
        values[4] = blocks
        monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(values))
        with pytest.raises(JournalError) as caught, journal.file._sqlite_words():
            raise sqlite3.OperationalError("disk I/O error")
        assert caught.value.remedy.startswith("Free space on" if blocks == 1 else "Look for errors of the disk")
        assert "SQLite says: disk I/O error" in caught.value.evidence


def test_no_space_in_the_middle_leaves_what_was_written(path: Path) -> None:
    with open_journal(str(path)) as journal:
        operation = begin(journal)
        connection = journal.file._connected()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError) as caught:
            journal.step(operation.id, "checkpoint", message="x" * 100_000)
        assert caught.value.evidence == "database or disk is full"
        assert caught.value.reason == "No step is made that was not written down first."
        assert journal.get(operation.id) == operation
        connection.execute(f"PRAGMA max_page_count = {pages + 100}")
        journal.step(operation.id, "checkpoint", message="x" * 100_000)


def test_another_writer_that_never_ends(used: Path) -> None:
    blocker = sqlite3.connect(used, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with open_journal(str(used), busy_seconds=0.2) as journal:
        assert journal.latest(identity(12)) is not None
        with pytest.raises(JournalError) as caught:
            begin(journal)
        assert caught.value.evidence == "another process kept it for 0.2 s"
        assert caught.value.remedy == f"Find it with: fuser {used}"
        blocker.execute("ROLLBACK")
        begin(journal)
    blocker.close()


def test_missing_rights(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", deny)
    error = refused(path)
    assert error.evidence == f"Permission denied ({path})"
    assert "become" in error.remedy


def test_an_interrupted_migration_is_made_whole(path: Path) -> None:
    """Killed before the first commit: the file is there, and empty or without tables."""
    database(path, "PRAGMA journal_mode = WAL")
    assert path.stat().st_size > 0
    with open_journal(str(path)) as journal:
        begin(journal)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID


def test_a_python_without_sqlite3_loads_it_and_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_sqlite3(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "sqlite3":
            raise ImportError("No module named '_sqlite3'")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_sqlite3)
    spec = importlib.util.find_spec(_journal_file.__name__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(SqliteMissing) as caught:
        module.JournalFile(str(path))
    assert caught.value.library == "sqlite3"
    assert "No module named '_sqlite3'" in caught.value.trace
    assert "its module sqlite3 can't be imported" in str(caught.value)
