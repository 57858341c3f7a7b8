# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations and steps: what is written is what is read, and it is there before the step."""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, StepRecord, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_file import JournalFile
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_schema import SCRIPTS
from tests.unit.plugins.journal.helpers import BOOT, begin, identity, me


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


def test_an_operation_comes_back_as_it_was_begun(journal: Journal) -> None:
    operation = begin(journal)
    assert operation.status == "active" and operation.step == "lock"
    assert operation.identity == identity(12) and operation.worker == identity(99)
    assert operation.device_bytes == {"GPU-a": 5, "GPU-b": 7}
    assert operation.park is True and operation.restore_tid is None and operation.signal_mask is None
    assert journal.get(operation.id) == operation == journal.latest(identity(12))
    with open_journal(journal.path, create=False) as reader:
        assert reader.latest(identity(12)) == operation


def test_two_runs_do_not_drive_one_process(journal: Journal) -> None:
    first = begin(journal, run_id="first", after=0)
    with pytest.raises(JournalError) as caught:
        begin(journal, run_id="second", after=0)
    assert "run first has taken over PID 12" in str(caught.value)
    assert journal.latest(identity(12)) == first, "nothing was written"
    second = begin(journal, run_id="second", after=first.id)
    assert journal.latest(identity(12)) == second
    begin(journal, pid=13, after=0)


def test_every_field_that_can_change_does(journal: Journal) -> None:
    operation = begin(journal)
    changed: dict[str, object] = {
        "goal": "running",
        "state_before": "locked",
        "status": "suspended",
        "worker": None,
        "park": False,
        "guard": "none",
        "restore_tid": 13,
        "signal_mask": "00000000",
        "stopped_by": "us",
        "refused": 801,
        "backend": "cli",
        "message": "words",
        "device_bytes": {"GPU-c": 9},
    }
    journal.update(operation.id, **changed)
    seen = journal.get(operation.id)
    assert {name: getattr(seen, name) for name in changed} == changed
    assert seen.updated > operation.updated
    assert replace(seen, **changed) == seen  # type: ignore[arg-type]
    journal.update(operation.id, worker=identity(100))
    assert journal.get(operation.id).worker == identity(100)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"status": "finished"}, ValueError),
        ({"id": 3}, TypeError),
        ({"restore_tid": "13"}, TypeError),
        ({"park": 1}, TypeError),
        ({"no_such_field": 1}, TypeError),
        ({"device_bytes": 3}, TypeError),
        ({"message": None}, TypeError),
    ],
)
def test_what_an_operation_can_not_have_is_refused_and_nothing_changes(
    journal: Journal, changed: dict[str, object], error: type[Exception]
) -> None:
    operation = begin(journal)
    with pytest.raises(error):
        journal.step(operation.id, "checkpoint", **changed)
    assert journal.get(operation.id) == operation
    assert journal.steps(operation.id) == ("lock",)


def test_an_id_that_there_is_none_of(journal: Journal) -> None:
    with pytest.raises(KeyError):
        journal.step(1, "lock")
    with pytest.raises(KeyError):
        journal.get(1)
    assert journal.steps(1) == ()


def test_a_step_is_readable_for_others_when_the_call_returns(journal: Journal) -> None:
    operation = begin(journal)
    with open_journal(journal.path, create=False) as reader:
        for step in ("stop", "seize", "checkpoint"):
            journal.step(operation.id, step, signal_mask=step)
            seen = reader.get(operation.id)
            assert (seen.step, seen.signal_mask) == (step, step)
    assert journal.steps(operation.id) == ("lock", "stop", "seize", "checkpoint")


def test_the_latest_operation_of_a_process_is_of_that_process_only(journal: Journal) -> None:
    first = begin(journal, pid=12)
    second = begin(journal, pid=12)
    other = begin(journal, pid=13)
    assert first.id < second.id
    assert journal.latest(identity(12)) == second
    assert journal.latest(identity(13)) == other
    assert journal.latest(identity(12, start_ticks=4712)) is None
    assert journal.latest(identity(12, boot_id="another")) is None


def test_live_is_what_a_later_run_has_to_know(journal: Journal) -> None:
    ended = {}
    for pid, status in enumerate(("active", "suspended", "failed", "unknown", "done", "undone"), 20):
        ended[status] = begin(journal, pid=pid)
        journal.finish(ended[status].id, status)
    superseded = begin(journal, pid=30)
    journal.finish(superseded.id, "suspended")
    journal.finish(begin(journal, pid=30).id, "done")
    begin(journal, pid=31, boot_id="before the reboot")
    assert [operation.status for operation in journal.live(BOOT)] == ["active", "suspended", "failed", "unknown"]
    assert [operation.identity.pid for operation in journal.live("before the reboot")] == [31]


def test_measured_steps_are_the_history_that_estimates_are_made_of(journal: Journal) -> None:
    first, second = begin(journal, pid=12), begin(journal, pid=13)
    for operation, seconds in ((first, 4.5), (second, 2.5)):
        journal.step(operation.id, "checkpoint")
        journal.step(operation.id, "park")
        journal.finish(operation.id, "suspended", "", {"checkpoint": seconds, "never made": 1.0})
    newest, oldest = journal.history("checkpoint")
    assert newest == StepRecord(second.id, "checkpoint", newest.at, 2.5, 12)
    assert (oldest.operation, oldest.seconds) == (first.id, 4.5)
    assert journal.history("checkpoint", limit=1) == (newest,)
    assert journal.history("park") == () == journal.history("never made")


def test_of_two_steps_of_one_name_the_last_is_the_measured_one(journal: Journal) -> None:
    operation = begin(journal)
    journal.step(operation.id, "settle")
    journal.step(operation.id, "settle")
    journal.finish(operation.id, "done", "", {"settle": 0.1})
    (record,) = journal.history("settle")
    # The clock ticks once for each call: begin, settle, settle.
    assert record.at == 1003.0


def test_a_refused_checkpoint_is_remembered_as_long_as_the_process_may_live(journal: Journal, clock: Clock) -> None:
    operation = begin(journal, pid=12)
    assert journal.refused(identity(12)) is None
    journal.finish(operation.id, "undone", refused=801)
    journal.finish(begin(journal, pid=12).id, "undone", refused=999)
    clock.now += _journal.KEPT_SECONDS + 10
    begin(journal, pid=12)
    assert journal.refused(identity(12)) == 801
    assert journal.refused(identity(12, start_ticks=4712)) is None
    begin(journal, pid=13, boot_id="after the reboot")
    assert journal.refused(identity(12)) is None


def test_a_run_is_found_by_its_name(journal: Journal) -> None:
    mine = [begin(journal, pid=pid, run_id="mine") for pid in (1, 2)]
    begin(journal, pid=3, run_id="other")
    assert list(journal.of_run("mine")) == mine


def test_what_is_settled_and_old_is_forgotten_with_its_steps(journal: Journal, clock: Clock) -> None:
    settled, suspended = begin(journal, pid=12), begin(journal, pid=13)
    former = begin(journal, pid=14, boot_id="before the reboot")
    journal.finish(settled.id, "done", "", {"lock": 1.0})
    journal.finish(suspended.id, "suspended")
    clock.now += _journal.KEPT_SECONDS + 10
    begin(journal, pid=15)
    assert journal.latest(settled.identity) is None
    assert journal.history("lock") == ()
    assert journal.latest(former.identity) is None
    seen = journal.latest(suspended.identity)
    assert seen is not None and seen.device_bytes == {"GPU-a": 5, "GPU-b": 7}


def test_what_raises_inside_a_transaction_leaves_nothing(journal: Journal) -> None:
    operation = begin(journal)
    with pytest.raises(ZeroDivisionError), journal.file.transaction() as connection:
        connection.execute("UPDATE operations SET message = 'half'")
        raise ZeroDivisionError
    assert journal.get(operation.id) == operation
    with journal.file.transaction(), pytest.raises(RuntimeError, match="in a transaction already"):
        begin(journal)


def test_it_can_be_used_after_it_was_closed(journal: Journal) -> None:
    operation = begin(journal)
    journal.close()
    journal.close()
    assert journal.latest(identity(12)) == operation
    journal.close()
    assert journal.get(operation.id) == operation


def test_it_is_durable_by_its_settings(journal: Journal) -> None:
    begin(journal)
    connection = journal.file._connected()
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert connection.execute("PRAGMA foreign_keys").fetchone()[0] == 1
    with sqlite3.connect(journal.path) as other:
        assert other.execute("PRAGMA user_version").fetchone()[0] == len(SCRIPTS)


def test_what_outlives_everybody_but_the_host_is_not_waited_for(journal: Journal) -> None:
    operation = begin(journal)
    connection = journal.file._connected()

    def level() -> object:
        return connection.execute("PRAGMA synchronous").fetchone()[0]

    with journal.file.transaction(durable=False) as writing:
        writing.execute("UPDATE operations SET message = 'quick'")
        assert level() == 1
    assert level() == 2
    with sqlite3.connect(journal.path) as other:
        assert other.execute("SELECT message FROM operations WHERE id = ?", (operation.id,)).fetchone()[0] == "quick"
    with pytest.raises(ZeroDivisionError), journal.file.transaction(durable=False):
        raise ZeroDivisionError
    assert level() == 2
    with journal.file.transaction():
        assert level() == 2


def test_what_is_of_use_only_while_the_process_lives_is_not_waited_for(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each promise that outlives the host takes a second on a disk that images are written to."""
    levels: list[bool] = []
    real = JournalFile.transaction

    def watched(file: JournalFile, durable: bool = True) -> AbstractContextManager[sqlite3.Connection]:
        levels.append(durable)
        return real(file, durable)

    monkeypatch.setattr(JournalFile, "transaction", watched)
    operation = begin(journal)
    journal.step(operation.id, "checkpoint")
    journal.update(operation.id, stopped_by="us")
    journal.finish(operation.id, "suspended")
    assert levels == [True, False, False, False]
    journal.harden()
    journal.finish(operation.id, "done")
    assert levels[4:] == [True, True]


def test_a_guard_is_known_by_an_operation_that_is_not_the_last(journal: Journal) -> None:
    first = begin(journal)
    journal.update(first.id, worker=me())
    begin(journal)
    assert journal.guard(identity(12), me().pid) == me()
    assert journal.guard(identity(12), 99) is None, "it has ended"
    assert journal.guard(identity(13), me().pid) is None, "of another process"
    assert journal.guard(identity(12), 0) is None
