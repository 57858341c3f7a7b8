# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A drain that is killed in every phase. The same command, again and again, ends with every process alive and whole.

A chain of kills for each host: each attempt of one run dies one step later than the one before, the last one finishes.
Between them, the two chains of a mode die in every phase, and at work on processes both do: one with ansible-playbook
alone, whose task goes on without it, one with everything that it had started on the controller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.drain.drainlab import GONE, RUNNING, Drain, Point, Runs, all_are, on_each, runs, states, watched
from tests.system.lab import Lab, Workload

# A copy takes a second at this rate, so that a kill meets it half way.
RATE, VRAM = 32, 32


def phase(name: str) -> Point:
    """When a phase is in the journal of the host, and in no record."""
    return Point("gpu_drain", "done", arguments={"phase": name})


def work(action: str, state: str, moment: str = "start") -> Point:
    """While processes are suspended or brought back ("start"), and when they are, but nothing is written down."""
    return Point(action, moment, arguments={"state": state}, hold=moment == "done")


def first(action: str, away: str, back: str) -> Sequence[Point]:
    return (
        phase("claimed"),
        work(action, away),
        phase("suspended"),
        MAINTENANCE,
        work(action, back),
        phase("restored"),
    )


def second(action: str, away: str, back: str, moment: str) -> Sequence[Point]:
    """moment: of the way back. What was killed in the middle of it has nothing left that could come back again."""
    return (
        phase("suspending"),
        work(action, away),
        work(action, away, "done"),
        phase("maintenance"),
        phase("restoring"),
        work(action, back, moment),
        phase("released"),
    )


MAINTENANCE = Point("command", "done")
MEMORY = ("cuda_checkpoint", "checkpointed", "running")
DISK = ("criu_image", "present", "restored")
INTERRUPTED = (work(*MEMORY[:2]), MAINTENANCE, work(MEMORY[0], MEMORY[2]))
UNDO = (phase("undoing"), Point("gpu_drain", "start", arguments={"phase": "undone"}), phase("undone"))


@pytest.fixture
def three_runs() -> Iterator[list[Runs]]:
    with ExitStack() as stack:
        yield [stack.enter_context(runs()) for _number in range(3)]


def at_work(lab: Lab, point: Point) -> None:
    """Until a workload is held to be suspended, or one that is being brought back has its GPU."""
    if point.arguments["state"] in ("checkpointed", "present"):
        lab.wait_for("a holder", lambda: lab.ask("holders"))
    else:
        lab.wait_for("a GPU", lambda: any(seen["devices"] for seen in lab.look(*lab.jobs).values()))


def end(drain: Drain, point: Point, lab: Lab, ends: Callable[[Drain], None]) -> None:
    drain.come()
    if not point.hold:
        at_work(lab, point)
    ends(drain)


def run_chain(
    lab: Lab, own: Runs, chain: Sequence[Point], ends: Callable[[Drain], None], variables: Mapping[str, object]
) -> list[float]:
    """Each attempt is ended at its point; a last one finishes. Seconds of each."""
    took = kills(lab, own, chain, ends, variables)
    began = time.monotonic()
    _drain(lab, own, variables).ok()
    assert own.outcomes() == {lab.host.name: "finished"}
    assert len(own.run()["attempts"]) == len(chain) + 1
    return [*took, time.monotonic() - began]


def kills(
    lab: Lab, own: Runs, chain: Sequence[Point], ends: Callable[[Drain], None], variables: Mapping[str, object]
) -> list[float]:
    """Each attempt is ended at its point. Seconds of each."""
    took = []
    for point in chain:
        began = time.monotonic()
        here = Point(point.action, point.moment, lab.host.name, point.arguments, point.hold)
        end(_drain(lab, own, variables, here), point, lab, ends)
        if variables.get("gpu_drain_mode", "memory") == "memory":
            assert GONE not in states(lab).values(), f"after {point}: {states(lab)}"
        took.append(time.monotonic() - began)
    return took


def _drain(lab: Lab, own: Runs, variables: Mapping[str, object], point: Point | None = None) -> Drain:
    tasks = own.tasks("maintenance", {"ansible.builtin.command": {"argv": ["true"]}, "changed_when": False})
    told = {"gpu_drain_maintenance_tasks": tasks, **variables}
    return Drain(lab.host.fleet, "drain", own, limit=lab.host.name, variables=told, point=point)


def side_by_side(*chains: Callable[[], list[float]]) -> None:
    with ThreadPoolExecutor(len(chains)) as pool:
        for number, took in enumerate(pool.map(lambda chain: chain(), chains)):
            print(f"chain {number}: {sum(took):.0f} s, {' '.join(f'{seconds:.1f}' for seconds in took)}")


def start(labs: Sequence[Lab]) -> None:
    """Those that die if a thread of theirs ever runs without its GPU; niced, for they would take the CPUs."""
    for lab in labs:
        lab.start(*[Workload("polling", vram=VRAM, rate=RATE, wrap=("nice", "-n", "19"))] * 2)


def test_killed_in_memory_in_every_phase(large_fleet: list[Lab], three_runs: list[Runs]) -> None:
    with watched(large_fleet[:3]) as labs:
        start(labs)
        one, two, three = labs
        side_by_side(
            lambda: run_chain(one, three_runs[0], first(*MEMORY), Drain.kill, {}),
            lambda: run_chain(two, three_runs[1], second(*MEMORY, "done"), Drain.kill_all, {}),
            lambda: run_chain(three, three_runs[2], INTERRUPTED, Drain.interrupt, {}),
        )


@pytest.mark.whole
def test_killed_while_it_is_undone(large_fleet: list[Lab], three_runs: list[Runs]) -> None:
    """One process of two can't be suspended; once it has ended, the same command drains the host."""
    with watched(large_fleet[:2]) as labs:
        start(labs)
        blocking = on_each(labs, lambda lab: lab.one("managed", sum=False))

        def chain(number: int, ends: Callable[[Drain], None]) -> list[float]:
            lab, own = labs[number], three_runs[number]
            took = kills(lab, own, UNDO, ends, {})
            _drain(lab, own, {}).fails(f"PID {blocking[number].pid}")
            assert own.outcomes() == {lab.host.name: "undone"}
            assert all_are(lab, RUNNING)
            lab.end(blocking[number])
            _drain(lab, own, {}).ok()
            assert own.outcomes() == {lab.host.name: "finished"}
            return took

        side_by_side(lambda: chain(0, Drain.kill), lambda: chain(1, Drain.kill_all))


@pytest.mark.whole
def test_killed_on_the_way_to_disk_and_back(large_fleet: list[Lab], three_runs: list[Runs]) -> None:
    variables = {"gpu_drain_mode": "disk"}
    with watched(large_fleet[:2]) as labs:
        start(labs)
        one, two = labs
        side_by_side(
            lambda: run_chain(one, three_runs[0], first(*DISK), Drain.kill, variables),
            lambda: run_chain(two, three_runs[1], second(*DISK, "start"), Drain.kill_all, variables),
        )
