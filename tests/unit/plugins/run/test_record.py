# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of a host's record as its drain goes on."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Entry, Host
from tests.unit.plugins.run.making import BEGAN, RUN_ID, attempt_of, run_of

PROCESS = {
    "identity": {"pid": 71, "start_ticks": 5, "boot_id": "b"},
    "executable": "/usr/bin/python3",
    "device_bytes": 1 << 30,
    "state": "suspended",
}


def through(*phases: str, host: Host | None = None, at: float = BEGAN) -> Host:
    one = record.marked(Host(RUN_ID, "h1"), attempt_of(("h1",))) if host is None else host
    for number, phase in enumerate(phases):
        one = record.event(one, phase, at + 10 * number, {"phase": phase})
    return one


def test_a_host_whose_turn_comes_is_untouched_until_something_is_told_of_it() -> None:
    marked = record.marked(Host(RUN_ID, "h1"), attempt_of(("h1",), batch=3))
    assert (marked.outcome, marked.batch, marked.attempt, marked.timeline) == (record.UNTOUCHED, 3, 1, ())
    assert through("claimed").outcome == record.IN_PROGRESS


def test_each_phase_ends_with_the_next_one_and_the_last_with_itself() -> None:
    host = through("claimed", "suspending", "suspended", "maintenance", "restoring", "restored", "released")
    assert [entry.what for entry in host.timeline] == list(record.PHASES[:7])
    assert [entry.ended for entry in host.timeline] == [BEGAN + 10 * n for n in (1, 2, 3, 4, 5, 6, 6)]
    assert (host.outcome, host.phase) == (record.FINISHED, "released")


def test_a_phase_told_twice_is_one_entry() -> None:
    assert len(through("claimed", "claimed", "suspending", "suspending").timeline) == 2


def test_a_later_attempt_has_entries_of_its_own() -> None:
    host = record.marked(through("claimed", "suspending", "suspended"), attempt_of(("h1",), number=2))
    assert (host.outcome, host.phase) == (record.IN_PROGRESS, "suspended")
    host = record.event(host, "claimed", BEGAN + 500, {"phase": "suspended"})
    assert [(entry.what, entry.attempt, entry.ended) for entry in host.timeline[-2:]] == [
        ("suspended", 1, BEGAN + 500),
        ("suspended", 2, None),
    ]


def test_a_host_that_was_undone_begins_anew() -> None:
    undone = through("claimed", "undoing", "undone")
    assert undone.outcome == record.UNDONE
    again = record.marked(undone, attempt_of(("h1",), number=2))
    assert (again.outcome, again.phase) == (record.UNTOUCHED, "")
    assert record.event(again, "preflight", BEGAN + 500, {}).outcome == record.IN_PROGRESS


def test_hooks_lie_inside_phases() -> None:
    host = through("claimed")
    host = record.event(host, "before_suspend", BEGAN + 1, {})
    host = record.event(host, "before_suspend", BEGAN + 3, {"message": "out of the pool"}, ended=True)
    host = record.event(host, "preflight", BEGAN + 4, {}, ended=True)
    assert [(e.what, e.began, e.ended, e.text) for e in host.timeline] == [
        ("claimed", BEGAN, None, ""),
        ("before_suspend", BEGAN + 1, BEGAN + 3, "out of the pool"),
        ("preflight", BEGAN + 4, BEGAN + 4, ""),
    ]


def test_a_failure_ends_what_was_under_way_and_not_the_phase() -> None:
    host = record.event(through("claimed", "suspending"), "preflight", BEGAN + 15, {})
    host = record.failed(host, BEGAN + 20, "preflight: 1 finding blocks", "Settle it")
    assert (host.outcome, host.message, host.next) == (record.FAILED, "preflight: 1 finding blocks", "Settle it")
    assert host.timeline[-1] == Entry(
        "preflight", BEGAN + 15, BEGAN + 20, "preflight: 1 finding blocks", 1, True, BEGAN + 20
    )
    assert host.timeline[-2] == Entry("suspending", BEGAN + 10, None, "", 1)
    direct = record.failed(through("claimed", "suspending"), BEGAN + 20, "no", "")
    assert direct.timeline[-1] == Entry("suspending", BEGAN + 10, None, "no", 1, True, BEGAN + 20)


def test_a_failure_stays_with_its_phase_and_its_time_when_it_is_undone() -> None:
    host = record.failed(through("claimed", "suspending"), BEGAN + 20, "h1, suspending: no room", "")
    host = through("undoing", host=host, at=BEGAN + 21)
    assert host.timeline[-2] == Entry(
        "suspending", BEGAN + 10, BEGAN + 21, "h1, suspending: no room", 1, True, BEGAN + 20
    )
    undone = record.failed(through("undone", host=host, at=BEGAN + 25), BEGAN + 26, "h1, suspending: no room", "")
    assert [(entry.what, entry.failed) for entry in undone.timeline] == [
        ("claimed", False),
        ("suspending", True),
        ("undoing", False),
        ("undone", False),
    ]
    stuck = record.failed(host, BEGAN + 26, "h1, suspending: no room. It could not be undone either: hung", "", "hung")
    assert stuck.timeline[-1] == Entry("undoing", BEGAN + 21, None, "hung", 1, True, BEGAN + 26)


def test_what_is_said_of_a_failure_again_does_not_move_it() -> None:
    host = record.failed(through("claimed", "maintenance"), BEGAN + 20, "no fan", "")
    host = record.failed(host, BEGAN + 30, "no fan", "")
    assert (host.timeline[-1].failed_at, host.timeline[-1].ended) == (BEGAN + 20, None)
    hook = record.event(through("claimed", "restored"), "health", BEGAN + 15, {})
    for at in (16, 17):
        hook = record.failed(hook, BEGAN + at, "sick", "")
    assert [(entry.what, entry.failed, entry.failed_at) for entry in hook.timeline] == [
        ("claimed", False, None),
        ("restored", False, None),
        ("health", True, BEGAN + 16),
    ]


def test_what_a_silent_host_was_at_has_no_end() -> None:
    host = record.event(through("claimed"), "before_suspend", BEGAN + 1, {})
    after = record.silent(host, "no word since before_suspend")
    assert (after.outcome, after.message, after.timeline) == (
        record.FAILED,
        "no word since before_suspend",
        host.timeline,
    )
    assert record.silent(through("undoing", "undone"), "").outcome == record.UNDONE


@pytest.mark.parametrize(
    ("host", "outcome"),
    [
        (through("claimed", "undoing", "undone"), record.UNDONE),
        (record.event(through("restoring"), "restoring", BEGAN, {"lost": [{"what": "71", "why": "w"}]}), record.LOST),
        (through("claimed"), record.FAILED),
        (Host(RUN_ID, "h1"), record.FAILED),
    ],
)
def test_what_was_undone_or_lost_stays_so_when_the_host_fails(host: Host, outcome: str) -> None:
    assert record.failed(host, BEGAN, "m", "n").outcome == outcome


def test_a_released_host_is_finished_even_if_its_loss_was_accepted() -> None:
    host = record.event(through("restored"), "released", BEGAN, {"lost": [{"what": "71", "why": "w"}]})
    assert (host.outcome, len(host.lost)) == (record.FINISHED, 1)


def test_an_outcome_that_is_told_is_taken() -> None:
    host = record.event(through("claimed", "released"), "look", BEGAN, {"outcome": "failed"}, ended=True)
    assert host.outcome == record.FAILED


def test_what_may_hold_secrets_is_not_kept() -> None:
    data = {
        "phase": "suspended",
        "processes": [{**PROCESS, "command": ["python3", "--token", "S3CRET"], "environment": {"T": "S3CRET"}}],
        "findings": [{"id": "x", "severity": "warning", "evidence": "e", "command": "S3CRET"}],
        "holders": [{"pid": 1, "executable": "/usr/bin/dcgm", "cmdline": "S3CRET"}],
        "images": [{"path": "/i", "argv": "S3CRET"}],
        "invocation": {"module_args": {"token": "S3CRET"}},
        "stdout": "S3CRET",
    }
    host = record.event(through("claimed"), "suspended", BEGAN, data)
    assert "S3CRET" not in json.dumps(record.host_to_json(host))
    assert host.processes[0]["state"] == "suspended"
    assert host.findings[0]["id"] == "x"


def test_what_several_tasks_tell_of_one_process_comes_together() -> None:
    host = record.event(through("claimed"), "preflight", BEGAN, {"processes": [{"pid": 71, "user": "ana"}]}, ended=True)
    host = record.event(host, "suspended", BEGAN, {"processes": [PROCESS]})
    host = record.event(host, "restored", BEGAN, {"processes": [{**PROCESS, "state": "running"}]})
    assert [(one["user"], one["state"], one["device_bytes"]) for one in host.processes] == [("ana", "running", 1 << 30)]


def test_what_is_not_known_now_does_not_hide_what_was() -> None:
    host = record.event(through("claimed", "suspending"), "suspended", BEGAN, {"processes": [PROCESS]})
    again = record.event(
        host, "claimed", BEGAN + 9, {"phase": "suspended", "processes": [{**PROCESS, "device_bytes": None}]}
    )
    assert again.processes[0]["device_bytes"] == 1 << 30


@pytest.mark.parametrize("marked", [True, False], ids=["another attempt", "undone first"])
def test_a_process_that_ended_after_it_was_put_back_is_not_counted_again(marked: bool) -> None:
    host = record.event(through("claimed"), "claimed", BEGAN, {"processes": [PROCESS, {"pid": 72, "state": "running"}]})
    host = through("undoing", "undone", host=host, at=BEGAN + 10)
    host = record.marked(host, attempt_of(("h1",), number=2)) if marked else host
    host = record.event(
        host, "claimed", BEGAN + 99, {"phase": "claimed", "processes": [{"pid": 80, "state": "running"}]}
    )
    assert [one["pid"] for one in host.processes] == [80]


@pytest.mark.parametrize("phase", ["suspended", "restored", "released"])
def test_what_was_read_again_is_all_that_there_is(phase: str) -> None:
    host = record.event(
        through("claimed"), "preflight", BEGAN, {"processes": [{"pid": 72}, {"pid": 71, "user": "ana"}]}
    )
    host = record.event(host, phase, BEGAN + 5, {"phase": phase, "processes": [PROCESS]})
    assert [(record._pid(one), one["user"]) for one in host.processes] == [(71, "ana")]
    row = {**ROW, "phase": phase, "processes": [PROCESS]}
    before = dataclasses.replace(host, processes=({"pid": 72, "state": "running"}, {"pid": 71, "user": "ana"}))
    assert [record._pid(one) for one in record.rebuilt(RUN_ID, "h1", {"drain": row}, before).processes] == [71]


def test_what_failed_on_the_way_of_a_finished_host_is_told_by_its_timeline_alone() -> None:
    host = record.failed(through("claimed", "suspending", "suspended", "maintenance"), BEGAN + 40, "no fan", "Settle")
    for done in (
        through("restoring", "restored", "released", host=host, at=BEGAN + 50),
        record.rebuilt(RUN_ID, "h1", {"drain": {**ROW, "phase": "released", "message": "no fan"}}, host),
    ):
        assert (done.outcome, done.message, done.next) == (record.FINISHED, "", "")
    assert "no fan" in [entry.text for entry in through("released", host=host, at=BEGAN + 50).timeline if entry.failed]


def test_findings_of_an_earlier_attempt_are_not_told_again() -> None:
    finding = {"id": "uvm_managed", "severity": "blocking", "subject": "PID 71"}
    host = record.event(through("claimed"), "preflight", BEGAN, {"findings": [finding]}, ended=True)
    twice = record.event(host, "preflight", BEGAN, {"findings": [finding]}, ended=True)
    assert twice.findings == (finding,)
    assert record.marked(twice, attempt_of(("h1",), number=2)).findings == ()


@pytest.mark.parametrize(
    ("mode", "kept"),
    [
        ("memory", ["both", "none", "suspend"]),
        ("disk", ["both", "dump", "none"]),
        ("", ["both", "dump", "none", "suspend"]),
    ],
)
def test_findings_about_the_other_mode_are_left_out(mode: str, kept: list[str]) -> None:
    findings: list[dict[str, object]] = [
        {"id": "both", "capabilities": ["suspend", "dump", "migrate"]},
        {"id": "dump", "capabilities": ["dump", "migrate"]},
        {"id": "none"},
        {"id": "suspend", "capabilities": ["suspend"]},
    ]
    host = record.event(dataclasses.replace(through("claimed"), mode=mode), "preflight", BEGAN, {"findings": findings})
    assert [one["id"] for one in host.findings] == kept
    assert not any("capabilities" in one for one in host.findings)


def test_the_estimate_is_that_of_gpu_preflight() -> None:
    told = {"estimate": {"device_bytes": 5, "image_bytes": 9, "total_seconds": {"suspend": 2.5}, "rates": {}}}
    host = record.event(through("claimed"), "preflight", BEGAN, told, ended=True)
    assert host.estimate == {"seconds": {"suspend": 2.5}, "bytes": 5}
    assert record.event(host, "preflight", BEGAN, {"estimate": host.estimate}).estimate == host.estimate


ROW = {
    "run_id": RUN_ID,
    "runs": ["20261129T000000-aaaaaa", RUN_ID],
    "attempt": 2,
    "phase": "suspended",
    "mode": "disk",
    "boot_id": "b",
    "processes": [PROCESS],
    "timeline": [
        {"phase": "suspending", "at": BEGAN + 5, "attempt": 1, "boot_id": "b", "message": ""},
        {"phase": "claimed", "at": BEGAN, "attempt": 1, "boot_id": "b", "message": ""},
        {"phase": "suspended", "at": BEGAN + 9, "attempt": 2, "boot_id": "b", "message": "4 processes"},
    ],
}


def test_a_record_comes_back_from_the_journal() -> None:
    host = record.rebuilt(RUN_ID, "h1", {"drain": ROW})
    assert (host.phase, host.attempt, host.mode, host.outcome) == ("suspended", 2, "disk", record.IN_PROGRESS)
    assert host.timeline == (
        Entry("claimed", BEGAN, BEGAN + 5, "", 1),
        Entry("suspending", BEGAN + 5, BEGAN + 9, "", 1),
        Entry("suspended", BEGAN + 9, None, "4 processes", 2),
    )
    assert host.processes[0]["executable"] == "/usr/bin/python3"


def test_what_a_host_does_not_know_is_kept_when_its_record_is_rebuilt() -> None:
    before = record.event(through("claimed"), "before_suspend", BEGAN + 1, {}, ended=True)
    before = record.failed(dataclasses.replace(before, batch=4), BEGAN + 2, "hook failed", "n")
    host = record.rebuilt(RUN_ID, "h1", {"drain": ROW}, before)
    assert (host.batch, host.outcome, host.message) == (4, record.FAILED, "hook failed")
    assert "before_suspend" in [entry.what for entry in host.timeline]
    released = {**ROW, "phase": "released"}
    assert record.rebuilt(RUN_ID, "h1", {"drain": released}, before).outcome == record.FINISHED


FAILURE = {"phase": "suspending", "attempt": 1, "at": BEGAN + 7, "message": "Look: no room"}


def test_why_it_failed_comes_back_from_the_journal_under_its_phase() -> None:
    host = record.rebuilt(RUN_ID, "h1", {"drain": {**ROW, "failures": [FAILURE]}})
    assert host.timeline[1] == Entry("suspending", BEGAN + 5, BEGAN + 9, "Look: no room", 1, True, BEGAN + 7)
    assert host.outcome == record.IN_PROGRESS, "a later attempt has got further"
    now = {**FAILURE, "phase": "suspended", "attempt": 2, "at": BEGAN + 99}
    host = record.rebuilt(RUN_ID, "h1", {"drain": {**ROW, "failures": [FAILURE, now], "message": "Look: no room"}})
    assert (host.outcome, host.message) == (record.FAILED, "Look: no room")
    assert [entry.failed_at for entry in host.timeline] == [None, BEGAN + 7, BEGAN + 99]


def test_why_it_failed_is_kept_where_the_journal_has_not_heard_of_it() -> None:
    before = record.failed(through("claimed", "suspending"), BEGAN + 12, "no room", "n")
    host = record.rebuilt(RUN_ID, "h1", {"drain": ROW}, before)
    assert [(entry.what, entry.failed_at, entry.text) for entry in host.timeline] == [
        ("claimed", None, ""),
        ("suspending", BEGAN + 12, "no room"),
        ("suspended", None, "4 processes"),
    ]


@pytest.mark.parametrize("told", [{}, {"drain": None}, {"drain": {**ROW, "run_id": "other", "runs": ["other"]}}])
def test_a_host_whose_journal_does_not_know_the_run_is_untouched(told: dict[str, object]) -> None:
    host = record.rebuilt(RUN_ID, "h1", told, through("claimed", "suspending"))
    assert (host.outcome, host.phase, host.timeline) == (record.UNTOUCHED, "", ())


def test_records_survive_json() -> None:
    attempt = attempt_of(("h1", "h2"), number=2, stopped="budget")
    run = run_of(attempt_of(("h1", "h2")), attempt)
    assert record.run_from_json(json.loads(json.dumps(record.run_to_json(run)))) == run
    host = record.failed(record.event(through("claimed"), "suspended", BEGAN, {"processes": [PROCESS]}), 1.5, "m", "n")
    assert record.host_from_json(json.loads(json.dumps(record.host_to_json(host)))) == host
    older = record.host_to_json(host)
    for entry in older["timeline"]:
        del entry["failed_at"]
    assert record.host_from_json(older).timeline[-1].failed


def test_the_last_attempt_of_each_slice_is_the_current_one() -> None:
    attempts = (attempt_of(("a",)), attempt_of(("b",), slice=2), attempt_of(("a",), number=3))
    run = run_of(*attempts, order=("a", "b"))
    assert run.current() == (attempts[2], attempts[1])
    assert run.last(7) is None
    changed = run.with_attempt(attempt_of(("a",), number=3, batch=9))
    assert [one.batch for one in changed.attempts] == [1, 1, 9]
