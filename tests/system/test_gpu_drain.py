# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_drain over SSH: phases that are proved, one run per host, one attempt per run, and what a killed one leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.lab import Job, Lab, Workload, labs
from tests.system.playing import Result, Task, cuda, shell
from tests.unit.plugins.documentation.returned import problems

BASE = "/var/lib/drained"
JOURNAL = "/var/lib/gpufleet/checkpoint.db"
FIRST = "one admin 10:20:30"
WORK = ["scheduler", "before_suspend", "suspend", "maintenance", "restore", "after_restore", "release"]


def drain(phase: str, *, check: bool = False, diff: bool = False, **options: Any) -> Task:
    """A task with gpu_drain that may fail."""
    return {
        "name": f"{phase}{' (check)' if check else ''}",
        "gpufleet.checkpoint.gpu_drain": {"phase": phase, "run_id": "r1", **options},
        "ignore_errors": True,
        "check_mode": check,
        "diff": diff,
    }


def info(**options: Any) -> Task:
    return {"name": "drain info", "gpufleet.checkpoint.gpu_drain_info": options, "ignore_errors": True}


def image(state: str, **options: Any) -> Task:
    return {
        "name": f"image {state}",
        "gpufleet.checkpoint.criu_image": {"state": state, "run_id": "r1", **options},
        "ignore_errors": True,
    }


def suspend(run: str = "r1", **options: Any) -> Task:
    return cuda("checkpointed", select={"all": True}, run_id=run, **options)


@pytest.fixture(scope="module")
def host(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--gpus", "2", "--vram", "1024") as (one,):
        yield one


@pytest.fixture
def lab(host: Lab) -> Iterator[Lab]:
    """Afterwards every job counts on, and no drain is open."""
    host.host.sh(f"rm -rf {BASE}")
    with host.watched():
        yield host
    (left,) = host.play(info())
    host.host.sh(f"rm -f {JOURNAL}*")
    assert left.ok().data["drain"] is None or left.data["drain"]["closed"], left.data["drain"]


def documented(*results: Result) -> None:
    for result in results:
        module = "gpu_drain_info" if "cuda" in result.data else "gpu_drain"
        assert not problems(module, result.data)


def states(result: Result) -> dict[int, str]:
    return {one["identity"]["pid"]: one["state"] for one in result.data["processes"]}


def test_a_drain_in_memory(lab: Lab) -> None:
    jobs = lab.start(*[Workload()] * 2)
    pids = sorted(job.pid for job in jobs)
    before, claimed, again, suspending, suspended, told, maintenance, restoring = lab.play(
        info(),
        drain("claimed", controller=FIRST, attempt=1, declares=["gpu_reset"]),
        drain("claimed", controller=FIRST, attempt=1),
        drain("suspending", controller=FIRST, attempt=1, scheduler={"kind": "command", "ours": True}),
        suspend(),
        drain("suspended", controller=FIRST, attempt=1, diff=True),
        info(),
        drain("maintenance", controller=FIRST, attempt=1),
        drain("restoring", controller=FIRST, attempt=1),
    )[:8]
    assert before.ok(changed=False).data["drain"] is None
    claimed.ok(changed=True)
    assert claimed.data["todo"] == WORK
    again.ok(changed=False)
    documented(claimed)
