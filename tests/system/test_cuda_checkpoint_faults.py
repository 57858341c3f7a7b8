# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGKILL at every step: of the module, of its SSH session, of the worker; and the network is gone. Afterwards the
process is whole, and the same task, run again, ends where the first one was to end.

One host for each step, so that one playbook meets all of them. tests/system/inside/faults.py does the killing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.system.lab import Job, Lab, Workload, labs
from tests.system.playing import Play, Result, cuda, info, play
from tests.system.striking import KILLS, forget, has_struck, prepare, strike

# A kill right after the step was journalled, so before it is done; where there is a time, that long into it. A copy
# takes half a second here.
Fault = tuple[str, float]
SUSPEND: list[Fault] = [
    ("process:lock", 0),
    ("process:stop", 0),
    ("process:seize", 0),
    ("process:mask", 0),
    ("process:checkpoint", 0),
    ("process:checkpoint", 0.25),
    ("process:settle", 0),
]
RESUME: list[Fault] = [
    ("process:seize", 0),
    ("process:mask", 0),
    ("process:restore", 0),
    ("process:restore", 0.25),
    ("process:unlock", 0),
    ("process:settle", 0),
    ("process:continue", 0),
]
HOSTS = max(len(SUSPEND), len(RESUME))
ALL = os.environ.get("GPUFLEET_KILLS") == "all"
T = TypeVar("T")


def some(*victims: str) -> list[Any]:
    """Who is killed at each step only with GPUFLEET_KILLS=all; `make faults` does it, too."""
    mark = pytest.mark.skipif(not ALL, reason="takes minutes: GPUFLEET_KILLS=all or make faults runs it")
    return [pytest.param(victim, marks=mark) for victim in victims]


@pytest.fixture(scope="module")
def fleet_of_labs(simulator: Path) -> Iterator[list[Lab]]:
    with labs(simulator, "--gpus", "1", "--vram", "512", hosts=HOSTS) as every:
        for lab in every:
            prepare(lab)
        yield every


@pytest.fixture
def every(fleet_of_labs: list[Lab]) -> Iterator[list[Lab]]:
    with ExitStack() as stack:
        for lab in fleet_of_labs:
            stack.enter_context(lab.watched())
        yield fleet_of_labs
        for lab in fleet_of_labs:
            forget(lab)


def on_each(every: list[Lab], action: Callable[[Lab], T]) -> list[T]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(action, every))


def start(every: list[Lab]) -> dict[str, Job]:
    """One that dies if a thread of it ever runs without its GPU; niced, for it would take the CPUs from the rest."""
    jobs = on_each(every, lambda lab: lab.one("polling", rate=32, wrap=("nice", "-n", "19")))
    return {lab.host.name: job for lab, job in zip(every, jobs, strict=True)}


def by_host(results: list[Result]) -> dict[str, Result]:
    return {result.host: result for result in results}


def on_all(every: list[Lab], jobs: dict[str, Job], state: str, **options: Any) -> dict[str, Result]:
    """The task, on every host at the same time, each with its own process."""
    lookup = json.dumps({host: job.pid for host, job in jobs.items()})
    task = cuda(state, ["{{ (lookup_pids | from_json)[inventory_hostname] }}"], **options)
    return by_host(Play(every[0].host.fleet, [{**task, "vars": {"lookup_pids": lookup}}]).wait())


def plan(every: list[Lab], faults: list[Fault], victim: str) -> None:
    def write(lab: Lab) -> None:
        number = int(lab.host.name[1:]) - 1
        if number < len(faults):
            step, delay = faults[number]
            strike(lab, step, KILLS[victim], delay)

    on_each(every, write)


def check_fired(every: list[Lab], faults: list[Fault]) -> None:
    missed = [fault for lab, fault in zip(every, faults, strict=False) if not has_struck(lab)]
    assert not missed, f"never reached: {missed}"


def check_lives(every: list[Lab], jobs: dict[str, Job], faults: list[Fault]) -> None:
    gone = [
        fault
        for lab, fault in zip(every, faults, strict=False)
        if lab.look(jobs[lab.host.name])[jobs[lab.host.name].pid]["state"] in ("", "Z")
    ]
    assert not gone, f"dead after a kill at {gone}"


def told(results: dict[str, Result], faults: list[Fault]) -> str:
    return "\n".join(
        f"{fault}: {results[f'h{number}'].outcome} {results[f'h{number}'].data.get('msg', '')}"
        for number, fault in enumerate(faults, 1)
    )


@pytest.mark.parametrize("victim", ["session", *some("worker")])
def test_killed_while_it_suspends(every: list[Lab], victim: str) -> None:
    jobs = start(every)
    plan(every, SUSPEND, victim)
    first = on_all(every, jobs, "checkpointed")
    check_fired(every, SUSPEND)
    check_lives(every, jobs, SUSPEND)
    second = on_all(every, jobs, "checkpointed")
    assert all(result.outcome == "ok" for result in second.values()), told(second, SUSPEND)
    assert all(result.each("after") == ["checkpointed"] for result in second.values())
    assert all(on_each(every, lambda lab: lab.is_parked(jobs[lab.host.name]))), told(first, SUSPEND)
    resumed = on_all(every, jobs, "running")
    assert all(result.ok(changed=True).each("after") == ["running"] for result in resumed.values())


@pytest.mark.parametrize("victim", ["worker", "module"])
def test_killed_while_it_suspends_and_brought_back_at_once(every: list[Lab], victim: str) -> None:
    """The next run goes the other way."""
    jobs = start(every)
    plan(every, SUSPEND, victim)
    on_all(every, jobs, "checkpointed")
    check_fired(every, SUSPEND)
    resumed = on_all(every, jobs, "running")
    assert all(result.outcome == "ok" for result in resumed.values()), told(resumed, SUSPEND)
    assert all(result.each("after") == ["running"] for result in resumed.values())


@pytest.mark.parametrize("victim", ["worker", *some("module", "session")])
def test_killed_while_it_resumes(every: list[Lab], victim: str) -> None:
    jobs = start(every)
    assert all(result.ok(changed=True) for result in on_all(every, jobs, "checkpointed").values())
    plan(every, RESUME, victim)
    on_all(every, jobs, "running")
    check_fired(every, RESUME)
    check_lives(every, jobs, RESUME)
    second = on_all(every, jobs, "running")
    assert all(result.outcome == "ok" for result in second.values()), told(second, RESUME)
    assert all(result.each("after") == ["running"] for result in second.values())


@pytest.mark.parametrize("state", ["checkpointed", "running"])
def test_the_process_itself_is_killed(every: list[Lab], state: str) -> None:
    """It is said to have ended, whatever the driver answers for it, and nothing of it is left."""
    jobs = start(every)
    for job in jobs.values():
        job.may_be_gone = "killed by the test"
    if state == "running":
        on_all(every, jobs, "checkpointed")
    faults = SUSPEND if state == "checkpointed" else RESUME
    plan(every, faults, "target")
    results = on_all(every, jobs, state)
    check_fired(every, faults)
    wrong = [
        fault
        for number, fault in enumerate(faults, 1)
        if results[f"h{number}"].outcome != "failed" or results[f"h{number}"].each("after") != ["ended"]
    ]
    assert not wrong, told(results, wrong)


def test_the_network_is_gone_in_the_middle_of_a_copy(fleet_of_labs: list[Lab]) -> None:
    """The cable is pulled, the controller dies; the host goes on alone, and the next run finds what it did."""
    lab = fleet_of_labs[0]
    fleet = lab.host.fleet
    with lab.watched():
        job = lab.one("polling", rate=16)
        for state, step in (("checkpointed", "checkpoint"), ("running", "restore")):
            run = Play(fleet, [cuda(state, [job.pid])], lab.host.name)
            at = f"SELECT 1 FROM operations WHERE pid = {job.pid} AND step = '{step}' AND status = 'active'"
            lab.wait_for(step, partial(lab.ask, "journal", at))
            fleet.must("cut", lab.host.name)
            time.sleep(0.2)
            run.kill()
            fleet.must("mend", lab.host.name)
            at = f"SELECT 1 FROM operations WHERE pid = {job.pid} AND status = 'active'"
            lab.wait_until_gone("its operation", at)
            seen, again = play(fleet, info([job.pid]), cuda(state, [job.pid]), hosts=lab.host.name)
            assert seen.ok().processes[job.pid]["state"] == state
            assert again.ok(changed=False).each("plan") == [[]]


def test_many_runs_are_killed_at_random(fleet_of_labs: list[Lab]) -> None:
    """Six processes; the module is killed at moments that nobody chose, in turn on both ways."""
    lab = fleet_of_labs[0]
    with lab.watched():
        jobs = lab.start(*[Workload(rate=64)] * 6)
        pids = [job.pid for job in jobs]
        killed = 0
        for number in range(8):
            run = Play(lab.host.fleet, [cuda(("checkpointed", "running")[number % 2], pids)], lab.host.name)
            lab.host.sh(f"until pgrep -x python3 | grep -qvx 1; do sleep 0.02; done; sleep {0.2 + 0.1 * number}; "
                        "pkill -9 -x python3 || true")  # fmt: skip
            killed += run.wait()[0].outcome == "failed"
        assert killed
        lab.play(cuda("checkpointed", pids))[0].ok()
        assert lab.is_parked(*jobs)
        lab.play(cuda("running", pids))[0].ok(changed=True)
