# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU memory can be promised only once, and a promise ends with whom it was made to."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_reservations import Shortage
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity
from tests.unit.plugins.journal.helpers import fork, identity, kill, me, wait

ONE, TWO = identity(1), identity(2)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "checkpoint.db")) as opened:
        yield opened


def everybody(_owner: Identity) -> bool:
    return True


def free(**gpus: int) -> Mapping[str, int]:
    return gpus


def test_what_others_reserved_is_not_free(journal: Journal) -> None:
    assert journal.reserve(ONE, {"a": 60, "b": 1}, lambda: free(a=100, b=1), everybody) is None
    assert journal.reserved(everybody) == {"a": 60, "b": 1}
    assert journal.reserve(TWO, {"a": 41}, lambda: free(a=100), everybody) == Shortage("a", 41, 100, 60)
    assert journal.reserve(TWO, {"a": 40}, lambda: free(a=100), everybody) is None
    assert journal.reserved(everybody) == {"a": 100, "b": 1}
    assert journal.reserved(everybody, but=[TWO]) == {"a": 60, "b": 1}


def test_one_gpu_without_room_reserves_nothing(journal: Journal) -> None:
    shortage = journal.reserve(ONE, {"a": 1, "b": 2}, lambda: free(a=9, b=1), everybody)
    assert shortage == Shortage("b", 2, 1, 0)
    assert journal.reserved(everybody) == {}


def test_a_gpu_that_is_not_there_has_no_room(journal: Journal) -> None:
    assert journal.reserve(ONE, {"a": 1}, lambda: free(b=9), everybody) == Shortage("a", 1, None, 0)


def test_the_last_reservation_of_an_owner_counts(journal: Journal) -> None:
    assert journal.reserve(ONE, {"a": 60}, lambda: free(a=100), everybody) is None
    assert journal.reserve(ONE, {"a": 70}, lambda: free(a=100), everybody) is None
    assert journal.reserved(everybody) == {"a": 70}
    journal.release(ONE)
    journal.release(ONE)
    assert journal.reserved(everybody) == {}


def test_the_dead_hold_nothing(journal: Journal) -> None:
    assert journal.reserve(ONE, {"a": 60}, lambda: free(a=100), everybody) is None
    assert journal.reserved(lambda owner: owner != ONE) == {}
    # A look takes nothing away, a reservation does.
    assert journal.reserved(everybody) == {"a": 60}
    assert journal.reserve(TWO, {"a": 90}, lambda: free(a=100), lambda owner: owner != ONE) is None
    assert journal.reserved(everybody) == {"a": 90}
    journal.drop_reservations(lambda owner: owner != TWO)
    assert journal.reserved(everybody) == {}


def test_a_failing_look_at_the_gpus_reserves_nothing(journal: Journal) -> None:
    def broken() -> Mapping[str, int]:
        raise OSError("no driver")

    with pytest.raises(OSError, match="no driver"):
        journal.reserve(ONE, {"a": 1}, broken, everybody)
    assert journal.reserved(everybody) == {}
    assert journal.reserve(ONE, {"a": 1}, lambda: free(a=1), everybody) is None


def test_of_ten_at_once_only_as_many_get_it_as_there_is_room_for(journal: Journal) -> None:
    got_read, got_write = os.pipe()
    end_read, end_write = os.pipe()

    def want() -> None:
        with open_journal(journal.path) as mine:
            shortage = mine.reserve(me(), {"a": 30}, lambda: free(a=100))
            os.write(got_write, b"+" if shortage is None else b"-")
            os.close(end_write)
            os.read(end_read, 1)  # until the parent says that all have answered

    children = [fork(want) for _ in range(10)]
    answers = b""
    while len(answers) < 10:
        answers += os.read(got_read, 10)
    assert answers.count(b"+") == 3
    assert journal.reserved() == {"a": 90}
    kill(children[0])
    os.close(end_write)
    assert [wait(child) for child in children[1:]] == [0] * 9
    # None of them gave it back: they are gone.
    assert journal.reserved() == {}
    for end in (got_read, got_write, end_read):
        os.close(end)


def test_killed_while_it_looks_at_the_gpus(journal: Journal) -> None:
    read, write = os.pipe()

    def look() -> Mapping[str, int]:
        os.write(write, b"x")
        time.sleep(600)
        return free(a=100)

    def hang() -> None:
        open_journal(journal.path).reserve(me(), {"a": 1}, look)

    child = fork(hang)
    assert os.read(read, 1) == b"x"
    kill(child)
    assert journal.reserve(me(), {"a": 100}, lambda: free(a=100)) is None
    os.close(read)
    os.close(write)
