# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which run a command belongs to, which hosts it still has to do, and when it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record, state
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Attempt, Controller, Host, Run
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.state import Begun, Known, Refused, Wanted

ME = Controller("here", "me", 10, 100, "boot")
OTHER = Controller("there", "you", 20, 200, "boot")
NOW = 1_000_000.0


def asked(*names: str, run: Mapping[str, Any] | None = None, **of_hosts: Any) -> Wanted:
    hosts = {
        "mode": "memory",
        "store": "/images",
        "scheduler": "none",
        "select": {"all": True},
        "declares": [],
        "window": 3600,
        **of_hosts,
    }
    whole = {
        "failures_allowed": 0,
        "run_id": "",
        "run_directory": "/runs",
        "run_directory_shared": False,
        "slices": 1,
        "slice": 1,
        "serial": [1, "10%"],
        "take_over": "",
        "notify_command": [],
        **(run or {}),
    }
    return state.wanted({name: {"run": whole, "host": hosts} for name in names or ("h1", "h2", "h3")})


def known(
    run_id: str = "old",
    outcomes: Mapping[str, str] | None = None,
    controller: Controller = ME,
    settings: Mapping[str, Any] | None = None,
    attempts: int = 1,
) -> Known:
    told = outcomes or {"h1": record.FINISHED, "h2": record.FAILED, "h3": record.UNTOUCHED}
    same = {"mode": "memory", "store": "/images", "scheduler": "none"}
    of_hosts = {name: {**same, **(settings or {})} for name in told}
    made = tuple(Attempt(number, 1, controller, NOW - 60, tuple(told)) for number in range(1, attempts + 1))
    run = Run(run_id, "drain", NOW - 60, {"of_hosts": of_hosts}, "", tuple(told), made)
    return Known(run, {name: Host(run_id, name, attempts, outcome=outcome) for name, outcome in told.items()})


def begin(wanted: Wanted, *runs: Known, lives: bool | None = False) -> Begun:
    return state.begin(wanted, runs, ME, lambda _controller: lives, NOW, "made-up")


def test_a_first_command_begins_a_run_over_all_its_hosts() -> None:
    begun = begin(asked())
    assert (begun.run.run_id, begun.attempt.attempt, begun.claim_attempt, begun.resumed) == ("made-up", 1, 1, False)
    assert begun.order == ("h1", "h2", "h3") == begun.run.order == begun.attempt.hosts
    assert begun.run.settings["serial"] == [1, "10%"]


def test_the_same_command_again_goes_on_with_the_run_and_says_so() -> None:
    begun = begin(asked(), known())
    assert (begun.run.run_id, begun.attempt.attempt, begun.resumed) == ("old", 2, True)
    assert (begun.order, begun.finished) == (("h2", "h3"), ("h1",))
    assert "goes on with run old, begun 60 s ago" in begun.said[0]
    assert "gpu_drain_run_id: new" in begun.said[0]


def test_half_done_hosts_come_first_then_failed_then_untouched_each_in_the_order_of_the_inventory() -> None:
    outcomes = {
        "a": record.UNTOUCHED,
        "b": record.UNDONE,
        "c": record.IN_PROGRESS,
        "d": record.LOST,
        "e": record.IN_PROGRESS,
        "f": record.FAILED,
        "g": record.FINISHED,
    }
    begun = begin(asked(*outcomes), known(outcomes=outcomes))
    assert begun.order == ("c", "e", "b", "d", "f", "a")
    assert begun.finished == ("g",)


def test_a_finished_run_is_not_gone_on_with() -> None:
    begun = begin(asked("h1"), known(outcomes={"h1": record.FINISHED}))
    assert (begun.run.run_id, begun.order) == ("made-up", ("h1",))


def test_an_unfinished_run_that_these_hosts_have_finished_is_another_one() -> None:
    assert begin(asked("h1"), known()).run.run_id == "made-up"


def test_a_host_that_is_left_out_is_named() -> None:
    begun = begin(asked("h2"), known())
    assert begun.order == ("h2",)
    assert begun.run.order == ("h1", "h2", "h3")
    assert begun.said[1] == "Not finished, and not among the hosts of this command: h3."


def test_a_host_that_is_new_in_the_inventory_joins() -> None:
    begun = begin(asked("h2", "h4"), known())
    assert begun.order == ("h2", "h4")
    assert begun.run.order == ("h1", "h2", "h3", "h4")


def test_a_run_that_is_at_work_is_refused_however_it_is_named() -> None:
    for more in ({}, {"run_id": "old"}, {"run_id": "old", "take_over": "old"}):
        with pytest.raises(Refused, match=r"attempt 1 is at work: PID 10 of me on here, since 1970"):
            begin(asked(run=more), known(), lives=True)


def test_a_run_of_another_controller_needs_to_be_taken_over_by_its_name() -> None:
    run = known(controller=OTHER)
    for more in ({}, {"run_id": "old"}, {"take_over": "another"}):
        with pytest.raises(Refused, match=r"begun on another controller, there, by you .* gpu_drain_take_over: old"):
            begin(asked(run=more), run, lives=None)
    assert begin(asked(run={"run_id": "old", "take_over": "old"}), run, lives=None).attempt.attempt == 2


def test_the_run_that_is_taken_over_is_the_one_that_is_gone_on_with() -> None:
    """The refused command before has begun a run of its own, and status may have made the record of the other one."""
    refused, dead = known("refused", {"h1": record.FAILED}), known("dead", {"h1": record.FAILED}, OTHER)
    with pytest.raises(Refused, match="2 runs over these hosts are not finished"):
        begin(asked("h1"), refused, dead, lives=None)
    begun = begin(asked("h1", run={"take_over": "dead"}), refused, dead, lives=None)
    assert (begun.run.run_id, begun.attempt.attempt) == ("dead", 2)
    assert begin(asked("h1", run={"take_over": "elsewhere"}), refused).run.run_id == "refused"


def test_other_settings_are_refused_with_both_ways_on() -> None:
    for other, words in (
        ({"mode": "disk"}, "gpu_drain_mode of h2 was disk and is memory"),
        ({"store": "/other"}, "gpu_drain_store of h2 was /other and is /images"),
        ({"scheduler": "slurm"}, "gpu_drain_scheduler of h3 was slurm and is none"),
    ):
        with pytest.raises(Refused) as refused:
            begin(asked(), known(settings=other))
        for word in (words, "gpu_drain_run_id: old", "gpu_drain_run_id: new"):
            assert word in str(refused.value)
        assert begin(asked(run={"run_id": "old"}), known(settings=other)).resumed
        assert begin(asked(run={"run_id": "new"}), known(settings=other)).run.run_id == "made-up"


def test_of_two_unfinished_runs_none_is_guessed() -> None:
    with pytest.raises(Refused, match=r"2 runs over these hosts are not finished: old .*; older "):
        begin(asked(), known("old"), known("older"))
    assert begin(asked(run={"run_id": "older"}), known("old"), known("older")).run.run_id == "older"


def test_a_run_whose_record_is_lost_takes_the_next_attempt_of_each_host() -> None:
    begun = begin(asked(run={"run_id": "lost"}))
    assert (begun.run.run_id, begun.attempt.attempt, begun.claim_attempt) == ("lost", 1, 0)


def test_an_attempt_is_later_than_any_that_a_host_has_seen() -> None:
    run = known()
    seen = Known(run.run, {**run.hosts, "h3": Host("old", "h3", 7)})
    assert begin(asked(), seen).attempt.attempt == 8


def test_what_holds_for_the_whole_run_is_the_same_on_all_hosts() -> None:
    settings = {name: {"run": {"failures_allowed": allowed}, "host": {}} for name, allowed in (("a", 1), ("b", 2))}
    with pytest.raises(Refused, match="gpu_drain_failures_allowed: it is 1 on a and 2 on b"):
        state.wanted(settings)


@pytest.mark.parametrize(
    ("run", "of_hosts", "words"),
    [
        ({"run_id": "a b"}, {}, '"a b" is no name of a run'),
        ({"serial": ["x"]}, {}, "gpu_drain_serial: x is not understood"),
        ({"failures_allowed": -1}, {}, 'gpu_drain_failures_allowed: it is "-1"'),
        ({"slice": 3, "slices": 2}, {}, "it is 3 of 2"),
        ({"slices": 2, "run_id": "r"}, {}, "gpu_drain_run_directory_shared is not true"),
        ({"slices": 2, "run_directory_shared": True}, {}, "there is no gpu_drain_run_id"),
        ({}, {"mode": "ram"}, 'gpu_drain_mode: it is "ram" for h1'),
        ({}, {"scheduler": "pbs"}, 'gpu_drain_scheduler: it is "pbs" for h1'),
        ({}, {"declares": ["rebot"]}, 'gpu_drain_declares: it has "rebot" for h1'),
        ({}, {"declares": ["reboot"]}, "it has reboot for h1, and gpu_drain_mode is memory"),
        ({}, {"declares": "reboot"}, "it has reboot for h1, and gpu_drain_mode is memory"),
        (
            {},
            {"declares": ["driver_change"], "mode": "disk"},
            "it has driver_change for h1, and gpu_drain_mode is disk",
        ),
        (
            {},
            {"scheduler": "command", "scheduler_commands": {"drain": ["/bin/x"], "release": []}},
            "gpu_drain_scheduler_release_command: it is - for h1",
        ),
        (
            {},
            {"scheduler": "command", "scheduler_commands": {"drain": "/bin/x", "release": ["/bin/x"]}},
            "gpu_drain_scheduler_drain_command: it is /bin/x for h1",
        ),
    ],
)
def test_what_can_not_be_is_refused(run: dict[str, Any], of_hosts: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as refused:
        asked(run=run, **of_hosts)
    assert words in str(refused.value)


def test_what_is_declared_can_be() -> None:
    asked(declares=["reboot", "gpu_reset"], mode="disk")
    asked(declares=["driver_change", "gpu_reset"])
    asked(scheduler="command", scheduler_commands={"drain": ["/bin/x"], "release": ["/bin/y"]})


def never_claimed(run_id: str = "refused", **more: Any) -> Known:
    """The canary was refused when it was to be claimed; the others had no turn."""
    run = known(run_id, {"h1": record.FAILED, "h2": record.UNTOUCHED, "h3": record.UNTOUCHED}, **more)
    refused = Host(run_id, "h1", 1, batch=1, outcome=record.FAILED, refused=True)
    return Known(run.run, {**run.hosts, "h1": refused})


def test_a_run_that_never_claimed_a_host_keeps_none() -> None:
    assert begin(asked(mode="disk"), never_claimed(), never_claimed("another")).run.run_id == "made-up"
    assert begin(asked(), never_claimed(), known()).run.run_id == "old"
    assert begin(asked(), never_claimed(controller=OTHER), lives=None).run.run_id == "made-up"
    before_any_batch = known(outcomes={"h1": record.UNTOUCHED})
    assert begin(asked(), before_any_batch).run.run_id == "made-up"
    named = begin(asked(run={"run_id": "refused"}), never_claimed())
    assert (named.run.run_id, named.attempt.attempt) == ("refused", 2)
    with pytest.raises(Refused, match="attempt 1 is at work"):
        begin(asked(), never_claimed(), lives=True)


@pytest.mark.parametrize(
    "host",
    [
        Host("old", "h1", 1, batch=1),
        Host("old", "h1", 1, batch=1, outcome=record.FAILED, message="no word since its turn came"),
        Host("old", "h1", 2, batch=1, outcome=record.FAILED, phase="suspended", refused=True),
    ],
)
def test_a_run_that_may_have_claimed_a_host_is_gone_on_with(host: Host) -> None:
    """Whoever was killed while it claimed one, or hears no more of it, does not know."""
    run = known(outcomes={"h1": record.UNTOUCHED})
    assert begin(asked("h1"), Known(run.run, {"h1": host})).run.run_id == "old"


def test_a_slice_is_fenced_by_its_own_attempts() -> None:
    shared = {"run_id": "old", "run_directory_shared": True, "slices": 2, "slice": 2}
    begun = begin(asked("h2", run=shared), known(attempts=3), lives=True)
    assert (begun.attempt.slice, begun.attempt.attempt) == (2, 4)


def test_a_batch_is_the_one_that_was_asked_for() -> None:
    attempt = Attempt(1, 1, ME, NOW, ("a", "b", "c", "d"), batch=1)
    assert state.batch(attempt, [1, 2], ["c", "b"]) == 2
    with pytest.raises(Refused) as refused:
        state.batch(attempt, [1, 2], ["b", "c", "d"])
    for word in ("of 3 hosts (b, c, d)", "gpu_drain_serial: 1, 2 of b, c", "-e"):
        assert word in str(refused.value)
    with pytest.raises(Refused):
        state.batch(Attempt(1, 1, ME, NOW, ("a",), batch=1), [1], ["a"])


def test_without_a_record_a_batch_is_found_by_its_hosts() -> None:
    state.among(["a", "b", "c"], [1, 2], ["b", "c"])
    with pytest.raises(Refused):
        state.among(["a", "b", "c"], [1, 2], ["b"])


def test_who_left_no_word_at_the_end_of_a_batch() -> None:
    attempt = Attempt(1, 1, ME, NOW, ("a", "b", "c", "d"), batch=2)
    hosts = {"b": Host("r", "b", outcome=record.FINISHED), "c": Host("r", "c", outcome=record.IN_PROGRESS)}
    assert state.silent(attempt, [1, 3], hosts) == ("c", "d")
    assert state.last_batch(attempt, [1, 3])
    assert not state.last_batch(attempt, [1])
