# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who gets a host, who is refused, and what the refusal tells the operator to do."""

from typing import Any, Optional

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import (
    BEGINNINGS,
    PHASES,
    Ask,
    Claim,
    Drain,
    DrainError,
    Found,
    claim,
)
from tests.unit.plugins.drain.made import HERE, drain

ELSEWHERE = "control2 admin 100:200:300"
FRESH = "fresh"


def asked(phase: str = "claimed", row: Optional[Drain] = None, last: Optional[Drain] = None, **values: Any) -> Claim:
    return claim(Ask(phase, **{"controller": HERE, "run_id": "a", **values}), Found(row, last, 1000.0), FRESH)


def refused(phase: str = "claimed", row: Optional[Drain] = None, last: Optional[Drain] = None, **values: Any) -> str:
    with pytest.raises(DrainError) as caught:
        asked(phase, row, last, **values)
    return str(caught.value)


@pytest.mark.parametrize("phase", sorted(BEGINNINGS))
def test_a_host_of_nobody_is_claimed(phase: str) -> None:
    assert asked(phase) == Claim(None, "a", ("a",), 1)
    assert asked(phase, attempt=4).attempt == 4


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase not in BEGINNINGS])
def test_nothing_else_begins_a_drain(phase: str) -> None:
    words = refused(phase)
    assert "it has no open drain; run a has nothing here" in words
    assert "gpu_drain_run_id" in words


def test_the_same_run_goes_on_with_its_attempt_or_the_next() -> None:
    row = drain(attempt=2)
    assert asked(row=row, attempt=2).attempt == 2
    assert asked(row=row, attempt=3).attempt == 3
    assert asked(row=row).attempt == 3
    assert asked(row=row).row is row


@pytest.mark.parametrize("phase", PHASES)
def test_an_attempt_that_was_overtaken_is_refused_in_every_phase(phase: str) -> None:
    for words in (
        refused(phase, drain(attempt=2), attempt=1),
        refused(phase, last=drain(attempt=2, phase="undone", closed=2000.0), attempt=1),
    ):
        assert "attempt 2 of this run has taken over, by admin on control1, process 100" in words


@pytest.mark.parametrize("phase", PHASES)
def test_another_run_is_refused_in_every_phase_and_told_both_ways_on(phase: str) -> None:
    words = refused(phase, drain(run_id="x", phase="suspended", attempt=3), run_id="b", controller=ELSEWHERE)
    assert "it belongs to the drain of run x (attempt 3, by admin on control1, process 100)" in words
    assert "which is at suspended since 1970-01-01 00:16:40 UTC" in words
    assert "gpu_drain_run_id: x" in words
    assert "gpu_drain_take_over: x (option take_over)" in words


def test_the_wrong_name_takes_nothing_over() -> None:
    row = drain(run_id="x")
    assert "belongs to the drain of run x" in refused(row=row, run_id="b", take_over="y")
    assert "belongs to the drain of run x" in refused(row=row, run_id="b", take_over="b")


def test_a_run_that_takes_over_keeps_what_is_there() -> None:
    row = drain(run_id="x", phase="suspended", attempt=3)
    taken = asked(row=row, run_id="b", take_over="x", controller=ELSEWHERE)
    assert taken == Claim(row, "b", ("x", "b"), 4, taken_over="x")
    assert asked(row=row, run_id="b", take_over="x", attempt=1).attempt == 1


def test_who_was_overtaken_is_told_by_whom() -> None:
    row = drain(run_id="b", runs=("a", "b"))
    assert "run b, which took it over from run a" in refused(row=row, attempt=1)


def test_who_takes_back_what_was_its_own_is_listed_once() -> None:
    assert asked(row=drain(run_id="b", runs=("a", "b")), take_over="b").runs == ("a", "b")


def test_the_same_run_from_another_controller_has_to_take_over() -> None:
    row = drain(attempt=2)
    assert "belongs to the drain of run a" in refused(row=row, controller=ELSEWHERE)
    assert asked(row=row, controller=ELSEWHERE, take_over="a").attempt == 3
    assert asked(row=row, controller="").attempt == 3


def test_what_was_suspended_by_itself_anybody_may_bring_back_but_not_while_somebody_is_at_it() -> None:
    for phase in ("suspending", "restoring"):
        row = drain(run_id="s", kind="suspend", phase=phase)
        words = refused("restoring", row, run_id="", kind="suspend", controller=ELSEWHERE)
        assert "it belongs to the suspend of run s (attempt 1, by admin on control1, process 100)" in words
        assert "gpu_restore_take_over: s" in words
    row = drain(run_id="s", kind="suspend", phase="suspended")
    assert asked("restoring", row, run_id="", kind="suspend", controller=ELSEWHERE).attempt == 2
    assert "belongs to the suspend of run s" in refused(row=row, run_id="b", controller=ELSEWHERE)


def test_two_playbooks_do_not_share_an_attempt() -> None:
    words = refused(row=drain(attempt=2), attempt=2, controller="control1 admin 999:200:300")
    assert "its attempt 2 belongs to another ansible-playbook, by admin on control1, process 100" in words
    assert asked(row=drain(attempt=2), attempt=3, controller="control1 admin 999:200:300").attempt == 3


# Without a name


def test_a_suspend_without_a_name_gets_one_and_finds_it_again() -> None:
    assert asked("suspending", run_id="", kind="suspend") == Claim(None, FRESH, (FRESH,), 1)
    row = drain(run_id="s", kind="suspend", phase="suspending")
    for phase in PHASES:
        assert asked(phase, row, run_id="", kind="suspend") == Claim(row, "s", ("s",), 2)


@pytest.mark.parametrize("phase", PHASES)
def test_nobody_without_a_name_gets_a_drain(phase: str) -> None:
    words = refused(phase, drain(run_id="d"), run_id="", kind="suspend")
    assert "it belongs to the drain of run d" in words
    name = "gpu_restore" if phase in ("restoring", "restored", "released") else "gpu_suspend"
    assert f"{name}_take_over: d" in words


@pytest.mark.parametrize("phase", ["restoring", "restored", "released", "undoing", "undone"])
def test_what_has_ended_already_is_no_failure_without_a_name(phase: str) -> None:
    row = drain(run_id="s", kind="suspend", phase="released", closed=2000.0)
    assert asked(phase, last=row, run_id="", kind="suspend") == Claim(row, "s", ("s",), 1, settled=True)
    assert asked(phase, run_id="", kind="suspend").nothing
    assert asked(phase, last=drain(phase="released", closed=2000.0), run_id="", kind="suspend").nothing


def test_nothing_is_proved_of_nothing() -> None:
    assert "nobody has claimed it" in refused("suspended", run_id="", kind="suspend")
    words = refused("maintenance", last=drain(run_id="o", phase="released", closed=2000.0), run_id="")
    assert "the last run here was o, released at 1970-01-01 00:33:20 UTC" in words


# A run that has ended


def test_a_drain_that_was_released_is_finished() -> None:
    row = drain(phase="released", closed=2000.0)
    for phase in ("claimed", "suspended", "maintenance", "restoring", "restored", "released"):
        assert asked(phase, last=row, attempt=2) == Claim(row, "a", ("a",), 2, settled=True)
    assert "Begin with claimed" in refused("suspending", last=row)
    assert "it has released this host" in refused("undoing", last=row)


def test_a_suspend_by_itself_may_begin_anew_under_its_name() -> None:
    row = drain(kind="suspend", phase="released", closed=2000.0, attempt=2)
    assert asked("suspending", last=row, kind="suspend") == Claim(None, "a", ("a",), 3)


def test_what_was_undone_begins_anew() -> None:
    row = drain(phase="undone", closed=2000.0, attempt=2)
    for phase in sorted(BEGINNINGS):
        assert asked(phase, last=row, attempt=3) == Claim(None, "a", ("a",), 3)
    assert asked("undone", last=row, attempt=2).settled
    assert "it ended on this host as undone" in refused("restoring", last=row)


# Check mode


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase not in BEGINNINGS])
def test_check_mode_does_not_miss_what_earlier_tasks_would_have_done(phase: str) -> None:
    assert asked(phase, check=True).nothing
    assert "belongs to the drain of run x" in refused(phase, drain(run_id="x"), check=True)
