# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A line for each host, and what is to be done about it."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import look
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.look import FINISH, NOTHING, REPORT, UNDO


def told(phase: str, **more: Any) -> dict[str, Any]:
    row = {
        "phase": phase,
        "run_id": "r1",
        "runs": ["r1"],
        "kind": "drain",
        "attempt": 2,
        "controller": "control admin 7:70:boot",
        "since": 1.0,
        "closed": None,
        "processes": [{"state": "suspended"}, {"state": "suspended"}, {"state": "running"}],
        "images": [{"state": "unspent"}, {"state": "spent"}],
        "scheduler": {"kind": "slurm", "ours": True},
        "lost": [],
        "message": "",
        **more,
    }
    return {"drain": row, "cuda": []}


def test_a_line_says_where_the_host_is_whose_it_is_and_what_is_next() -> None:
    line = look.status("h1", told("suspended"), "dead")
    assert line == (
        "h1 suspended since 1970-01-01 00:00:01Z, run r1 (attempt 2, admin@control, dead); 1 running, 2 suspended, "
        "0 gone; 1 image unspent; scheduler slurm ours; next: the same command again with -e gpu_drain_run_id=r1 "
        "repeats the maintenance; or gpufleet.checkpoint.recover with gpu_drain_maintenance_done: true"
    )


def test_a_line_says_what_failed_and_what_is_lost() -> None:
    line = look.status("h1", told("restoring", message="no room", lost=[{"what": "PID 7", "why": "rebooted"}]), "dead")
    assert "LOST PID 7 (rebooted); failed: no room; next: " in line
    assert "gpu_drain_accept_loss: true" in line


FAILED = [{"phase": "suspending", "attempt": 2, "at": 3.0, "message": "Look: no room"}]


def test_a_failure_is_told_under_the_phase_in_which_it_happened() -> None:
    line = look.status("h1", told("undoing", message="no room", failures=FAILED), "dead")
    assert "; failed in suspending at 1970-01-01 00:00:03Z: Look: no room; next: " in line
    assert "failed" not in look.status("h1", told("maintenance", failures=FAILED), "dead"), "that was settled since"
    assert look.status("h1", told("undone", closed=60.0, message="no room", failures=FAILED), "dead") == (
        "h1 no drain; last r1 undone at 1970-01-01 00:01:00Z; failed in suspending at 1970-01-01 00:00:03Z: "
        "Look: no room"
    )
    assert "failed" not in look.status("h1", told("released", closed=60.0, failures=FAILED), "dead")


def test_a_host_that_no_drain_has() -> None:
    assert look.status("h1", {"drain": None, "cuda": []}, "") == "h1 no drain"
    assert (
        look.status("h1", told("released", closed=60.0), "dead")
        == "h1 no drain; last r1 released at 1970-01-01 00:01:00Z"
    )
    assert look.status("h1", {"drain": None, "cuda": [{"pid": 7, "state": "checkpointed"}]}, "") == (
        "h1 no drain; PID 7 suspended by tasks of their own; next: gpufleet.checkpoint.cuda_checkpoint with "
        "state: running"
    )


@pytest.mark.parametrize(
    ("life", "words"),
    [
        ("alive here", "next: wait, its run is at work"),
        ("elsewhere", "and gpu_drain_take_over: r1, once its controller is known to be dead"),
        ("dead", "recover takes it back"),
    ],
)
def test_what_is_next_depends_on_whether_its_run_lives(life: str, words: str) -> None:
    assert words in look.status("h1", told("suspending"), life)


@pytest.mark.parametrize("phase", ["claimed", "suspending", "undoing"])
def test_what_did_not_get_as_far_as_the_suspend_is_undone(phase: str) -> None:
    assert look.recover(told(phase), "dead").do == UNDO
    assert look.recover(told(phase, kind="suspend"), "").do == UNDO


@pytest.mark.parametrize("phase", ["suspended", "maintenance"])
def test_whether_the_maintenance_is_done_a_person_says(phase: str) -> None:
    decision = look.recover(told(phase), "dead")
    assert decision.do == REPORT
    assert "gpu_drain_maintenance_done: true" in decision.why
    assert look.recover(told(phase), "dead", maintenance_done=True).do == FINISH


@pytest.mark.parametrize("phase", ["restoring", "restored"])
def test_what_is_on_its_way_back_is_finished(phase: str) -> None:
    assert look.recover(told(phase), "dead").do == FINISH
    assert look.recover(told(phase, lost=[{"what": "PID 7", "why": "gone"}]), "dead").do == FINISH


@pytest.mark.parametrize("phase", ["released", "undone"])
def test_there_is_nothing_to_do_for_a_host_that_is_released(phase: str) -> None:
    assert look.recover(told(phase, closed=1.0), "dead").do == NOTHING


def test_a_run_that_may_still_be_at_work_is_left_alone() -> None:
    assert look.recover(told("restoring"), "alive here").do == REPORT
    elsewhere = look.recover(told("restoring"), "elsewhere")
    assert elsewhere.do == REPORT
    assert "gpu_drain_take_over: r1" in elsewhere.why
    assert look.recover(told("restoring"), "elsewhere", take_over="r2").do == REPORT
    assert look.recover(told("restoring"), "elsewhere", take_over="r1").do == FINISH


def test_only_the_run_that_is_meant_is_recovered() -> None:
    assert look.recover(told("restoring"), "dead", run_id="r2").do == REPORT
    assert look.recover(told("restoring", runs=["r2", "r1"]), "dead", run_id="r2").do == FINISH


def test_a_suspend_on_purpose_is_no_accident() -> None:
    decision = look.recover(told("suspended", kind="suspend"), "", maintenance_done=True)
    assert decision.do == REPORT
    assert "gpufleet.checkpoint.restore" in decision.why


def test_who_suspended_it_by_itself_is_told_and_is_not_waited_for() -> None:
    line = look.status("h1", told("suspended", kind="suspend"), "elsewhere")
    assert "run r1 (attempt 2, admin@control); " in line
    assert line.endswith("next: gpufleet.checkpoint.restore brings its processes back")
    assert "suspended on purpose" in look.recover(told("suspended", kind="suspend"), "elsewhere").why
    half = look.status("h1", told("restoring", kind="suspend"), "elsewhere")
    assert "(attempt 2, admin@control, elsewhere)" in half
    assert "gpufleet.checkpoint.restore with gpu_restore_take_over: r1, once its controller is known to be dead" in half


def test_what_single_tasks_suspended_is_named_with_the_task_that_resumes_it() -> None:
    decision = look.recover({"drain": None, "cuda": [{"pid": 7, "state": "checkpointed", "run_id": "x"}]}, "")
    assert decision.do == REPORT
    assert "state: running and pids: [7]" in decision.why
    assert look.recover({"drain": None, "cuda": [{"pid": 7, "state": "running"}]}, "").do == NOTHING
