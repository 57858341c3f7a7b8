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
