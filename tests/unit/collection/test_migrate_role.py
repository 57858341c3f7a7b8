# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tasks of gpu_migrate make of the answers of two hosts, and of one that gives none."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible import template
from ansible.parsing.dataloader import DataLoader

TASKS = Path(__file__).resolve().parents[3] / "roles/gpu_migrate/tasks"
#: From the dump on, when processes may be on a disk only.
STOPPED = ("move", "fetch", "back")


def flat(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from flat(task.get(part, []))


def tasks_of(name: str) -> list[dict[str, Any]]:
    return list(flat(yaml.safe_load((TASKS / f"{name}.yml").read_text())))


def task(file: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in tasks_of(file) if one["name"] == name]
    return found


@pytest.mark.parametrize("file", STOPPED)
def test_a_host_that_is_delegated_to_and_silent_ends_no_play(file: str) -> None:
    """Else neither rescue nor always is run, and the processes stay on the disk."""
    delegated = [one for one in tasks_of(file) if "delegate_to" in one]
    assert delegated
    assert [one["name"] for one in delegated if not one.get("ignore_unreachable")] == []


@pytest.mark.parametrize("file", ["move", "fetch"])
def test_whether_it_was_silent_is_asked_right_after(file: str) -> None:
    tasks = tasks_of(file)
    for one, after in pairwise(tasks):
        if "delegate_to" in one:
            assert after.get("ansible.builtin.include_tasks") == "answered.yml", one["name"]
            assert after["vars"]["gpu_migrate_answer"] == f"{{{{ {one['register']} }}}}"


def shown(text: str, **values: Any) -> Any:
    # Before ansible-core 2.19 every text was a template.
    trusted = getattr(template, "trust_as_template", str)(text)
    return template.Templar(DataLoader(), variables=values).template(trusted)


def test_who_finds_no_place_is_told_what_waits_in_images_and_how_it_comes_back() -> None:
    """As when the controller died after the dump, and the target is gone when the same command is run again."""
    one = task("plan", "Refuse if there is no place for them")
    told = {}
    for state in ("live", "unspent"):
        known: dict[str, Any] = {"inventory_hostname": "h1", "gpu_migrate_places": ["h2"]}
        known["gpu_migrate_leaving"] = {"trees": [{"name": "pid-1", "state": state}]}
        known["gpu_migrate_choice"] = {"why": "none of 1 fits", "refused": [{"host": "h2", "why": ["no route"]}]}
        known["gpu_migrate_waiting"] = shown(one["vars"]["gpu_migrate_waiting"], **known)
        told[state] = " ".join(shown(one["ansible.builtin.assert"]["fail_msg"], **known).split())
    assert told["live"].endswith("h2: no route Nothing was stopped.")
    assert "In images since an earlier run: pid-1. With gpu_migrate_direction: back they come" in told["unspent"]


def silent_ones(answer: dict[str, Any]) -> list[str]:
    (one,) = tasks_of("answered")
    found = shown(one["vars"]["gpu_migrate_silent"], gpu_migrate_answer=answer)
    text = one["ansible.builtin.assert"]["fail_msg"]
    known = {"gpu_migrate_to": "h2", "gpu_migrate_errand": "fetch", "gpu_migrate_silent": found}
    return [" ".join(shown(text, **known).split())] if found else []


def test_a_silent_host_is_seen_in_one_answer_and_in_those_of_a_loop() -> None:
    words = "h2 did not answer when it was to fetch: no route"
    gone = {"unreachable": True, "msg": "no route"}
    assert silent_ones({"changed": False}) == silent_ones({"results": [{"failed": True}, {"unreachable": False}]}) == []
    assert silent_ones(gone) == [words]
    assert silent_ones({"results": [{"rc": 0}, gone], "unreachable": True, "msg": "All items completed"}) == [words]
    assert silent_ones({"results": [{"rc": 0}, gone]}) == [words]


def test_what_has_begun_to_come_back_on_the_source_comes_before_another_dump() -> None:
    trees = [{"name": one, "state": one} for one in ("live", "unspent", "restoring", "moved")]
    half = task("move", "Refuse while a restore on the source is half done")["vars"]["gpu_migrate_halves"]
    assert shown(half, gpu_migrate_leaving={"trees": trees}) == ["restoring"]
    known = facts("Name the run that brings them back", gpu_migrate_state={"trees": trees})
    assert known["gpu_migrate_here"] == ["unspent", "restoring"]


def handoffs(*images: tuple[str, str], side: str = "source") -> dict[str, Any]:
    """name, after: of each."""
    told = [{"name": name, "after": after, "into": f"/there/{name}.partial", "side": side} for name, after in images]
    return {"handoffs": told}


def named(received: dict[str, Any], offered: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """What has to be fetched of images, and of which the files that go along are."""
    values = task("move", "Name what has to come")["vars"]
    both = {"gpu_migrate_offered": offered, "gpu_migrate_received": received}
    return (
        shown(values["gpu_migrate_images_awaited"], **both),
        shown(values["gpu_migrate_names_standing"], **both),
    )


def test_files_of_a_process_that_runs_on_the_target_are_not_brought_again() -> None:
    states = ("partial", "held", "unspent", "restoring", "spent")
    there = handoffs(*((state, state) for state in states))
    coming, standing = named(there, there)
    assert [(one["name"], one["into"]) for one in coming] == [("partial", "/there/partial.partial")]
    assert standing == ["partial", "held"]
    files = task("fetch", "Name what is to be fetched")["vars"]["gpu_migrate_files"]
    images = [{"name": one, "files": [{"path": f"/srv/{one}", "deleted": False}]} for one in states]
    stored = {"gpu_migrate_stored": {"images": images}, "gpu_migrate_standing": standing}
    assert shown(files, **stored) == ["/srv/partial", "/srv/held"]


def test_of_one_store_that_both_see_nothing_is_taken_before_it_is_given_up() -> None:
    there = handoffs(*((state, state) for state in ("unspent", "moved", "restoring", "spent")), side="shared")
    assert named(there, there) == ([], ["unspent"])


def is_true(condition: str, **values: Any) -> bool:
    return bool(shown(f"{{{{ {condition} }}}}", **values))


@pytest.mark.parametrize("answer", [["x\ny"], ["pid-1", "pid-2"], [], ["pid-2"]])
def test_names_are_those_that_the_source_has_told(answer: list[str]) -> None:
    (condition,) = task("move", "Refuse an answer to another question")["ansible.builtin.assert"]["that"]
    offered = handoffs(("pid-1", "unspent"))
    told = {"gpu_migrate_offered": offered, "gpu_migrate_received": handoffs(*((one, "partial") for one in answer))}
    assert not is_true(condition, **told)
    assert is_true(condition, **{**told, "gpu_migrate_received": handoffs(("pid-1", "partial"))})


@pytest.mark.parametrize(
    "line",
    [
        "ssh-ed25519 AAAA\nssh-ed25519 BBBB",
        "ssh-ed25519 AAAA\n",
        'command="sh" ssh-ed25519 AAAA',
        "ssh-ed25519 AAAA who@where",
        "",
    ],
)
def test_what_is_no_key_gets_into_no_file_of_keys(line: str) -> None:
    conditions = task("fetch", "Refuse what is no key")["ansible.builtin.assert"]["that"]
    pattern = yaml.safe_load((TASKS.parent / "vars/main.yml").read_text())["gpu_migrate_public_key"]

    def are_met(*lines: str) -> list[bool]:
        made = {"stdout_lines": list(lines)}
        known = {"gpu_migrate_made": made, "gpu_migrate_ways": ["one"], "gpu_migrate_public_key": pattern}
        return [is_true(one, **known) for one in conditions]

    assert are_met("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE+/a=") == [True, True]
    assert are_met(line) == [True, False]
    assert are_met() == [False, True]


# Back on the source

TREES = [{"name": f"pid-{state}", "state": state, "peer": "b" * 32} for state in ("unspent", "restoring", "moved")]


def facts(name: str, **values: Any) -> dict[str, Any]:
    """What a task of back.yml that only sets facts makes of these values. Its own variables are templates, too."""
    one = task("back", name)
    known: dict[str, Any] = {"inventory_hostname": "h1", "ansible_check_mode": False, **values}
    for key, text in one["vars"].items():
        known[key] = shown(text, **known)
    return {
        key: shown(text, **known) for key, text in one["ansible.builtin.set_fact"].items() if key != "gpu_migrate_run"
    }


def test_a_run_that_failed_brings_back_what_it_has_set_out_with_and_nothing_else() -> None:
    state = {"gpu_migrate_state": {"trees": TREES}}
    every = facts("Name the run that brings them back", **state)
    assert every["gpu_migrate_here"] == ["pid-unspent", "pid-restoring"]
    assert [one["name"] for one in every["gpu_migrate_away"]] == ["pid-moved"]
    own = facts("Name the run that brings them back", **state, gpu_migrate_only=["pid-restoring"])
    assert own == {"gpu_migrate_here": ["pid-restoring"], "gpu_migrate_away": []}
    only = task("move", "Bring back what does not live on the target")["vars"]["gpu_migrate_only"]
    leaving = {"gpu_migrate_leaving": {"trees": [{"name": "pid-1"}]}}
    assert shown(only, **leaving) == ["pid-1"]
    dumped = {"images": [{"path": "/var/lib/gpufleet/images/pid-2"}]}
    assert sorted(shown(only, **leaving, gpu_migrate_dumped=dumped)) == ["pid-1", "pid-2"]


def test_nothing_is_brought_back_to_a_host_that_a_drain_has() -> None:
    one = task("back", "Leave the source to a drain that has it")
    (condition,) = one["ansible.builtin.assert"]["that"]
    for drain, free in ((None, True), ({"closed": 5.0}, True), ({"closed": None, "run_id": "x", "phase": "y"}, False)):
        assert is_true(condition, gpu_migrate_drained={"drain": drain}) is free
    places = [found["name"] for found in tasks_of("back")]
    assert places.index(one["name"]) < places.index("Have the target give back what does not live there")
    assert not is_true(one["when"], gpu_migrate_here=[], gpu_migrate_away=[])
    assert is_true(one["when"], gpu_migrate_here=[], gpu_migrate_away=["pid-1"])


def test_who_a_target_is_can_be_asked_without_its_gpus() -> None:
    ask = task("back", "Find out which host each was given up for")
    assert ask["ansible.builtin.slurp"] == {"src": "/etc/machine-id"}
    give = task("back", "Have the target give back what does not live there")
    answer = {"item": {"item": "h2", "content": base64.b64encode(b"b" * 32 + b"\n").decode()}}
    machine = shown(give["vars"]["gpu_migrate_machine"], **answer)
    assert machine == "b" * 32
    known = {"gpu_migrate_machine": machine, "gpu_migrate_away": TREES[2:]}
    assert is_true(give["when"], **known)
    assert shown(give["gpufleet.checkpoint.criu_image_handoff"]["handoffs"], **known) == TREES[2:]


def test_what_both_see_is_given_back_as_what_was_copied_is() -> None:
    answers = [
        {"name": "pid-1", "after": "returned", "side": "source"},
        {"name": "pid-2", "after": "moved", "side": "shared"},
        {"name": "pid-3", "after": "spent", "side": "source"},
        {"name": "pid-4", "after": "moved", "side": "source"},
    ]
    # As two names of one host in an inventory have it.
    results = [{"handoffs": answers}, {"handoffs": answers}, {"unreachable": True}]
    found = facts("Tell them apart", gpu_migrate_returned={"results": results})
    assert [one["name"] for one in found["gpu_migrate_given_back"]] == ["pid-1", "pid-2"]
    assert [one["name"] for one in found["gpu_migrate_lives"]] == ["pid-3"]


def test_one_that_does_not_come_back_keeps_no_other_down_and_is_told_at_the_end() -> None:
    for name in ("Have the right to restore them on the source again", "Bring them to life on the source"):
        assert task("back", name)["ignore_errors"] is True
    assert tasks_of("back")[-1]["name"] == "Fail unless each is known to live"
    bring = task("back", "Bring them to life on the source")
    reclaimed = {
        "failed": True,
        "msg": "pid-2: no space.",
        "handoffs": [{"name": "pid-1", "after": "unspent"}, {"name": "pid-2", "after": "moved"}],
    }
    known: dict[str, Any] = {
        "gpu_migrate_here": ["pid-0", "pid-9"],
        "gpu_migrate_reclaimed": reclaimed,
        "ansible_check_mode": False,
    }
    known["gpu_migrate_ours"] = shown(bring["vars"]["gpu_migrate_ours"], **known)
    assert shown(bring["loop"], **known) == ["pid-0", "pid-9", "pid-1"]
    results = [
        {"item": "pid-0", "failed": True, "msg": "pid-0: no GPU memory."},
        {"item": "pid-9", "failed": False},
        {"item": "pid-1"},
    ]
    told = facts(
        "Say what became of each",
        **known,
        gpu_migrate_brought={"results": results, "failed": True, "msg": "One or more items failed"},
        gpu_migrate_given_back=[{"name": "pid-1"}, {"name": "pid-2"}],
        gpu_migrate_lives=[{"name": "pid-3"}],
        gpu_migrate_away=[{"name": f"pid-{number}"} for number in (1, 2, 3, 4)],
    )
    assert sorted(told["gpu_migrate_down"]) == ["pid-0", "pid-2"]
    assert told["gpu_migrate_unknown"] == ["pid-4"]
    for words in (
        "On h1 again: pid-9, pid-1.",
        "On the target: pid-3.",
        "pid-2: no space. pid-0: no GPU memory.",
        "In between: pid-4.",
    ):
        assert words in " ".join(told["gpu_migrate_became"].split())
