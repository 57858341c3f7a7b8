# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The matrix of faults leaves out nothing that the code has, and is the same each time."""

from __future__ import annotations

import pytest

from tests.faults.kinds import COSTS, FAULTS
from tests.faults.matrix import batches, every, sample
from tests.faults.points import PARKED, POINTS, UNREACHED, WAYS, all_steps


def test_every_step_of_the_code_is_a_point_or_has_a_reason() -> None:
    points = {point.step for point in POINTS} - {""}
    assert points | set(UNREACHED) == all_steps()
    assert not points & set(UNREACHED)
    assert all(len(reason) > 20 for reason in UNREACHED.values())


def test_every_fault_strikes_somewhere_and_every_point_is_struck() -> None:
    assert {one.fault.name for one in every()} == {fault.name for fault in FAULTS}
    struck = {(one.point.way, one.point.step) for one in every()}
    assert struck == {(point.way, point.step) for point in POINTS}
    assert len(set(map(str, every()))) == len(every()) >= 300


def test_a_fault_knows_what_it_does() -> None:
    for fault in FAULTS:
        assert bool(fault.script) + bool(fault.outside) + bool(fault.clock) == 1, fault.name
        assert fault.costs in COSTS and set(fault.ways) <= set(WAYS)
        assert PARKED not in fault.ways or not fault.clock, f"{fault.name}: nothing runs whose clock could jump"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_sample_has_each_fault_and_each_way_and_is_the_same_again(seed: int) -> None:
    chosen = sample(seed, 40)
    assert chosen == sample(seed, 40) and chosen != sample(seed + 1, 40)
    assert len(chosen) == len(set(map(str, chosen))) == 40
    assert {one.fault.name for one in chosen} == {fault.name for fault in FAULTS}
    assert {one.point.way for one in chosen} == set(WAYS)


def test_batches_are_of_one_way_and_what_kills_the_controller_is_apart() -> None:
    found = list(batches(every(), 16))
    assert sum(len(batch) for batch in found) == len(every())
    for batch in found:
        assert len(batch) <= 16 and len({one.point.way for one in batch}) == 1
        kinds = {one.fault.outside for one in batch if one.fault.outside in ("playbook", "cable")}
        assert not kinds or ({one.fault.outside for one in batch} == kinds and len(kinds) == 1)
