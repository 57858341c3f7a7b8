# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGKILL at every step of an image: of its worker, of the module, and of CRIU while it restores. Afterwards the same
task, run again, ends where the first one was to end, with one life of the process, whole.

Of CRIU while it dumps, at each of its calls: test_criu_killed.py. Moments within steps that take long, CRIU's dump
among them: test_criu_image_long.py.

One host for each step, so that one playbook meets all of them. tests/system/inside/faults.py does the killing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.system.lab import Job, Lab, labs
from tests.system.playing import Play, Result
from tests.system.striking import forget, prepare
from tests.system.test_criu_image import STORE, image
from tests.system.test_cuda_checkpoint_faults import (
    Fault,
    by_host,
    check_fired,
    on_each,
    plan,
    some,
    start,
    told,
)

PATH = f"{STORE}/job"
PRESENT: list[Fault] = [
    ("image:stop", 0),
    ("image:suspend", 0),
    ("image:suspend", 0.4),
    ("image:dump", 0),
    ("image:dump", 0.1),
    ("image:prove", 0),
    ("image:seal", 0),
    ("image:rename", 0),
    ("image:end", 0),
]
RESTORED: list[Fault] = [
    ("image:verify", 0),
    ("image:restore", 0),
    ("image:restore", 0.1),
    ("image:restore", 0.3),
    ("image:resume", 0),
    ("image:resume", 0.2),
    ("image:continue", 0),
]
CRIU: list[Fault] = [("image:restore", delay) for delay in (0.02, 0.05, 0.1, 0.2)]


@pytest.fixture(scope="module")
def fleet_of_labs(simulator: Path) -> Iterator[list[Lab]]:
    with labs(simulator, "--gpus", "1", "--vram", "512", hosts=len(PRESENT)) as every:
        for lab in every:
            prepare(lab)
        yield every


@pytest.fixture
def every(fleet_of_labs: list[Lab]) -> Iterator[list[Lab]]:
    with ExitStack() as stack:
        for lab in fleet_of_labs:
            lab.host.sh(f"rm -rf {STORE}")
            stack.enter_context(lab.watched())
        yield fleet_of_labs
        for lab in fleet_of_labs:
            forget(lab)


def on_all(every: list[Lab], jobs: dict[str, Job], state: str, **more: Any) -> dict[str, Result]:
    """The task, on every host at the same time, each with its own process."""
    lookup = json.dumps({host: job.pid for host, job in jobs.items()})
    options: dict[str, Any] = {"path": PATH, **more}
    if state == "present":
        options.update(pid="{{ (lookup_pids | from_json)[inventory_hostname] }}", leave_running=False)
    return by_host(Play(every[0].host.fleet, [{**image(state, **options), "vars": {"lookup_pids": lookup}}]).wait())


def all_ok(results: dict[str, Result], faults: list[Fault]) -> None:
    assert all(result.outcome == "ok" for result in results.values()), told(results, faults)


@pytest.mark.parametrize("victim", ["worker", *some("module")])
def test_killed_while_it_dumps(every: list[Lab], victim: str) -> None:
    jobs = start(every)
    plan(every, PRESENT, victim)
    on_all(every, jobs, "present")
    check_fired(every, PRESENT)
    all_ok(on_all(every, jobs, "present"), PRESENT)
    states = on_each(every, lambda lab: lab.look(jobs[lab.host.name])[jobs[lab.host.name].pid]["state"])
    assert states == [""] * len(every)
    all_ok(on_all(every, jobs, "restored"), PRESENT)


@pytest.mark.parametrize("place", ["same", "new"])
@pytest.mark.parametrize("victim", ["module", *some("worker", "criu")])
def test_killed_while_it_restores(every: list[Lab], victim: str, place: str) -> None:
    faults = CRIU if victim == "criu" else RESTORED
    jobs = start(every)
    all_ok(on_all(every, jobs, "present"), faults)
    plan(every, faults, victim)
    on_all(every, jobs, "restored", pid_namespace=place)
    check_fired(every, faults)
    all_ok(on_all(every, jobs, "restored", pid_namespace=place), faults)
    last = on_all(every, jobs, "restored")
    all_ok(last, faults)
    for lab in every:
        (only,) = last[lab.host.name].data["images"]
        if place == "new":
            assert only["pids"] != [jobs[lab.host.name].pid]
            assert len(lab.host.sh("pgrep gpufleet-init").split()) == 1
        # By this number the host knows it now.
        (jobs[lab.host.name].pid,) = only["pids"]
    assert not any(result.changed for result in last.values())
