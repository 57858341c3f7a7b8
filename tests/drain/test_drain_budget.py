# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host fails: it can't be reached, its processes can't be suspended, or it dies while they are. The budget stops the
run, hosts that were not touched stay so, those that were drained stay drained; repaired, the same command finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.drain.drainlab import RUNNING, Drain, Runs, all_are, drains, on_each, runs, watched
from tests.system.hosts import ROOT
from tests.system.lab import Lab

# The next boot gives them out again, before what had one is back.
LOW_PIDS = "i=0; while [ $i -lt 1000 ]; do (:); i=$((i+1)); done"


@dataclass(frozen=True)
class Cause:
    """What is done to a host, and what repairs it. maintenance: whether it happens in there, while it is suspended."""

    name: str
    mode: str
    spoil: Callable[[Lab], None]
    repair: Callable[[Lab], None]
    maintenance: bool = False

    def __str__(self) -> str:
        return self.name


def cut(lab: Lab) -> None:
    lab.host.disconnect()
    lab.host.fleet.must("cut", lab.host.name)


def mend(lab: Lab) -> None:
    lab.host.fleet.must("mend", lab.host.name)


def add_managed(lab: Lab) -> None:
    lab.one("managed", sum=False)


def end_managed(lab: Lab) -> None:
    lab.end(*[job for job in lab.jobs if job.name.startswith("managed")])


def nothing(_lab: Lab) -> None:
    """It happens later."""


def power_on(lab: Lab) -> None:
    lab.host.fleet.must("start", lab.host.name)
    lab.booted()


CAUSES = (
    Cause("unreachable", "memory", cut, mend),
    Cause("a process that can't be suspended", "memory", add_managed, end_managed),
    Cause("loss of power while suspended", "disk", nothing, power_on, maintenance=True),
)


def power_off(lab: Lab) -> dict[str, object]:
    """A task that takes the power from this host, as a maintenance that goes wrong."""
    fleet = lab.host.fleet
    return {
        "name": "Touch the wrong plug",
        "ansible.builtin.command": {"argv": [str(ROOT / "tests/fleet/fleet"), "poweroff", lab.host.name]},
        "environment": {"FLEET_DIR": str(fleet.directory)},
        "changed_when": True,
        "delegate_to": "localhost",
        "become": False,
        "when": f"inventory_hostname == '{lab.host.name}'",
    }


FAILED_OR_UNREACHABLE = (2, 4)
PING = {"name": "Look whether it is there", "ansible.builtin.ping": {}}


class Scene:
    """Hosts of one run, one of which fails."""

    def __init__(self, labs: Sequence[Lab], victim: int, serial: Sequence[int], allowed: int, own: Runs) -> None:
        self.labs = labs
        self.victim = labs[victim]
        self.serial = serial
        self.allowed = allowed
        self.own = own

    def drain(self, mode: str) -> Drain:
        return Drain(
            self.victim.host.fleet,
            "drain",
            self.own,
            limit=",".join(lab.host.name for lab in self.labs),
            variables={
                "gpu_drain_mode": mode,
                "gpu_drain_serial": self.serial,
                "gpu_drain_failures_allowed": self.allowed,
                "gpu_drain_maintenance_tasks": str(self.own.directory / "maintenance.yml"),
            },
        )

    def untouched(self) -> list[Lab]:
        """Those that come after the batch in which one fails."""
        if self.allowed:
            return []
        place, first = self.labs.index(self.victim), 0
        for size in self.serial:
            first += size
            if place < first:
                break
        return list(self.labs[first:])

    def play(self, cause: Cause) -> None:
        if cause.maintenance:
            self.victim.host.sh(LOW_PIDS)
        on_each(self.labs, lambda lab: lab.one(vram=16))
        cause.spoil(self.victim)
        self.own.tasks("maintenance", *([power_off(self.victim), PING] if cause.maintenance else [PING]))
        drain = self.drain(cause.mode)
        assert drain.wait() in FAILED_OR_UNREACHABLE, drain.text()
        self._check(cause, drain)
        cause.repair(self.victim)
        self.own.tasks("maintenance", PING)
        self.drain(cause.mode).ok()
        assert self.own.outcomes() == {lab.host.name: "finished" for lab in self.labs}

    def _check(self, cause: Cause, drain: Drain) -> None:
        """After the first command."""
        names = {lab.host.name for lab in self.labs}
        untouched = {lab.host.name for lab in self.untouched()}
        drain.says(self.victim.host.name)
        for lab in self.untouched():
            assert drains(lab, f"run_id = '{self.own.run_id}'") == [], drain.text()
        finished = {name for name, outcome in self.outcomes().items() if outcome == "finished"}
        assert finished == names - untouched - {self.victim.host.name}, drain.text()
        for lab in self.labs:
            if lab is not self.victim:
                assert all_are(lab, RUNNING)
        if self.untouched() and finished:
            drain.says("failed", "same command again")
        bad = drain.recap()[self.victim.host.name]
        assert bad["failed"] + bad["unreachable"] == 1, drain.text()

    def outcomes(self) -> dict[str, str]:
        return self.own.outcomes()


@pytest.fixture
def three_runs() -> Iterator[list[Runs]]:
    with ExitStack() as stack:
        yield [stack.enter_context(runs()) for _number in range(3)]


@pytest.mark.parametrize(
    "cause",
    [CAUSES[0], *(pytest.param(cause, marks=pytest.mark.whole) for cause in CAUSES[1:])],
    ids=[str(cause) for cause in CAUSES],
)
def test_budget(cause: Cause, large_fleet: list[Lab], three_runs: list[Runs]) -> None:
    """The first host of a run, one of a later batch, and one of a later batch where one may fail."""
    canary, later, allowed = three_runs
    with watched(large_fleet[:13]) as labs:
        scenes = (
            Scene(labs[:3], 0, [1, 2], 0, canary),
            Scene(labs[3:8], 1, [1, 2, 2], 0, later),
            Scene(labs[8:13], 1, [1, 2, 2], 1, allowed),
        )
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda scene: scene.play(cause), scenes))
