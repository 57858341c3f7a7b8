# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tasks of gpu_migrate make of the answers of two hosts, and of one that gives none."""

from __future__ import annotations

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


def test_what_has_begun_to_come_back_on_the_source_is_brought_back() -> None:
    trees = [{"name": one, "state": one} for one in ("live", "unspent", "restoring", "moved")]
    loop = task("back", "Bring them to life on the source")["loop"]
    found = shown(loop, gpu_migrate_state={"trees": trees}, gpu_migrate_given_back=[{"name": "pid-1"}])
    assert sorted(found) == ["pid-1", "restoring", "unspent"]
    half = task("move", "Refuse while a restore on the source is half done")["vars"]["gpu_migrate_halves"]
    assert shown(half, gpu_migrate_leaving={"trees": trees}) == ["restoring"]


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
