# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU memory can be promised only once, and a promise ends with whom it was made to."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_reservations import Shortage
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, is_alive
from tests.unit.plugins.journal.helpers import fork, identity, kill, me, wait

ONE, TWO = identity(1), identity(2)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "checkpoint.db")) as opened:
        yield opened


def everybody(_owner: Identity) -> bool:
    return True


def want(
    journal: Journal,
    owner: Identity,
    needs: Mapping[str, int],
    look: Callable[[], Mapping[str, int]],
    alive: Callable[[Identity], bool] = is_alive,
) -> Shortage | None:
    (shortage,) = journal.reserve([(owner, needs)], look, alive)
    return shortage


def free(**gpus: int) -> Mapping[str, int]:
    return gpus


def test_what_others_reserved_is_not_free(journal: Journal) -> None:
    assert want(journal, ONE, {"a": 60, "b": 1}, lambda: free(a=100, b=1), everybody) is None
    assert journal.reserved(everybody) == {"a": 60, "b": 1}
    assert want(journal, TWO, {"a": 41}, lambda: free(a=100), everybody) == Shortage("a", 41, 100, 60)
    assert want(journal, TWO, {"a": 40}, lambda: free(a=100), everybody) is None
    assert journal.reserved(everybody) == {"a": 100, "b": 1}
    assert journal.reserved(everybody, but=[TWO]) == {"a": 60, "b": 1}


def test_one_gpu_without_room_reserves_nothing(journal: Journal) -> None:
    shortage = want(journal, ONE, {"a": 1, "b": 2}, lambda: free(a=9, b=1), everybody)
    assert shortage == Shortage("b", 2, 1, 0)
    assert journal.reserved(everybody) == {}


def test_a_gpu_that_is_not_there_has_no_room(journal: Journal) -> None:
    assert want(journal, ONE, {"a": 1}, lambda: free(b=9), everybody) == Shortage("a", 1, None, 0)


def test_the_last_reservation_of_an_owner_counts(journal: Journal) -> None:
    assert want(journal, ONE, {"a": 60}, lambda: free(a=100), everybody) is None
    assert want(journal, ONE, {"a": 70}, lambda: free(a=100), everybody) is None
    assert journal.reserved(everybody) == {"a": 70}
    journal.release(ONE)
    journal.release(ONE)
    assert journal.reserved(everybody) == {}


def test_the_dead_hold_nothing(journal: Journal) -> None:
    assert want(journal, ONE, {"a": 60}, lambda: free(a=100), everybody) is None
    assert journal.reserved(lambda owner: owner != ONE) == {}
    # A look takes nothing away, a reservation does.
    assert journal.reserved(everybody) == {"a": 60}
    assert want(journal, TWO, {"a": 90}, lambda: free(a=100), lambda owner: owner != ONE) is None
    assert journal.reserved(everybody) == {"a": 90}
    journal.drop_reservations(lambda owner: owner != TWO)
    assert journal.reserved(everybody) == {}


def test_a_failing_look_at_the_gpus_reserves_nothing(journal: Journal) -> None:
    def broken() -> Mapping[str, int]:
        raise OSError("no driver")

    with pytest.raises(OSError, match="no driver"):
        want(journal, ONE, {"a": 1}, broken, everybody)
    assert journal.reserved(everybody) == {}
    assert want(journal, ONE, {"a": 1}, lambda: free(a=1), everybody) is None


def test_a_whole_list_in_one_look(journal: Journal) -> None:
    looks = 0

    def look() -> Mapping[str, int]:
        nonlocal looks
        looks += 1
        return free(a=100)

    three = identity(3)
    wants = [(ONE, {"a": 60}), (TWO, {"a": 50}), (three, {"a": 40})]
    assert journal.reserve(wants, look, everybody) == [None, Shortage("a", 50, 100, 60), None]
    assert looks == 1
    assert journal.reserved(everybody, but=[three]) == {"a": 60}
    # Again, as after a crash of the one who asked: nobody is in its own way.
    assert journal.reserve(wants, look, everybody) == [None, Shortage("a", 50, 100, 60), None]


def test_of_ten_at_once_only_as_many_get_it_as_there_is_room_for(journal: Journal) -> None:
    got_read, got_write = os.pipe()
    end_read, end_write = os.pipe()

    def reserve() -> None:
        with open_journal(journal.path) as mine:
            shortage = want(mine, me(), {"a": 30}, lambda: free(a=100))
            os.write(got_write, b"+" if shortage is None else b"-")
            os.close(got_write)
            os.close(end_write)
            os.read(end_read, 1)  # until the parent says that all have answered

    children = [fork(reserve) for _child in range(10)]
    os.close(got_write)
    with os.fdopen(got_read, "rb") as answers:
        answered = answers.read()
    assert (answered.count(b"+"), len(answered)) == (3, 10)
    assert journal.reserved() == {"a": 90}
    kill(children[0])
    os.close(end_write)
    assert [wait(child) for child in children[1:]] == [0] * 9
    # None of them gave it back: they are gone.
    assert journal.reserved() == {}
    os.close(end_read)


def test_killed_while_it_looks_at_the_gpus(journal: Journal) -> None:
    read, write = os.pipe()

    def look() -> Mapping[str, int]:
        os.write(write, b"x")
        time.sleep(600)
        return free(a=100)

    child = fork(lambda: want(open_journal(journal.path), me(), {"a": 1}, look))
    os.close(write)
    assert os.read(read, 1) == b"x"
    kill(child)
    assert want(journal, me(), {"a": 100}, lambda: free(a=100)) is None
    os.close(read)
