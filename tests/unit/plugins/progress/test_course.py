# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a drain, event by event, and how long it still takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._progress import course, lines
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._progress.course import Course, Need
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record

GIB = 1 << 30
BEGUN = {"run_id": "r1", "order": ["h1", "h2", "h3", "h4", "h5"], "finished_hosts": ["h0"], "serial": [1, 2]}


def look(size: Any = GIB, seconds: Any = 10.0, mode: str = "suspend", processes: int = 2) -> dict[str, Any]:
    return {
        "capabilities": {name: {"required": name == mode} for name in ("suspend", "dump", "migrate")},
        "estimate": {"device_bytes": size, "total_seconds": {mode: seconds, "migrate": 9999.0}},
        "processes": [{}] * processes,
    }


def begun(planned: dict[str, Need] | None = None) -> Course:
    made = Course(planned)
    made.begin(BEGUN)
    return made


def through(made: Course, name: str) -> None:
    for phase in ("claimed", "suspending", "suspended", "maintenance", "restoring", "restored", "released"):
        assert made.reached(name, {"phase": phase})


def test_nothing_is_known_before_something_is_done() -> None:
    made = begun()
    assert made.left(0).seconds is None
    assert lines.summary(made, 0) == (
        "batch 0/3; 1/6 hosts done (5 untouched); ETA unknown: nothing was done yet; without the maintenance"
    )


def test_without_a_run_there_is_no_end_to_tell() -> None:
    made = Course()
    made.reached("h1", {"phase": "suspended"})
    assert made.left(5).seconds is None and "how many hosts" in made.left(5).why
    assert lines.summary(made, 0).startswith("0/1 host done (1 suspended); ETA unknown: how many hosts")


def test_estimates_alone_are_the_least() -> None:
    """One host of a batch without an estimate says nothing about its batch; the slowest of a batch counts."""
    made = begun({"h1": Need(GIB, 4.0), "h2": Need(GIB, 6.0), "h3": Need(GIB, 20.0), "h4": Need(GIB, 5.0)})
    left = made.left(0)
    assert (left.seconds, left.least) == (24.0, True)
    made.begin_batch(100)
    assert made.left(300).seconds == 24.0
    told = lines.eta(made.left(300), 300)
    assert told == "ETA unknown: at least 24 s more (no batch is over yet; without the maintenance)"


def test_what_batches_took_is_what_others_will_take() -> None:
    made = begun()
    made.begin_batch(1000)
    through(made, "h1")
    made.end_batch(1060)
    assert made.left(1060).seconds == pytest.approx(2 * 60)
    made.begin_batch(1060)
    assert made.left(1080).seconds == pytest.approx(40 + 60)
    # Longer than expected: what is over it is not taken off the others.
    assert made.left(1500).seconds == pytest.approx(60)
    made.begin_batch(1560)
    # The mean of 60 s and 500 s; the last batch has begun.
    assert made.left(1560).seconds == pytest.approx(280)
    made.end_batch(1700)
    assert made.left(1700).seconds == 0
    assert lines.eta(made.left(1700), 1700).startswith("ETA 00:28Z, in about 0.0 s")


def test_with_a_plan_batches_differ_by_their_slowest_host() -> None:
    plan = {f"h{number}": Need(GIB, seconds) for number, seconds in enumerate((10.0, 10.0, 100.0, 30.0, 30.0), 1)}
    made = begun(plan)
    made.begin_batch(0)
    made.end_batch(60)
    # 50 s of the first were no copying: maintenance, tasks.
    assert made.left(60).seconds == pytest.approx(100 + 50 + 30 + 50)


def test_a_look_at_the_host_counts_more_than_the_plan() -> None:
    made = begun({"h1": Need(GIB, 4.0)})
    made.looked("h1", look(3 * GIB, 7.5))
    assert made.hosts["h1"].need == Need(3 * GIB, 7.5)
    made.looked("h1", look(3 * GIB, 30.5, "dump"))
    assert made.hosts["h1"].need.seconds == 30.5
    made.reached("h1", {"phase": "suspended", "processes": [{"device_bytes": 2 * GIB}, {"device_bytes": GIB // 2}]})
    assert made.hosts["h1"].size == 2 * GIB + GIB // 2
    made.reached("h1", {"phase": "suspended", "processes": [{"device_bytes": None}]})
    assert made.hosts["h1"].size == 2 * GIB + GIB // 2


def test_memory_goes_away_and_comes_back() -> None:
    made = begun()
    for name in ("h1", "h2"):
        made.looked(name, look())
    made.reached("h1", {"phase": "suspending"})
    assert made.sizes() == (0, 0, 2 * GIB)
    made.reached("h1", {"phase": "suspended"})
    made.reached("h2", {"phase": "restored"})
    assert made.sizes() == (GIB, GIB, 2 * GIB)
    assert lines.memory(made) == "1.0 GiB suspended, 1.0 GiB back, of 2.0 GiB, 3 hosts not looked at"


def test_a_failure_is_told_once_and_what_came_of_it() -> None:
    made = begun()
    made.reached("h1", {"phase": "suspending"})
    assert made.failed("h1") and not made.failed("h1")
    assert lines.of_host(made, "h1") == "h1: failed in suspending"
    assert made.counts()[record.FAILED] == 1
    assert made.reached("h1", {"phase": "undone"})
    assert lines.of_host(made, "h1") == "h1: undone after a failure"
    assert lines.hosts(made) == "1/6 hosts done (1 put back, 4 untouched)"
    made.failed("h2")
    made.reached("h2", {"phase": "released"})
    assert made.counts()[record.FINISHED] == 1, "what failed is not finished by being let go"


def test_the_same_phase_again_is_nothing_new() -> None:
    made = begun()
    assert made.reached("h1", {"phase": "claimed"})
    assert not made.reached("h1", {"phase": "claimed"})


@pytest.mark.parametrize(
    "told",
    [
        {"phase": "\x1b[2Jowned"},
        {"phase": ["claimed"]},
        {"phase": None, "processes": 4},
        {},
        {"phase": {"claimed": 1}, "processes": [1, None]},
    ],
    ids=repr,
)
def test_a_phase_that_is_none_changes_nothing(told: dict[str, Any]) -> None:
    made = begun()
    assert not made.reached("h1", told)
    assert made.hosts["h1"].phase == ""


@pytest.mark.parametrize("value", [-1, True, "12", None, float("nan"), float("inf"), 1 << 70, [1], {"a": 1}], ids=repr)
def test_a_number_that_is_none_is_not_known(value: Any) -> None:
    made = begun()
    made.looked("h1", look(size=value, seconds=value))
    assert made.hosts["h1"].need == Need()
    made.reached("h1", {"phase": "suspended", "processes": [{"device_bytes": value}]})
    assert made.hosts["h1"].size is None
    lines.summary(made, 0)


@pytest.mark.parametrize("told", [{"estimate": 4}, {"estimate": {"total_seconds": [1]}}, {"capabilities": [1]}, {}])
def test_a_look_that_is_none(told: dict[str, Any]) -> None:
    made = begun()
    made.looked("h1", told)
    assert made.hosts["h1"].need == Need()


def test_names_of_hosts_are_escaped_and_cut() -> None:
    made = Course()
    name = "h1\x1b[2J\nprogress: fake " + "x" * 100
    made.reached(name, {"phase": "claimed"})
    told = lines.of_host(made, name)
    assert told.startswith("h1\\x1b[2J\\nprogress: fake") and told.endswith("...: claimed") and told.isprintable()


def test_a_serial_that_is_not_understood() -> None:
    made = Course()
    made.begin({**BEGUN, "serial": ["many"]})
    assert made.batches == 0 and made.left(0).seconds is None


def test_a_plan() -> None:
    made = course.planned({"hosts": [{"host": "h1", "bytes": GIB, "seconds": 1.5}, {"host": "h2", "bytes": None}]})
    assert made == {"h1": Need(GIB, 1.5), "h2": Need()}


@pytest.mark.parametrize("made", [[], {}, {"hosts": {}}, {"hosts": [1]}, {"hosts": [{"bytes": 1}]}, None], ids=repr)
def test_what_is_no_plan(made: Any) -> None:
    with pytest.raises(ValueError, match="no list of hosts"):
        course.planned(made)


def test_the_line_in_the_guide() -> None:
    hosts = [f"h{number}" for number in range(1, 17)]
    made = Course()
    made.begin({"run_id": "r", "order": hosts, "finished_hosts": [], "serial": [1, 4]})
    made.begin_batch(0)
    made.looked("h1", look(32 * GIB))
    through(made, "h1")
    made.end_batch(600)
    made.begin_batch(600)
    for name in ("h2", "h3", "h4", "h5"):
        made.looked(name, look(64 * GIB))
        made.reached(name, {"phase": "suspending"})
    made.reached("h3", {"phase": "suspended"})
    told = f"progress: {lines.of_host(made, 'h3')} | {lines.summary(made, 620)}"
    guide = (Path(__file__).parents[4] / "docs/drain.md").read_text()
    assert told in " ".join(guide.split()), told
