# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images in the journal, and journals of releases that made none."""

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import IMAGE_STATUSES, ImageRow
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_schema import APPLICATION_ID, SCRIPTS
from tests.unit.plugins.journal.helpers import begin, fork, identity, kill, wait

OTHER_BOOT = "0d4cf4e5-6cf1-4f6c-8e6c-3d4b5a6f7c80"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "checkpoint.db")) as opened:
        yield Journal(opened.file, clock)


def begin_image(journal: Journal, pid: int = 12, path: str = "/images/a", leave: str = "killed") -> ImageRow:
    return journal.begin_image(
        lineage=f"lineage-{pid}", path=path, run_id="run", root=identity(pid), leave=leave, worker=identity(99)
    )


def test_an_image_comes_back_as_it_was_begun(journal: Journal) -> None:
    row = begin_image(journal)
    assert (row.status, row.step, row.leave, row.finished) == ("active", "", "killed", False)
    assert (row.lineage, row.path, row.run_id) == ("lineage-12", "/images/a", "run")
    assert (row.root, row.worker, row.stopped) == (identity(12), identity(99), ())
    assert journal.image_latest("/images/a") == row
    with open_journal(journal.path, create=False) as reader:
        assert reader.image_latest("/images/a") == row
    nobody = journal.begin_image(
        lineage="b", path="/b", run_id="r", root=identity(5), leave="running", worker=None, status="restoring"
    )
    assert (nobody.worker, nobody.status) == (None, "restoring")


def test_a_step_changes_what_it_is_told_and_nothing_else(journal: Journal) -> None:
    row = begin_image(journal)
    journal.image_step(row.id, "stop", stopped=[identity(12), identity(13, 77, OTHER_BOOT)])
    seen = journal.image_latest(row.path)
    assert seen is not None and seen.updated > row.updated
    stopped = (identity(12), identity(13, 77, OTHER_BOOT))
    assert seen == replace(row, step="stop", stopped=stopped, updated=seen.updated)
    journal.image_step(row.id, "seal", status="dumped", message="words")
    again = journal.image_latest(row.path)
    assert again is not None
    assert again == replace(seen, step="seal", status="dumped", message="words", updated=again.updated)


def test_a_step_is_readable_for_others_when_the_call_returns(journal: Journal) -> None:
    row = begin_image(journal)
    with open_journal(journal.path, create=False) as reader:
        for step in ("stop", "suspend", "dump"):
            journal.image_step(row.id, step)
            seen = reader.image_latest(row.path)
            assert seen is not None and seen.step == step


def test_the_last_row_of_a_path_and_all_of_a_root_and_of_a_lineage(journal: Journal) -> None:
    first, second, other = begin_image(journal), begin_image(journal), begin_image(journal, 13, "/images/b")
    assert journal.image_latest("/images/a") == second
    assert journal.image_latest("/images") is None
    assert journal.images_of(identity(12)) == (second, first)
    assert journal.images_of(identity(12, boot_id=OTHER_BOOT)) == ()
    assert journal.images_of(identity(12, 4712)) == ()
    restored = journal.begin_image(
        lineage=first.lineage, path=first.path, run_id="r", root=identity(14), leave="killed", worker=None
    )
    assert journal.images_of_lineage(first.lineage) == (restored, second, first)
    assert journal.images_of(identity(13)) == (other,)


@pytest.mark.parametrize("status", sorted(IMAGE_STATUSES))
def test_what_is_finished_does_not_live_whatever_became_of_it(journal: Journal, status: str) -> None:
    row = begin_image(journal)
    journal.image_step(row.id, "end", status=status)
    assert bool(journal.live_images()) == (status in ("active", "dumped", "sealed", "restoring"))
    journal.finish_image(row.id, status, "words")
    seen = journal.image_latest(row.path)
    assert seen is not None and (seen.status, seen.message, seen.finished) == (status, "words", True)
    assert journal.live_images() == ()
    journal.image_step(row.id, "restore", status="restoring")
    assert [one.id for one in journal.live_images()] == [row.id], "somebody is at work on it again"


def test_images_of_a_boot_that_is_over_still_live(journal: Journal) -> None:
    row = journal.begin_image(
        lineage="a", path="/a", run_id="r", root=identity(1, boot_id=OTHER_BOOT), leave="killed", worker=None
    )
    assert journal.live_images() == (row,)


def test_what_an_image_can_not_have_is_refused_and_nothing_changes(journal: Journal) -> None:
    row = begin_image(journal)
    with pytest.raises(ValueError, match="status 'done'"):
        journal.image_step(row.id, "dump", status="done")
    with pytest.raises(ValueError, match="status ''"):
        journal.finish_image(row.id, "")
    with pytest.raises(ValueError, match="leave 'alive'"):
        begin_image(journal, leave="alive")
    with pytest.raises(KeyError):
        journal.image_step(row.id + 1, "dump")
    assert journal.images_of(identity(12)) == (row,)


def test_what_is_over_is_forgotten_after_its_time(journal: Journal, clock: Clock) -> None:
    over, open_one = begin_image(journal, 12), begin_image(journal, 13)
    journal.finish_image(over.id, "gone")
    clock.now += _journal.KEPT_SECONDS - 10
    begin_image(journal, 14)
    assert journal.images_of(identity(12))
    clock.now += 20
    begin_image(journal, 15)
    assert not journal.images_of(identity(12))
    assert journal.images_of(identity(13)) == (open_one,), "its worker may have left something behind"


def test_a_killed_worker_leaves_its_row(journal: Journal) -> None:
    def work() -> None:
        row = begin_image(journal)
        for number in range(10**6):
            journal.image_step(row.id, f"step-{number}", stopped=[identity(number + 1)])

    pid = fork(work)
    with open_journal(journal.path, create=False) as reader:
        while not any(row.stopped for row in reader.live_images()):
            assert reader.path
    kill(pid)
    (row,) = journal.live_images()
    assert row.step == f"step-{row.stopped[0].pid - 1}", "one step is one transaction"


def test_what_was_measured_is_there_for_estimates_and_goes_with_its_image(journal: Journal, clock: Clock) -> None:
    first, second = begin_image(journal), begin_image(journal, 13, "/images/b")
    journal.image_measured(first.id, "criu_dump", 2.0, 4 << 30)
    journal.image_measured(second.id, "criu_dump", 3.0, 5 << 30)
    journal.image_measured(first.id, "criu_restore", 1.0, 4 << 30)
    newest, oldest = journal.history("criu_dump")
    assert (newest.operation, newest.seconds, newest.bytes) == (second.id, 3.0, 5 << 30)
    assert (oldest.operation, oldest.seconds, oldest.bytes, oldest.step) == (first.id, 2.0, 4 << 30, "criu_dump")
    assert [one.seconds for one in journal.history("criu_restore")] == [1.0]
    assert len(journal.history("criu_dump", limit=1)) == 1
    assert journal.history("restore") == (), "a restore of CUDA is another step"
    with pytest.raises(ValueError, match="dump"):
        journal.image_measured(first.id, "dump", 1.0, 1)
    journal.finish_image(first.id, "gone")
    clock.now += _journal.KEPT_SECONDS + 100
    begin_image(journal, 14, "/images/c")
    assert [one.operation for one in journal.history("criu_dump")] == [second.id], "the other one is not finished"


def old_journal(path: Path) -> Path:
    """As a release with only the first script has left it."""
    connection = sqlite3.connect(path)
    for statement in SCRIPTS[0]:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.execute(
        "INSERT INTO operations (run_id, pid, start_ticks, boot_id, executable, uid, goal, state_before, step, status,"
        " park, guard, stopped_by, backend, message, created, updated)"
        " VALUES ('old', 7, 8, 'boot', '/x', 0, 'checkpointed', 'running', 'park', 'suspended', 1, 'none', 'us', 'cli',"
        " '', ?, ?)",
        (time.time(), time.time()),
    )
    connection.commit()
    connection.close()
    path.chmod(0o600)
    return path


def test_a_journal_of_an_older_release_is_read_as_it_is(tmp_path: Path) -> None:
    path = old_journal(tmp_path / "checkpoint.db")
    before = path.read_bytes()
    with open_journal(str(path), create=False) as reader:
        assert [one.run_id for one in reader.live("boot")] == ["old"], "what it says of suspended processes counts"
        assert reader.live_images() == () and reader.image_latest("/images/a") is None
        assert reader.images_of(identity(7)) == ()
        assert reader.history("criu_dump") == ()
    assert path.read_bytes() == before


def test_a_journal_of_an_older_release_learns_of_images(tmp_path: Path) -> None:
    path = old_journal(tmp_path / "checkpoint.db")
    with open_journal(str(path), create=False) as reader, open_journal(str(path)) as journal:
        row = begin_image(journal)
        begin(journal)
        assert reader.live_images() == (row,)
        assert [one.run_id for one in journal.live("boot")] == ["old"]


def test_many_workers_make_an_older_journal_new_at_once(tmp_path: Path) -> None:
    path = old_journal(tmp_path / "checkpoint.db")

    def work(pid: int) -> None:
        with open_journal(str(path)) as journal:
            begin_image(journal, pid)

    children = [fork(lambda pid=pid: work(pid)) for pid in range(20, 28)]  # type: ignore[misc]
    assert [wait(child) for child in children] == [0] * 8
    with open_journal(str(path), create=False) as reader:
        assert sorted(row.root.pid for row in reader.live_images()) == list(range(20, 28))
