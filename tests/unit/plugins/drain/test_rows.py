# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains in the journal: at most one open row, under a lock, and nothing at all for who only reads."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_rows import Drains
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import KEPT_SECONDS, Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError, TakenOverError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_schema import APPLICATION_ID, SCRIPTS
from tests.unit.plugins.drain.made import BOOT
from tests.unit.plugins.journal.helpers import begin, fork, identity, me, wait


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "checkpoint.db")) as one:
        yield one


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_a_row_from_its_beginning_to_its_end(journal: Journal) -> None:
    begin(journal)
    drains = Drains(journal.file, Clock(1000.0))
    with drains.lock() as change:
        row = change.open("a", 1, "claimed", BOOT, controller="c u p", mode="disk", declares=("reboot",))
    assert (row.opened, row.closed, row.after_operation, row.after_image) == (1001.0, None, 1, 0)
    found = drains.find("")
    assert (found.open, found.last, found.since) == (row, None, 1001.0)
    process = {"identity": {"pid": 1, "start_ticks": 2, "boot_id": BOOT}, "executable": "/x", "device_bytes": None}
    with drains.lock() as change:
        row = change.update(row.id, attempt=2, runs=("a", "b"), run_id="b", scheduler={"kind": "slurm"})
        row = change.reach(row.id, "suspended", "other-boot", "said", processes=(process,), suspended_boot_id="b2")
    assert (row.attempt, row.runs, row.phase, row.message) == (2, ("a", "b"), "suspended", "said")
    assert (row.processes, row.scheduler, row.declares) == ((process,), {"kind": "slurm"}, ("reboot",))
    assert row.updated == 1002.0
    with drains.lock() as change:
        row = change.reach(row.id, "released", BOOT)
    assert row.closed == 1003.0 and not row.is_open and row.message == ""
    assert [(one.phase, one.at, one.attempt, one.boot_id) for one in drains.timeline(row.id)] == [
        ("claimed", 1001.0, 1, BOOT),
        ("suspended", 1002.0, 2, "other-boot"),
        ("released", 1003.0, 2, BOOT),
    ]
    assert drains.find("a").last == drains.find("b").last == drains.newest("a") == row
    assert drains.find("c").last is drains.newest("c") is None
    assert drains.closed(5) == (row,)


def test_a_failure_is_kept_under_the_phase_that_the_host_was_in(journal: Journal) -> None:
    drains = Drains(journal.file, Clock(1000.0))
    with drains.lock() as change:
        row = change.open("a", 1, "claimed", BOOT)
        change.reach(row.id, "suspending", BOOT)
    with drains.lock() as change:
        assert change.fail(row.id, "no room").message == "no room"
    with drains.lock() as change:
        change.fail(row.id, "Look at it: no room")
    with drains.lock() as change:
        change.reach(row.id, "undoing", BOOT, "no room")
    with drains.lock() as change:
        change.fail(row.id, "no room")
        change.reach(row.id, "undone", BOOT)
    assert [(one.phase, one.attempt, one.at, one.message) for one in drains.failures(row.id)] == [
        ("suspending", 1, 1002.0, "Look at it: no room"),
        ("undoing", 1, 1005.0, "no room"),
    ]
    assert drains.find("").last == drains.newest("a") and drains.find("a").since == 0.0
    assert drains.failures(row.id + 1) == ()


def test_a_second_open_row_is_refused_by_the_database_itself(journal: Journal) -> None:
    drains = Drains(journal.file)
    with drains.lock() as change:
        change.open("a", 1, "claimed", BOOT)
        with pytest.raises(ValueError, match="a drain is open"):
            change.open("b", 1, "claimed", BOOT)
    copy = "INSERT INTO drains SELECT NULL, * FROM (SELECT {} FROM drains)"
    columns = [row["name"] for row in journal.file.read("PRAGMA table_info(drains)")][1:]
    with pytest.raises(JournalError, match="UNIQUE"), journal.file.transaction() as connection:
        connection.execute(copy.format(", ".join(columns)))


def test_only_one_of_many_gets_the_host(journal: Journal, tmp_path: Path) -> None:
    def claim(name: str) -> None:
        with open_journal(journal.path) as own, Drains(own.file).lock() as change:
            if change.find(name).open is None:
                change.open(name, 1, "claimed", BOOT)
                (tmp_path / name).touch()

    children = [fork(lambda name=f"run-{number}": claim(name)) for number in range(12)]  # type: ignore[misc]
    for child in children:
        assert wait(child) == 0
    assert len(list(tmp_path.glob("run-*"))) == 1


def test_what_raised_was_not_done(journal: Journal) -> None:
    drains = Drains(journal.file)
    with pytest.raises(ValueError, match="phase"), drains.lock() as change:
        row = change.open("a", 1, "claimed", BOOT)
        change.reach(row.id, "suspendet", BOOT)
    assert drains.find("").open is None
    with drains.lock() as change:
        row = change.open("a", 1, "claimed", BOOT)
        for wrong in ({"phase": "released"}, {"opened": 1.0}, {"attempt": "2"}):
            with pytest.raises(TypeError):
                change.update(row.id, **wrong)
        with pytest.raises(KeyError):
            change.update(row.id + 1, message="x")


@pytest.mark.parametrize("phase", ["undoing", "restoring", "restored"])
def test_who_is_left_from_an_earlier_attempt_suspends_nothing_any_more(journal: Journal, phase: str) -> None:
    with Drains(journal.file).lock() as change:
        row = change.open("run", 1, "suspending", BOOT)
    begin(journal, pid=1)
    with Drains(journal.file).lock() as change:
        change.reach(row.id, phase, BOOT)
    with pytest.raises(TakenOverError, match=f"run run is at {phase} on this host"):
        begin(journal, pid=2)
    with pytest.raises(TakenOverError, match="would be left behind"):
        journal.begin_image(lineage="a", path="/i", run_id="run", root=me(), leave="killed", worker=me())
    assert len(journal.of_run("run")) == 1
    begin(journal, pid=2, run_id="another")
    back = journal.begin_image(lineage="a", path="/i", run_id="run", root=identity(7), leave="killed", worker=me())
    assert back.status == "active", "what is brought back has ended before"
    with Drains(journal.file).lock() as change:
        change.reach(row.id, "undone" if phase == "undoing" else "released", BOOT)
    begin(journal, pid=2)


def test_old_ones_are_forgotten_but_for_the_last(journal: Journal) -> None:
    clock = Clock(1000.0)
    drains = Drains(journal.file, clock)
    for name in ("a", "b"):
        with drains.lock() as change:
            change.reach(change.open(name, 1, "claimed", BOOT).id, "undoing", BOOT)
            change.fail(1, "why")
        with drains.lock() as change:
            opened = change.find(name).open
            assert opened is not None
            change.reach(opened.id, "undone", BOOT)
    clock.now += KEPT_SECONDS + 10
    with drains.lock() as change:
        change.open("c", 1, "claimed", BOOT)
    assert [row.run_id for row in drains.closed(9)] == ["b"]
    assert not drains.timeline(1) and not drains.failures(1)


def test_a_journal_that_is_not_there_has_no_drain_and_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "absent.db"
    with open_journal(str(path), create=False) as reader:
        drains = Drains(reader.file)
        assert drains.find("a").open is drains.find("a").last is drains.newest("") is None
        assert not drains.closed(5) and not drains.timeline(1) and not drains.failures(1)
    assert not path.exists()


def test_a_journal_of_an_older_release_has_no_drain_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.db"
    connection = sqlite3.connect(path)
    for script in SCRIPTS[:2]:
        for statement in script:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()
    path.chmod(0o600)
    before = path.read_bytes()
    with open_journal(str(path), create=False) as reader:
        drains = Drains(reader.file)
        assert drains.find("a").open is drains.newest("a") is None
        assert not drains.closed(5) and not drains.timeline(1) and not drains.failures(1)
    assert path.read_bytes() == before
    with open_journal(str(path)) as journal, Drains(journal.file, time.time).lock() as change:
        assert change.open("a", 1, "claimed", BOOT).id == 1
