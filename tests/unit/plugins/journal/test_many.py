# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many processes at one journal, also when they are killed in the middle, and across forks."""

import gc
import os
import random
import time
from functools import partial
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from tests.unit.plugins.journal.helpers import begin, fork, identity, kill, wait

STEPS = ("lock", "stop", "seize", "checkpoint", "settle", "park")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "made/by/whoever/comes/first/checkpoint.db")


def work(path: str, pid: int, rounds: int) -> None:
    with open_journal(path) as journal:
        for _round in range(rounds):
            operation = begin(journal, pid)
            for step in STEPS[1:]:
                journal.step(operation.id, step, signal_mask=step)
            journal.finish(operation.id, "done", "", dict.fromkeys(STEPS, 0.5))


def check_whole(path: str) -> Journal:
    journal = open_journal(path)
    assert journal.file.read("PRAGMA integrity_check")[0][0] == "ok"
    assert not journal.file.read("PRAGMA foreign_key_check")
    return journal


def test_sixteen_processes_that_make_it_and_write_at_once(path: str) -> None:
    children = [fork(partial(work, path, pid, 5)) for pid in range(100, 116)]
    assert [wait(child) for child in children] == [0] * 16
    with check_whole(path) as journal:
        assert len(journal.history("park", limit=1000)) == 80
        for pid in range(100, 116):
            latest = journal.latest(identity(pid))
            assert latest is not None and latest.status == "done" and latest.step == "park"
            assert journal.steps(latest.id) == STEPS


def test_readers_never_wait_and_never_see_half_of_a_step(path: str) -> None:
    open_journal(path).close()
    writer = fork(lambda: work(path, 100, 400))
    seen = 0
    with open_journal(path, create=False) as journal:
        while os.waitid(os.P_PID, writer, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            latest = journal.latest(identity(100))
            if latest is not None:
                seen += 1
                assert latest.signal_mask == (latest.step if latest.step != "lock" else None)
            time.sleep(0.001)
    assert wait(writer) == 0
    assert seen > 3


def acknowledge(path: str, pid: int, write: int) -> None:
    """Says a step's number after the step has been written."""
    with open_journal(path) as journal:
        operation = begin(journal, pid, step="0")
        number = 0
        while True:
            os.write(write, f"{operation.id} {number}\n".encode())
            number += 1
            journal.step(operation.id, str(number))


def test_killed_at_any_moment_nothing_that_was_written_is_lost(path: str) -> None:
    open_journal(path).close()
    moments = random.Random(7)
    for _kill in range(12):
        read, write = os.pipe()
        children = [fork(partial(acknowledge, path, pid, write)) for pid in (100, 101)]
        os.close(write)
        with os.fdopen(read) as said:
            first = said.readline()
            time.sleep(moments.uniform(0, 0.03))
            for child in children:
                kill(child)
            acknowledged: dict[int, int] = {}
            for line in (first, *said.readlines()):
                operation, number = line.split()
                acknowledged[int(operation)] = int(number)
        assert acknowledged
        with check_whole(path) as journal:
            for key, last in acknowledged.items():
                steps = [int(step) for step in journal.steps(key)]
                # In their order, and at most the one of which nobody was told any more.
                assert steps == list(range(len(steps))) and len(steps) - 1 in (last, last + 1)
                assert journal.get(key).step == str(len(steps) - 1)


def test_killed_while_it_writes_nobody_else_waits(path: str) -> None:
    with open_journal(path) as journal:
        operation = begin(journal)
        read, write = os.pipe()

        def hold() -> None:
            with open_journal(path) as mine, mine.file.transaction() as connection:
                connection.execute("UPDATE operations SET message = 'half'")
                os.write(write, b"x")
                time.sleep(600)

        child = fork(hold)
        os.close(write)
        assert os.read(read, 1) == b"x"
        kill(child)
        start = time.monotonic()
        journal.step(operation.id, "stop")
        assert time.monotonic() - start < 5
        assert journal.get(operation.id).message == ""
        os.close(read)


def test_killed_while_it_makes_the_journal(path: str) -> None:
    for delay in (0.0, 0.001, 0.003, 0.006, 0.01):
        child = fork(lambda: work(path, 100, 50))
        time.sleep(delay)
        kill(child)
    with check_whole(path) as journal:
        begin(journal)


def test_it_goes_through_a_fork(path: str) -> None:
    """Open before, used on both sides at once after: SQLite's own connections would lose writes, or the file."""
    with open_journal(path) as journal:
        operations = [begin(journal, pid) for pid in range(100, 108)]

        def go_on(index: int) -> None:
            for number in range(20):
                journal.step(operations[index].id, str(number))
            gc.collect()

        children = [fork(partial(go_on, index)) for index in range(7)]
        go_on(7)
        assert [wait(child) for child in children] == [0] * 7
        for operation in operations:
            assert journal.steps(operation.id) == ("lock", *map(str, range(20)))
    check_whole(path).close()


def test_a_child_has_no_open_connection_of_its_parent(path: str) -> None:
    with open_journal(path) as journal:
        begin(journal)

        def look() -> None:
            names = [
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")
            ]
            assert not [name for name in names if "checkpoint.db" in name]

        assert wait(fork(look)) == 0


def test_a_fork_in_the_middle_of_a_transaction_is_told_in_the_child(path: str) -> None:
    with open_journal(path) as journal:
        operation = begin(journal)

        def use_it() -> None:
            with pytest.raises(RuntimeError, match="carried over a fork"):
                journal.get(operation.id)
            journal.close()

        with journal.file.transaction() as connection:
            assert wait(fork(use_it)) == 0
            connection.execute("UPDATE operations SET message = 'whole'")
        assert journal.get(operation.id).message == "whole"
    check_whole(path).close()
