# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which failures stop a run, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.budget import Verdict, verdict
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Attempt, Host, Run
from tests.unit.plugins.run.making import BEGAN, RUN_ID, attempt_of, in_batches, run_of

NAMES = tuple(f"h{number}" for number in range(1, 8))


def judged(run: Run, hosts: dict[str, Host], attempt: Attempt | None = None) -> Verdict:
    return verdict(run, hosts, run.attempts[-1] if attempt is None else attempt)


def finished(host: Host) -> Host:
    return record.event(host, "released", BEGAN + 60, {})


def failed(host: Host, why: str = "no") -> Host:
    return record.failed(record.event(host, "claimed", BEGAN, {}), BEGAN + 5, why, "")


def at_batch(number: int, **settings: Any) -> tuple[Run, dict[str, Host]]:
    """Batches of 1, 2, 2, 2; all before this one finished."""
    attempt = attempt_of(NAMES, batch=number)
    run = run_of(attempt, **{"serial": [1, 2], **settings})
    hosts = in_batches(attempt)
    return run, {name: finished(host) if host.batch < number else host for name, host in hosts.items()}


def test_nothing_failed() -> None:
    run, hosts = at_batch(3)
    assert judged(run, hosts) == Verdict(False, (), 0, False, (), "")


@pytest.mark.parametrize("phase", ["", "suspending"])
def test_a_host_that_left_no_word_in_an_earlier_batch_counts(phase: str) -> None:
    run, hosts = at_batch(3)
    silent = record.marked(Host(RUN_ID, "h2"), attempt_of(NAMES, batch=2))
    hosts["h2"] = record.event(silent, phase, BEGAN, {}) if phase else silent
    told = judged(run, hosts)
    assert told.stop
    assert told.failed == (("h2", f"no word since {f'{phase} at 2026-11-30 08:00:00Z' if phase else 'its turn came'}"),)


def test_a_host_of_this_batch_is_not_judged_yet() -> None:
    run, hosts = at_batch(3)
    hosts["h4"] = record.event(hosts["h4"], "claimed", BEGAN, {})
    assert not judged(run, hosts).failed


@pytest.mark.parametrize("outcome", [record.FAILED, record.UNDONE, record.LOST])
def test_one_more_than_allowed_stops(outcome: str) -> None:
    run, hosts = at_batch(4, failures_allowed=1)
    hosts["h2"] = replace(hosts["h2"], outcome=outcome, message="why")
    told = judged(run, hosts)
    assert (told.stop, told.failed) == (False, (("h2", f"{outcome}: why"),))
    assert told.message.startswith(f"Run {RUN_ID}: 1 of 7 hosts failed, 1 may (gpu_drain_failures_allowed): h2:")
    hosts["h3"] = replace(hosts["h3"], outcome=outcome)
    assert judged(run, hosts).stop


def test_a_failed_host_of_this_batch_counts() -> None:
    run, hosts = at_batch(3)
    hosts["h4"] = failed(hosts["h4"])
    assert judged(run, hosts).failed == (("h4", "failed: no"),)


def test_the_canary_stops_whatever_the_budget() -> None:
    run, hosts = at_batch(2, failures_allowed=5)
    hosts["h1"] = failed(hosts["h1"], "preflight: no")
    told = judged(run, hosts)
    assert (told.stop, told.canary) == (True, True)
    for words in ("before batch 2", "canary", "h1: failed: preflight: no", "6 untouched hosts stay", RUN_ID):
        assert words in told.message
    assert (
        f"the same command again with -e gpu_drain_run_id={RUN_ID}, --limit 'all:!h1' and gpu_drain_failures_allowed: 5"
        in told.message
    )


def test_without_a_canary_batch_the_budget_alone_counts() -> None:
    run, hosts = at_batch(2, failures_allowed=1, serial=[1])
    hosts["h1"] = failed(hosts["h1"])
    assert not judged(run, hosts).stop
    many = replace(run, settings={**run.settings, "failures_allowed": 0})
    assert judged(many, hosts).stop


def test_an_earlier_canary_is_none_of_this_attempt() -> None:
    first, second = attempt_of(NAMES, batch=4), attempt_of(NAMES[3:], number=2, batch=2)
    run = run_of(first, second, serial=[1, 2], failures_allowed=1)
    hosts = {**in_batches(first), **in_batches(second)}
    hosts = {name: failed(host) if name == "h1" else finished(host) for name, host in hosts.items()}
    told = judged(run, hosts)
    assert (told.stop, told.failed) == (False, (("h1", "failed: no"),))


def test_what_failed_before_counts_only_once_it_was_tried_again() -> None:
    first, second = attempt_of(NAMES, batch=2), attempt_of(("h2", "h1", *NAMES[2:]), number=2, batch=1)
    run = run_of(first, second, serial=[1, 2], order=NAMES)
    hosts = {name: failed(host) for name, host in in_batches(first).items()}
    hosts["h2"] = record.marked(hosts["h2"], second)
    assert not judged(run, hosts).failed
    hosts["h2"] = failed(hosts["h2"], "again")
    later = replace(second, batch=2)
    hosts["h1"] = record.marked(hosts["h1"], later)
    told = judged(run.with_attempt(later), hosts, later)
    assert (told.stop, told.failed) == (True, (("h2", "failed: again"),))


@pytest.mark.parametrize("outcome", ["failed", "killed", "no word"])
def test_what_this_attempt_leaves_out_counts(outcome: str) -> None:
    first, second = attempt_of(NAMES, batch=2), attempt_of(NAMES[2:], number=2, batch=1)
    run = run_of(first, second, serial=[1, 2], order=NAMES)
    hosts = in_batches(first)
    hosts["h1"] = finished(hosts["h1"])
    if outcome == "failed":
        hosts["h2"] = failed(hosts["h2"])
    elif outcome == "killed":
        hosts["h2"] = record.event(hosts["h2"], "suspended", BEGAN, {})
    assert [name for name, _why in judged(run, hosts).failed] == ["h2"]


def test_a_host_that_no_attempt_reached_does_not_count() -> None:
    first, second = attempt_of(NAMES, batch=1), attempt_of(NAMES[:1], number=2, batch=1)
    hosts = {"h1": record.marked(Host(RUN_ID, "h1"), second)}
    assert not judged(run_of(first, second), hosts).failed


def test_slices_share_one_budget() -> None:
    one, two = attempt_of(NAMES[:3], batch=2), attempt_of(NAMES[3:], batch=2, slice=2)
    run = run_of(one, two, serial=[1, 2], order=NAMES, failures_allowed=1)
    hosts = {**in_batches(one), **in_batches(two)}
    hosts["h1"] = finished(hosts["h1"])
    told = judged(run, hosts, one)
    assert (told.stop, [name for name, _why in told.failed]) == (False, ["h4"])
    hosts["h2"] = failed(hosts["h2"])
    assert judged(run, hosts, one).stop
    assert judged(run, hosts, two).stop


def test_the_canary_of_another_slice_does_not_stop_this_one() -> None:
    one, two = attempt_of(NAMES[:3], batch=2), attempt_of(NAMES[3:], batch=2, slice=2)
    run = run_of(one, two, serial=[1, 2], order=NAMES, failures_allowed=1)
    hosts = {**in_batches(one), **in_batches(two)}
    hosts["h1"], hosts["h4"] = failed(hosts["h1"]), finished(hosts["h4"])
    assert judged(run, hosts, one).stop
    assert not judged(run, hosts, two).stop


def over_budget(*phases: str) -> Verdict:
    """Batch 3, whose two hosts are in these phases already, and h2 had failed."""
    first, second = attempt_of(NAMES, batch=4), attempt_of(NAMES[3:], number=2, batch=1)
    run = run_of(first, second, serial=[2], order=NAMES)
    hosts = in_batches(first)
    hosts = {name: failed(host) if name == "h2" else finished(host) for name, host in hosts.items()}
    for name, phase in zip(("h4", "h5"), phases, strict=True):
        host = record.marked(Host(RUN_ID, name), attempt_of(NAMES, batch=3))
        hosts[name] = record.marked(record.event(host, phase, BEGAN, {}) if phase else host, second)
    return judged(run, hosts)


@pytest.mark.parametrize("phase", ["suspending", "suspended", "maintenance", "restoring", "restored"])
def test_a_batch_of_suspended_hosts_is_finished_whatever_the_budget(phase: str) -> None:
    told = over_budget(phase, "suspended")
    assert not told.stop
    assert told.failed
    assert "Batch 1 goes on: all its hosts are suspended already" in told.message


@pytest.mark.parametrize("phase", ["", "claimed", "undoing"])
def test_a_batch_with_both_stops_and_says_how_to_finish_the_suspended(phase: str) -> None:
    told = over_budget(phase, "suspended")
    assert (told.stop, told.finish) == (True, ("h5",))
    again = f"the same command again with -e gpu_drain_run_id={RUN_ID}"
    assert f"h5 of this batch is suspended: {again} and --limit h5 finishes them now" in told.message


def test_many_failures_are_not_all_named() -> None:
    names = tuple(f"n{number:03}" for number in range(60))
    attempt = attempt_of(names, batch=2)
    run = run_of(attempt, serial=[40, 20])
    hosts = {name: failed(host) if host.batch == 1 else host for name, host in in_batches(attempt, [40, 20]).items()}
    told = judged(run, hosts)
    assert len(told.failed) == 40
    assert "40 of 60 hosts failed" in told.message
    assert "and 20 more" in told.message
    assert "n039" not in told.message
