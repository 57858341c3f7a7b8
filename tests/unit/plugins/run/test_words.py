# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said to the operator."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Entry, Host
from tests.unit.plugins.run.making import BEGAN, RUN_ID, attempt_of, run_of


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (119.4, "119 s"),
        (120, "2 min 00 s"),
        (3725, "62 min 05 s"),
        (7200, "2 h 00 min"),
        (172799, "2 d 0 h"),
        (100 * 3600, "4 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (9 << 30, "9.0 GiB"),
        (3 << 40, "3.0 TiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert words.size(count) == text


def test_where_a_host_was_last_heard_of() -> None:
    assert words.where(Host(RUN_ID, "h1")) == "its turn came"
    phase = Entry("claimed", BEGAN)
    assert words.where(Host(RUN_ID, "h1", timeline=(phase,))) == "claimed at 2026-11-30 08:00:00Z"
    hook = Entry("before_suspend", BEGAN + 5, BEGAN + 8)
    told = words.where(Host(RUN_ID, "h1", timeline=(phase, hook)))
    assert told == "before_suspend (claimed) at 2026-11-30 08:00:08Z"


@pytest.mark.parametrize(
    ("outcome", "phase", "said"),
    [
        (record.UNTOUCHED, "", ["Nothing was done", "same command"]),
        (record.UNDONE, "undone", ["as before the run", "Settle why", "same command"]),
        (record.FAILED, "claimed", ["recover takes this host back", "same command"]),
        (record.FAILED, "suspending", ["recover takes this host back", "same command"]),
        (record.IN_PROGRESS, "undoing", ["recover takes this host back", "same command"]),
        (record.FAILED, "suspended", ["stay so", "gpu_drain_maintenance_done: true", "same command"]),
        (record.FAILED, "maintenance", ["stay so", "repeats the maintenance", "gpu_drain_maintenance_done: true"]),
        (record.FAILED, "restoring", ["recover finishes this host", "same command"]),
        (record.FAILED, "restored", ["recover finishes this host", "same command"]),
        (record.LOST, "restoring", ["What lives is restored", "gpu_drain_accept_loss: true"]),
        (record.FAILED, "", ["Settle why it failed", "same command"]),
    ],
)
def test_what_is_next_for_a_host(outcome: str, phase: str, said: list[str]) -> None:
    told = words.of_host(Host(RUN_ID, "h1", outcome=outcome, phase=phase))
    assert [word for word in said if word not in told] == []
    assert RUN_ID in told or outcome == record.LOST


def test_what_was_under_way_when_its_run_ended_has_not_failed() -> None:
    for phase in record.PHASES[:6]:
        told = words.of_host(Host(RUN_ID, "h1", outcome=record.IN_PROGRESS, phase=phase))
        assert "failed" not in told and f"Run the same command again with -e gpu_drain_run_id={RUN_ID}" in told


@pytest.mark.parametrize("outcome", [one for one in record.OUTCOMES if one != record.FINISHED])
@pytest.mark.parametrize("phase", ["", *record.PHASES])
def test_the_same_command_is_never_told_without_the_id_of_its_run(outcome: str, phase: str) -> None:
    """The command may have been given `new`, and would begin another one."""
    host = Host(RUN_ID, "h1", outcome=outcome, phase=phase)
    for told in (words.of_host(host), words.of_run(run_of(attempt_of(("h1",))), [host])):
        commands = told.split("same command")[1:]
        assert commands and all(one.startswith(f" again with -e gpu_drain_run_id={RUN_ID}") for one in commands)


def test_nothing_is_next_for_a_finished_host_and_run() -> None:
    host = Host(RUN_ID, "h1", outcome=record.FINISHED, phase="released")
    assert words.of_host(host) == ""
    assert words.of_run(run_of(attempt_of(("h1",))), [host]) == ""


def test_what_is_next_for_a_run() -> None:
    hosts = [
        Host(RUN_ID, "h1", outcome=record.FINISHED),
        Host(RUN_ID, "h2", outcome=record.FAILED),
        Host(RUN_ID, "h3", outcome=record.IN_PROGRESS),
    ]
    told = words.of_run(run_of(attempt_of(("h1", "h2", "h3", "h4"))), hosts)
    assert told == (
        "Settle what failed on h2. Look at h3: the last word says where each was (gpufleet.checkpoint.status asks the "
        f"hosts). Run the same command again with -e gpu_drain_run_id={RUN_ID}: it resumes this run. It tries 3 hosts; "
        "finished ones are only looked at again."
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        (True, "true"),
        ([1, "10%"], "1, 10%"),
        ([], "-"),
        ([["reboot"], []], "reboot, -"),  # one host declares a reboot, another one nothing
        ({"all": True, "users": [], "unit": None, "gpus": ["0", "1"]}, "all: true, gpus: 0, 1"),
        (3600, "3600"),
    ],
)
def test_settings(value: Any, text: str) -> None:
    assert words.setting(value) == text


def test_names_are_counted_when_they_are_many() -> None:
    assert words.names([f"h{number}" for number in range(23)]).endswith("h18, h19 and 3 more")
    assert words.names(["a", "b"]) == "a, b"
    assert (words.plural(1, "process", "processes"), words.plural(2, "host")) == ("1 process", "2 hosts")
