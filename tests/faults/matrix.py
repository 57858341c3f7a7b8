# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every fault at every point that it applies to, in batches that one playbook can meet, each host with its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.faults.kinds import FAULTS, Fault
from tests.faults.points import WAYS, Point


@dataclass(frozen=True)
class Scenario:
    point: Point
    fault: Fault

    def __str__(self) -> str:
        return f"{self.fault.name} at {self.point}"


def every() -> tuple[Scenario, ...]:
    return tuple(Scenario(point, fault) for fault in FAULTS for point in fault.points())


#: Those that have once cost a process its life, or left something: in every sample.
ONCE_LOST = (
    "SIGCONT at dump, image compress",
    "SIGCONT at dump, image seal",
    "SIGCONT at dump, process guard",
    "SIGCONT at resume, process seize",
    "exit at dump, image dump +0.1 s",
    "debugger at suspend, process lock",
    "journal read-only at suspend, process checkpoint +0.25 s",
)


def sample(seed: int, count: int) -> tuple[Scenario, ...]:
    """As many, of each fault at least one, spread over the ways."""
    chance = random.Random(seed)
    left = list(every())
    chance.shuffle(left)
    chosen: list[Scenario] = [one for one in left if str(one) in ONCE_LOST]
    for names in ([fault.name for fault in FAULTS], WAYS):
        for name in names:
            if not any(name in (one.fault.name, one.point.way) for one in chosen):
                chosen.append(next(one for one in left if name in (one.fault.name, one.point.way)))
    chosen += [one for one in left if one not in chosen][: max(0, count - len(chosen))]
    return tuple(chosen)


def batches(scenarios: Sequence[Scenario], hosts: int) -> Iterator[tuple[Scenario, ...]]:
    """Of one way each. What takes the controller away takes it from the whole batch."""
    for way in WAYS:
        for apart in ("", "playbook", "cable"):
            same = [
                one
                for one in scenarios
                if one.point.way == way
                and (one.fault.outside if one.fault.outside in ("playbook", "cable") else "") == apart
            ]
            for start in range(0, len(same), hosts):
                yield tuple(same[start : start + hosts])
