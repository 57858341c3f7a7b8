# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""drain_run's events, one after another as the playbooks bring them, and what they leave in the run directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import controller
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.directory import Directory, Superseded
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.events import Events, Surroundings
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.looks import Looks
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.state import Refused
from tests.unit.plugins.documentation.returned import problems

EMPTY: Mapping[str, Any] = {"run": {}, "what": "", "ended": False, "data": {}, "settings": {}}


class Fleet:
    """Hosts a, b and c, as a playbook over them would be seen. dead: nobody is at work any more."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.names = ("a", "b", "c")
        self.run_settings: dict[str, Any] = {}
        self.host_settings: dict[str, Any] = {}
        self.facts: dict[str, dict[str, Any]] = {name: {} for name in self.names}
        self.check = False
        self.lives: bool | None = False
        self.ssh_arguments = "-o ServerAliveInterval=15"
        self.strategy = "linear"
        self.warnings: list[str] = []
        monkeypatch.setattr(controller, "alive", lambda _one: self.lives)

    def around(self, host: str, batch: tuple[str, ...]) -> Surroundings:
        run = {
            "failures_allowed": 0,
            "run_id": "",
            "run_directory": str(self.directory / "runs"),
            "run_directory_shared": False,
            "slices": 1,
            "slice": 1,
            "serial": [1, 2],
            "take_over": "",
            "notify_command": ["sh", "-c", f"cat >>{self.directory}/heard; echo >>{self.directory}/heard"],
            **self.run_settings,
        }
        mine = {
            "mode": "memory",
            "select": {"all": True},
            "declares": [],
            "scheduler": "none",
            "store": "/images",
            "window": 3600,
            "maintenance_done": False,
            "maintenance_seconds": 1,
            "hooks": {"maintenance": "", "before_suspend": "", "after_restore": "", "health": ""},
            **self.host_settings,
        }
        hostvars = {name: {"gpu_drain_wanted": {"run": run, "host": mine}, **self.facts[name]} for name in self.names}
        return Surroundings(
            host, batch, self.names, hostvars, self.check, os.getpid(), self.strategy, self.ssh_arguments
        )

    def tell(self, event: str, host: str = "a", batch: tuple[str, ...] = (), **arguments: Any) -> dict[str, Any]:
        around = self.around(host, batch)
        events: Any = Looks(around) if event in ("plan", "status", "recover") else Events(around)
        told = dict(getattr(events, event)({**EMPTY, **arguments}))
        self.warnings = events.warnings
        return told

    def host(self, run: Mapping[str, Any], name: str) -> dict[str, Any]:
        return dict(json.loads((Path(run["directory"]) / "hosts" / f"{name}.json").read_text()))

    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "heard").read_text().splitlines()]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(tmp_path, monkeypatch)


def finish(fleet: Fleet, run: Mapping[str, Any], *names: str) -> None:
    fleet.tell("batch", names[0], names, run=run)
    for name in names:
        fleet.tell("host", name, what="claimed", ended=True, data={"phase": "claimed", "mode": "memory"}, run=run)
        fleet.tell("host", name, what="released", ended=True, data={"phase": "released"}, run=run)
    fleet.tell("end_batch", names[0], names, run=run)


def test_who_runs_it_is_told_without_a_run(fleet: Fleet) -> None:
    told = fleet.tell("controller")
    assert not problems("drain_run", told)
    assert controller.parsed(told["controller"]) == controller.of_parent(os.getpid())
    assert list(fleet.directory.iterdir()) == []


def test_a_run_from_its_begin_to_its_end(fleet: Fleet) -> None:
    run = fleet.tell("begin")
    assert not problems("drain_run", run)
    assert (run["order"], run["finished_hosts"], run["resumed"]) == (["a", "b", "c"], [], False)
    finish(fleet, run, "a")
    assert fleet.host(run, "a")["outcome"] == "finished"
    fleet.tell("batch", "b", ("b", "c"), run=run)
    assert fleet.host(run, "b")["batch"] == 2
    for name in ("b", "c"):
        fleet.tell("host", name, what="released", ended=True, data={"phase": "released"}, run=run)
    over = fleet.tell("end_batch", "b", ("b", "c"), run=run)
    assert "is over: 3 finished" in over["msg"]
    assert [event["event"] for event in fleet.heard()] == ["begin", "finished"]
    assert fleet.heard()[-1]["counts"]["finished"] == 3
    assert run["run_id"] in (Path(run["directory"]) / "report.html").read_text()


def test_a_failure_in_the_first_batch_stops_before_the_second_and_the_same_command_goes_on(fleet: Fleet) -> None:
    fleet.run_settings["failures_allowed"] = 1
    run = fleet.tell("begin")
    fleet.tell("batch", "a", ("a",), run=run)
    fleet.tell("host", "a", what="suspended", data={"phase": "suspended"}, run=run)
    failure = {"task": "Change the fan", "msg": "no fan", "phase": "maintenance"}
    assert "failed" not in fleet.tell("failed", "a", data=failure, run=run)
    told = fleet.tell("failed", "a", data=failure, run=run, ended=True)
    assert told["failed"]
    for word in ("a, maintenance: Change the fan: no fan", "suspended and stay so", run["run_id"]):
        assert word in told["msg"]
    stopped = fleet.tell("batch", "b", ("b", "c"), run=run)
    assert stopped["failed"]
    assert "canary" in stopped["msg"]
    assert not (Path(run["directory"]) / "hosts" / "b.json").exists()
    assert [event["event"] for event in fleet.heard()] == ["begin", "failed", "stopped"]
    again = fleet.tell("begin")
    assert (again["run_id"], again["attempt"], again["order"]) == (run["run_id"], 2, ["a", "b", "c"])
    assert "goes on with run" in fleet.warnings[0]


def test_who_leaves_no_word_has_failed(fleet: Fleet) -> None:
    run = fleet.tell("begin")
    fleet.run_settings["serial"] = [3]
    run = fleet.tell("begin")
    fleet.tell("batch", "a", ("a", "b", "c"), run=run)
    fleet.tell("host", "a", what="released", ended=True, data={"phase": "released"}, run=run)
    fleet.tell("host", "b", what="maintenance", data={"phase": "maintenance"}, run=run)
    over = fleet.tell("end_batch", "a", ("a",), run=run)
    assert "1 finished, 2 failed" in over["msg"]
    assert fleet.host(run, "b")["message"].startswith("no word since maintenance at ")
    assert fleet.host(run, "c")["message"].startswith("no word since ")


def test_an_attempt_that_was_replaced_writes_nothing(fleet: Fleet) -> None:
    old = fleet.tell("begin")
    fleet.tell("batch", "a", ("a",), run=old)
    new = fleet.tell("begin")
    finish(fleet, new, "a")
    for event, more in (("host", {"what": "suspending"}), ("failed", {"data": {"task": "t", "msg": "m"}})):
        with pytest.raises(Superseded, match="attempt 2 of this run has taken over"):
            fleet.tell(event, "a", run=old, **more)
    assert fleet.host(new, "a")["outcome"] == "finished"


def test_slices_that_begin_at_the_same_moment_are_one_run(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.run_settings |= {"run_id": "r", "run_directory_shared": True, "slices": 2, "slice": 2}
    looked: list[dict[str, Any]] = []
    create = Directory.create

    def meanwhile(place: Directory) -> None:
        create(place)
        if not looked:
            looked.append({})
            fleet.run_settings["slice"] = 1
            looked[0] = fleet.tell("begin")

    monkeypatch.setattr(Directory, "create", meanwhile)
    second = fleet.tell("begin")
    (first,) = looked
    assert (first["slice"], first["attempt"]) == (1, 1)
    assert (second["slice"], second["attempt"]) == (2, 2)
    run = json.loads((Path(second["directory"]) / "run.json").read_text())
    assert [(one["attempt"], one["slice"]) for one in run["attempts"]] == [(1, 1), (2, 2)]


def test_two_commands_over_the_same_slice_at_the_same_moment_are_not_both_begun(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.run_settings |= {"run_id": "r", "run_directory_shared": True, "slices": 2, "slice": 2}
    create = Directory.create

    def meanwhile(place: Directory) -> None:
        create(place)
        monkeypatch.setattr(Directory, "create", create)
        fleet.tell("begin")

    monkeypatch.setattr(Directory, "create", meanwhile)
    with pytest.raises(Refused, match="another command has begun to work on it at this moment"):
        fleet.tell("begin")


def test_a_run_that_no_host_let_in_is_in_nobodys_way(fleet: Fleet) -> None:
    run = fleet.tell("begin")
    fleet.tell("batch", "a", ("a",), run=run)
    failure = {"task": "Claim the host", "msg": "another run has it", "phase": ""}
    fleet.tell("failed", "a", data=failure, run=run)
    told = fleet.tell("failed", "a", data=failure, run=run, ended=True)
    assert f"-e gpu_drain_run_id={run['run_id']}" in told["msg"]
    fleet.host_settings["mode"] = "disk"
    again = fleet.tell("begin")
    assert again["run_id"] != run["run_id"] and not again["resumed"]
    fleet.run_settings["run_id"] = run["run_id"]
    assert fleet.tell("begin")["attempt"] == 2


def test_who_asks_for_a_new_run_each_time_is_told_how_to_go_on_with_it(fleet: Fleet) -> None:
    fleet.run_settings["run_id"] = "new"
    run = fleet.tell("begin")
    assert f"give -e gpu_drain_run_id={run['run_id']} instead" in " ".join(fleet.warnings)


def fail(fleet: Fleet, run: Mapping[str, Any], name: str, batch: tuple[str, ...], **more: Any) -> None:
    failure = {"task": "Suspend", "msg": "no room", "phase": "suspending", **more}
    fleet.tell("failed", name, batch, data=failure, run=run)
    fleet.tell("host", name, batch, what="undoing", run=run)
    fleet.tell("host", name, batch, what="undone", ended=True, data={"phase": "undone"}, run=run)
    fleet.tell("failed", name, batch, data=failure, run=run, ended=True)


def begun(fleet: Fleet, *batch: str) -> dict[str, Any]:
    run = fleet.tell("begin")
    fleet.lives = True
    fleet.tell("batch", batch[0], batch, run=run)
    for name in batch:
        fleet.tell("host", name, batch, what="claimed", ended=True, data={"phase": "claimed"}, run=run)
        fleet.tell("host", name, batch, what="suspending", run=run)
    return run


def report(run: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads((Path(run["directory"]) / "report.json").read_text()))


def test_the_page_is_the_last_one_when_ansible_ends_the_playbook_with_the_batch(fleet: Fleet) -> None:
    """After a batch of which no host is left there is neither its end nor another batch."""
    fleet.run_settings["failures_allowed"] = 1
    run = begun(fleet, "a")
    fail(fleet, run, "a", ("a",))
    told = report(run)
    assert told["state"] == "stopped"
    (attempt,) = told["run"]["attempts"]
    assert "stops before batch 2" in attempt["stopped"] and "canary" in attempt["stopped"]
    assert told["next"].startswith("Settle what failed on a. Run the same command again")
    assert [event["event"] for event in fleet.heard()] == ["begin", "failed", "stopped"]


def test_a_budget_that_allows_it_does_not_keep_ansible_from_ending(fleet: Fleet) -> None:
    fleet.run_settings |= {"failures_allowed": 3, "serial": [1]}
    run = begun(fleet, "a")
    fail(fleet, run, "a", ("a",))
    assert report(run)["state"] == "stopped"
    assert report(run)["run"]["attempts"][0]["stopped"].startswith("Ansible ended the playbook: no host of batch 1 is")


def test_the_page_is_the_last_one_when_the_rest_of_the_batch_is_out_of_reach(fleet: Fleet) -> None:
    fleet.run_settings["serial"] = [2]
    run = begun(fleet, "a", "b")
    fail(fleet, run, "a", ("a", "b"))
    assert report(run)["state"] == "running"
    fail(fleet, run, "a", ("a",))
    assert report(run)["state"] == "stopped"
    assert fleet.host(run, "b")["message"].startswith("no word since ")


def test_who_recovers_what_no_attempt_is_known_of_is_told_what_failed(fleet: Fleet) -> None:
    run = begun(fleet, "a")
    path = Path(run["directory"]) / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attempts": []}))
    failure = {"task": "Resume", "msg": "no room", "phase": "restoring"}
    assert "no room" in fleet.tell("failed", "a", ("a",), data=failure, run=run, ended=True)["msg"]


def test_a_look_that_did_not_pass_has_stopped_nothing(fleet: Fleet) -> None:
    process = {"identity": {"pid": 7}, "executable": "/bin/x", "state": "running", "device_bytes": None}
    for passed, said in ((False, False), ("False", False), (True, True)):
        fleet.run_settings["run_id"] = f"passed-{passed}-{type(passed).__name__}"
        run = begun(fleet, "a")
        fleet.tell("host", "a", ("a",), what="suspending", data={"processes": [process]}, run=run)
        fail(fleet, run, "a", ("a",), passed=passed, findings=[{"id": "x", "severity": "blocking"}], estimate={})
        page = (Path(run["directory"]) / "report.html").read_text()
        assert ("stood still" in page) is said
        looks = [one for one in report(run)["hosts"][0]["timeline"] if one["what"] == "preflight"]
        assert len(looks) == (not said)


def test_the_look_stands_where_it_was(fleet: Fleet) -> None:
    run = begun(fleet, "a")
    (at,) = [one["began"] for one in fleet.host(run, "a")["timeline"] if one["what"] == "suspending"]
    data = {"phase": "suspended", "preflight": {"at": str(at + 0.001), "findings": []}}
    fleet.tell("host", "a", ("a",), what="suspended", ended=True, data=data, run=run)
    (look,) = [one for one in fleet.host(run, "a")["timeline"] if one["what"] == "preflight"]
    assert (look["began"], look["ended"]) == (at + 0.001, at + 0.001)


def test_what_can_be_refused_from_settings_alone_leaves_no_record(fleet: Fleet) -> None:
    fleet.host_settings["declares"] = ["reboot"]
    with pytest.raises(Refused, match="it has reboot for a, and gpu_drain_mode is memory"):
        fleet.tell("begin")
    assert list(fleet.directory.iterdir()) == []


def test_what_is_lost_is_in_the_record(fleet: Fleet) -> None:
    run = fleet.tell("begin")
    fleet.tell("batch", "a", ("a",), run=run)
    fleet.tell("host", "a", what="restoring", data={"phase": "restoring"}, run=run)
    lost = [{"what": "PID 7", "why": "the host has booted since"}]
    told = fleet.tell("failed", "a", run=run, ended=True, data={"task": "Read", "msg": "gone", "lost": lost})
    assert fleet.host(run, "a")["outcome"] == "lost"
    assert fleet.host(run, "a")["lost"] == lost
    assert "gpu_drain_accept_loss" in told["msg"]


def test_check_mode_writes_nothing(fleet: Fleet) -> None:
    fleet.check = True
    run = fleet.tell("begin")
    finish(fleet, run, "a")
    assert fleet.tell("failed", "a", run=run, ended=True, data={"task": "t", "msg": "m"})["failed"]
    assert list(fleet.directory.iterdir()) == []
    with pytest.raises(Refused, match="Ansible makes it of 1 host"):
        fleet.tell("batch", "b", ("b",), run=run)


def test_a_command_and_its_secrets_are_in_no_record(fleet: Fleet) -> None:
    run = fleet.tell("begin")
    fleet.tell("batch", "a", ("a",), run=run)
    process = {"identity": {"pid": 7}, "executable": "/bin/x", "command": ["x", "hunter2"], "state": "running"}
    data = {"phase": "claimed", "processes": [process], "invocation": {"module_args": {"password": "hunter2"}}}
    fleet.tell("host", "a", what="claimed", ended=True, data=data, run=run)
    files = [path.read_text() for path in Path(run["directory"]).rglob("*") if path.is_file()]
    assert any("/bin/x" in text for text in files)
    assert not any("hunter2" in text or "heard" in text for text in files)


def test_a_pause_without_a_terminal_is_refused_before_any_host_is_touched(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.host_settings["maintenance_seconds"] = 0
    monkeypatch.setattr(controller, "has_terminal", lambda _pid: False)
    with pytest.raises(Refused, match="gpu_drain_maintenance_tasks: there is none for a, b, c"):
        fleet.tell("begin")
    assert list(fleet.directory.iterdir()) == []


def test_what_would_hang_or_break_the_budget_is_said_at_the_beginning(fleet: Fleet) -> None:
    fleet.strategy = "ansible.builtin.free"
    with pytest.raises(Refused, match=r"strategy ansible\.builtin\.free"):
        fleet.tell("begin")
    fleet.strategy, fleet.ssh_arguments = "linear", "-C"
    fleet.tell("begin")
    assert "No ServerAliveInterval" in fleet.warnings[0]


def test_a_record_of_another_run_that_is_damaged_is_said_and_its_own_is_refused(fleet: Fleet) -> None:
    broken = fleet.directory / "runs" / "broken"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    fleet.tell("begin")
    assert "It is not looked at" in fleet.warnings[0]
    fleet.run_settings["run_id"] = "broken"
    with pytest.raises(Exception, match="it is no record of a run"):
        fleet.tell("begin")


def row(phase: str, run_id: str, **more: Any) -> dict[str, Any]:
    known = {
        "phase": phase,
        "run_id": run_id,
        "runs": [run_id],
        "kind": "drain",
        "attempt": 1,
        "controller": "here me 1:1:boot",
        "since": 5.0,
        "opened": 1.0,
        "closed": None,
        "processes": [{"identity": {"pid": 7}, "state": "suspended"}],
        "images": [],
        "lost": [],
        "timeline": [{"phase": phase, "at": 5.0, "attempt": 1, "boot_id": "boot", "message": ""}],
    }
    return {"drain": {**known, **more}, "cuda": []}


def test_status_rebuilds_the_record_from_what_hosts_say(fleet: Fleet) -> None:
    run = fleet.tell("begin")
    fleet.tell("batch", "a", ("a",), run=run)
    fleet.facts["a"]["gpu_drain_seen"] = row("suspended", run["run_id"])
    fleet.facts["b"]["gpu_drain_seen"] = {"drain": None, "cuda": []}
    settings = {"run_id": "", "run_directory": str(fleet.directory / "runs"), "given": False}
    told = fleet.tell("status", settings=settings)
    assert not problems("drain_run", told)
    assert told["totals"] == {"suspended": 1, "no drain": 1, "no answer": 1}
    assert "a suspended since" in told["msg"]
    assert "c gave no answer" in told["msg"]
    assert fleet.host(run, "a")["phase"] == "suspended"
    assert told["report"] == os.path.join(run["directory"], "report.html")


def test_status_leaves_the_record_of_a_run_that_is_at_work(fleet: Fleet) -> None:
    run = fleet.tell("begin")
    fleet.tell("batch", "a", ("a",), run=run)
    fleet.tell("host", "a", what="maintenance", data={"phase": "maintenance"}, run=run)
    fleet.facts["a"]["gpu_drain_seen"] = row("suspended", run["run_id"])
    fleet.lives = True
    settings = {"run_id": "", "run_directory": str(fleet.directory / "runs"), "given": False}
    assert "alive here" in fleet.tell("status", settings=settings)["msg"]
    assert fleet.host(run, "a")["phase"] == "maintenance"


def test_status_makes_a_lost_record_anew_only_where_it_is_asked_to(fleet: Fleet) -> None:
    fleet.facts["a"]["gpu_drain_seen"] = row("suspended", "lost")
    settings = {"run_id": "", "run_directory": str(fleet.directory / "runs"), "given": False}
    assert fleet.tell("status", settings=settings)["report"] is None
    assert list(fleet.directory.iterdir()) == []
    assert fleet.tell("status", settings={**settings, "given": True})["report"]
    again = fleet.tell("begin")
    assert (again["run_id"], again["attempt"], again["order"][0]) == ("lost", 2, "a")


def test_recover_decides_for_each_host(fleet: Fleet) -> None:
    fleet.facts["a"]["gpu_drain_seen"] = row("restoring", "r")
    fleet.facts["b"]["gpu_drain_seen"] = row("suspending", "r")
    settings = {"run_id": "", "run_directory": str(fleet.directory / "runs"), "take_over": ""}
    told = fleet.tell("recover", settings=settings)
    assert not problems("drain_run", told)
    assert {name: host["do"] for name, host in told["hosts"].items()} == {"a": "finish", "b": "undo", "c": "report"}
    run = told["hosts"]["a"]["run"]
    assert (run["run_id"], run["claim_attempt"], run["directory"]) == ("r", 0, "")
    assert fleet.tell("host", "a", what="restored", run=run) == {"phase": "restored"}


def test_a_plan_is_shown_and_written(fleet: Fleet) -> None:
    fleet.facts["a"]["gpu_drain_looked"] = {"mode": "memory", "preflight": {"msg": "not root"}, "drain": {}}
    path = fleet.directory / "plan.json"
    told = fleet.tell("plan", settings={"serial": [1, 2], "plan_file": str(path)})
    assert not problems("drain_run", told)
    assert "not root" in told["msg"]
    assert json.loads(path.read_text()) == told["plan"]
    with pytest.raises(Refused, match=r"gpu_drain_plan_file: .* can't be written"):
        fleet.tell("plan", settings={"serial": 1, "plan_file": str(path / "below")})


def test_a_finished_host_is_compared_with_its_journal(fleet: Fleet) -> None:
    run = fleet.tell("begin")
    finish(fleet, run, "a")
    ended = row("released", run["run_id"], processes=[{"state": "running"}, {"state": "gone"}])
    assert fleet.tell("finished", "a", run=run, data=ended)["msg"] == (
        "a: released, 1 of its processes run, 1 have ended since"
    )
    told = fleet.tell("finished", "a", run=run, data=row("restoring", run["run_id"]))
    assert told["failed"]
    assert "its journal says restoring" in told["msg"]
    assert fleet.host(run, "a")["outcome"] == "failed"


def test_the_command_that_starts_it_must_be_alive(fleet: Fleet) -> None:
    around = replace(fleet.around("a", ()), parent=1)
    with pytest.raises(Refused, match="ansible-playbook, which started it, has ended"):
        Events(around).begin(EMPTY)
