# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shortest legal path from any state to any other, and how a process may be looked at."""

import itertools
from dataclasses import replace
from typing import Optional

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._plan import (
    ASK,
    BUSY,
    FROZEN,
    GOALS,
    INTERRUPTED,
    LOOSE,
    PARKED,
    RUNAWAY,
    STOPPED,
    UNOWNED,
    Evidence,
    Memory,
    NoPathError,
    View,
    look,
    steps,
    watchdog_seconds,
)

# The driver's legal transitions, gpu-facts and tests/conformance: state/*.
LEGAL = {
    "lock": ("running", "locked"),
    "checkpoint": ("locked", "checkpointed"),
    "restore": ("checkpointed", "locked"),
    "unlock": ("locked", "running"),
}


def walk(view: View, plan: "tuple[str, ...]") -> "tuple[str, str]":
    """Where the plan ends, by the driver's rules: the CUDA state, and by whom the process is stopped then."""
    state, stopped = view.state, view.stopped
    for step in plan:
        if step in LEGAL:
            before, after = LEGAL[step]
            assert state == before, f"{step} is illegal in {state}"
            state = after
        elif step == "park":
            stopped = stopped or "us"
        elif step == "continue":
            assert stopped == "us"
            stopped = ""
        else:
            assert step in ("probe", "guard")
    return state, stopped


@pytest.mark.parametrize("state,goal,stopped", list(itertools.product(GOALS, GOALS, ("", "us", "other"))))
@pytest.mark.parametrize("park", [True, False])
def test_every_path_is_legal_ends_where_it_should_and_is_shortest(
    state: str, goal: str, stopped: str, park: bool
) -> None:
    view = View(state, stopped, guarded=stopped == "us")
    plan = steps(view, goal, park=park, guard=True)
    ended, still_stopped = walk(view, plan)
    assert ended == goal
    assert len([step for step in plan if step in LEGAL]) == abs(GOALS.index(state) - GOALS.index(goal))
    if stopped == "other":
        assert still_stopped == "other", "whoever stopped it continues it"
    elif goal != "checkpointed":
        assert still_stopped == ""
    elif park:
        assert still_stopped == "us"


@pytest.mark.parametrize("goal", GOALS)
def test_nothing_to_do_where_it_is_already(goal: str) -> None:
    stopped = "us" if goal == "checkpointed" else ""
    assert steps(View(goal, stopped, guarded=True), goal, park=True, guard=True) == ()


@pytest.mark.parametrize("stopped", ["us", "other"])
def test_a_lost_guard_is_the_only_step(stopped: str) -> None:
    view = View("checkpointed", stopped, guarded=False)
    assert steps(view, "checkpointed", park=True, guard=True) == ("guard",)
    assert steps(view, "checkpointed", park=True, guard=False) == ()
    assert steps(replace(view, guarded=True), "checkpointed", park=True, guard=True) == ()


def test_a_process_whose_state_is_only_known_when_held_is_probed_first() -> None:
    assert steps(View("locked", "us", held_first=True), "running", True, True) == ("probe", "continue", "unlock")


@pytest.mark.parametrize("state", ["failed", "unknown", "checkpointing", "restoring", "gone"])
def test_no_path_from_a_state_that_is_none(state: str) -> None:
    with pytest.raises(NoPathError, match=state):
        steps(View(state), "running", True, True)


def evidence(**changed: bool) -> Evidence:
    usual = Evidence(stopped=False, frozen=False, frozen_by_us=False, looks_suspended=False, holds_devices=True)
    return replace(usual, **changed)


def memory(**changed: object) -> Memory:
    usual = Memory(status="suspended", step="park", worker_alive=False, park=True, stopped_by="us")
    return replace(usual, **changed)  # type: ignore[arg-type]  # a shorthand for the fields that matter


SUSPENDED = {"looks_suspended": True, "holds_devices": False}


@pytest.mark.parametrize(
    "seen,known,kind",
    [
        (evidence(), None, ASK),
        (evidence(stopped=True), None, STOPPED),
        (evidence(frozen=True), None, FROZEN),
        (evidence(stopped=True, frozen=True), None, FROZEN),
        (evidence(**SUSPENDED), None, ASK),
        (evidence(stopped=True, **SUSPENDED), None, UNOWNED),
        (evidence(stopped=True, **SUSPENDED), memory(), PARKED),
        (evidence(stopped=True, **SUSPENDED), memory(worker_alive=True), PARKED),
        (evidence(stopped=True, **SUSPENDED), memory(stopped_by="other"), PARKED),
        (evidence(**SUSPENDED), memory(), RUNAWAY),
        (evidence(**SUSPENDED), memory(park=False, stopped_by=""), ASK),
        # Suspended without parking, and stopped by somebody else since.
        (evidence(stopped=True, **SUSPENDED), memory(park=False, stopped_by=""), STOPPED),
        (evidence(stopped=True, **SUSPENDED), memory(status="failed", step="restore"), PARKED),
        (evidence(stopped=True), memory(status="failed", step="restore"), INTERRUPTED),
        (evidence(stopped=True), memory(status="active", step="checkpoint", stopped_by=""), INTERRUPTED),
        (evidence(stopped=True, **SUSPENDED), memory(status="active", step="restore"), INTERRUPTED),
        # Resumed by hand, and stopped by somebody else since.
        (evidence(stopped=True), memory(status="suspended"), STOPPED),
        (evidence(stopped=True), memory(status="active", step="unlock"), LOOSE),
        (evidence(stopped=True), memory(status="active", step="continue"), LOOSE),
        (evidence(stopped=True), memory(status="unknown", step="settle"), LOOSE),
        (evidence(stopped=True, **SUSPENDED), memory(status="active", step="settle"), INTERRUPTED),
        (evidence(stopped=True), memory(status="active", step="unlock", stopped_by="other"), STOPPED),
        # Without its GPU memory it is never continued, whoever had stopped it before.
        (evidence(stopped=True, **SUSPENDED), memory(status="active", step="settle", stopped_by="other"), INTERRUPTED),
        (evidence(stopped=True), memory(status="active", step="restore", stopped_by="other"), INTERRUPTED),
        (evidence(), memory(status="active", step="lock", stopped_by=""), ASK),
        # Its worker died before it stopped anything: whoever did, it was not us.
        (evidence(stopped=True), memory(status="active", step="lock", stopped_by=""), STOPPED),
        (evidence(), memory(status="active", step="checkpoint", worker_alive=True), BUSY),
        (evidence(stopped=True), memory(status="done", step="unlock"), STOPPED),
        (evidence(frozen=True, frozen_by_us=True, **SUSPENDED), memory(), PARKED),
        (evidence(frozen=True, **SUSPENDED), memory(), FROZEN),
    ],
)
def test_how_a_process_may_be_looked_at(seen: Evidence, known: Optional[Memory], kind: str) -> None:
    assert look(seen, known) == kind


def test_a_stopped_or_frozen_process_is_never_asked_unheld() -> None:
    for stopped, frozen, by_us, looks, holds in itertools.product([True, False], repeat=5):
        if (not stopped and not frozen) or (by_us and not frozen):
            continue
        seen = Evidence(stopped, frozen, by_us, looks, holds)
        known = [None] + [
            memory(status=status, step=step, worker_alive=alive, park=park, stopped_by=by)
            for status in ("active", "suspended", "done", "failed", "undone", "unknown")
            for step in ("lock", "stop", "checkpoint", "restore", "unlock", "continue")
            for alive in (True, False)
            for park in (True, False)
            for by in ("us", "other", "")
        ]
        for one in known:
            assert look(seen, one) != ASK, (seen, one)


def test_the_watchdog_grows_with_the_bytes_and_can_be_set() -> None:
    assert watchdog_seconds(0, 0) == 60
    assert watchdog_seconds(100 << 30, 0) > 2 * 100 / 1.2, "twice what the slowest measured copy takes"
    assert watchdog_seconds(100 << 30, 5) == 5
