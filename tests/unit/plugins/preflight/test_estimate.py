# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes and seconds, by this host's own rates or the slowest known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import StepRecord, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import DUMP_STEP, RESTORE_STEP
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import estimate
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.estimate import GIB, Load, Rate
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

MIB = 1 << 20


def step(gib: float, seconds: float) -> StepRecord:
    return StepRecord(operation=1, step="checkpoint", at=0.0, seconds=seconds, bytes=int(gib * GIB))


def rates(**gib_per_second: float) -> dict[str, Rate]:
    known = {"suspend": 1.0, "dump": 2.0, "restore": 4.0, "resume": 8.0, **gib_per_second}
    return {phase: Rate(value * GIB, 1) for phase, value in known.items()}


def test_without_a_journal_the_slowest_that_was_measured_counts() -> None:
    known = estimate.rates({})
    assert {phase: rate.measured for phase, rate in known.items()} == dict.fromkeys(estimate.PHASES, 0)
    of_one_gib = {phase: GIB / rate.bytes_per_second for phase, rate in known.items()}
    assert of_one_gib == pytest.approx({"suspend": 0.87, "resume": 0.425, "dump": 0.725, "restore": 0.599}, abs=0.001)


def test_what_this_host_measured_counts_once_there_is_any() -> None:
    known = estimate.rates({"checkpoint": [step(8, 2.0)], "restore": [step(8, 1.0)]})
    assert known["suspend"] == Rate(4 * GIB, 1) and known["resume"] == Rate(8 * GIB, 1)
    assert known["dump"].measured == 0


def test_what_images_took_on_this_host_counts_for_dump_and_restore(tmp_path: Path) -> None:
    """The names that criu_image measures by are those that are asked for."""
    with open_journal(str(tmp_path / "checkpoint.db")) as journal:
        root = Identity(7, 8, "boot")
        row = journal.begin_image(lineage="a", path="/i", run_id="run", root=root, leave="killed", worker=None)
        journal.image_measured(row.id, DUMP_STEP, 4.0, 8 * GIB)
        journal.image_measured(row.id, RESTORE_STEP, 2.0, 8 * GIB)
        known = estimate.rates({name: journal.history(name) for name in estimate.STEPS.values()})
    assert known["dump"] == Rate(2 * GIB, 1) and known["restore"] == Rate(4 * GIB, 1)
    assert known["suspend"].measured == known["resume"].measured == 0


def test_of_many_measurements_the_slowest_tenth_counts_and_an_outlier_does_not() -> None:
    steps = [step(10, seconds) for seconds in (100.0, 10.0, *[5.0] * 18)]
    assert estimate.rates({"checkpoint": steps})["suspend"] == Rate(2 * GIB, 20)
    assert estimate.rates({"checkpoint": steps[:9]})["suspend"] == Rate(0.1 * GIB, 9)


def test_steps_that_moved_nothing_or_took_no_time_are_no_measurement() -> None:
    assert estimate.rates({"checkpoint": [step(0, 1.0), step(1, 0.0)]})["suspend"].measured == 0


def test_a_running_process_is_suspended_dumped_restored_and_resumed() -> None:
    one = estimate.of_process(Load(1, 8 * GIB, GIB, False), rates())
    image = GIB + 8 * GIB + 8 * GIB // 256 + 64 * MIB
    assert one.image == image
    assert one.seconds == {"suspend": 8.0, "dump": image / (2 * GIB), "restore": image / (4 * GIB), "resume": 1.0}


def test_a_suspended_process_is_not_suspended_again_and_its_memory_is_on_the_host_already() -> None:
    one = estimate.of_process(Load(1, 8 * GIB, 9 * GIB, True), rates())
    assert one.image == 9 * GIB and set(one.seconds) == {"dump", "restore", "resume"}


def test_what_a_process_holds_may_be_unknown() -> None:
    one = estimate.of_process(Load(1, None, GIB, False), rates())
    assert one.image is None and one.seconds == {}
    parked = estimate.of_process(Load(1, None, 9 * GIB, True), rates())
    assert parked.image == 9 * GIB and set(parked.seconds) == {"dump", "restore"}


def test_processes_at_once_take_as_long_as_the_longest_while_there_are_lanes() -> None:
    loads = [Load(pid, gib * GIB, 0, False) for pid, gib in ((1, 8), (2, 2), (3, 2))]
    work = estimate.work(loads, rates(), processors=16)
    assert work.seconds["suspend"] == 8.0 and work.in_turn["suspend"] == 12.0
    assert (work.device, work.unknown) == (12 * GIB, 0)


@pytest.mark.parametrize(("processors", "seconds"), [(2, 16.0), (4, 8.0), (8, 4.0), (64, 4.0), (1, 32.0)])
def test_more_processes_than_lanes_wait_for_each_other(processors: int, seconds: float) -> None:
    loads = [Load(pid, GIB, 0, False) for pid in range(32)]
    assert estimate.work(loads, rates(), processors).seconds["suspend"] == seconds


def test_eight_processes_of_eight_gib_come_out_near_what_was_measured() -> None:
    """Measured on two H200s without huge pages: 5.8 s to suspend, 3.4 s to resume."""
    loads = [Load(pid, 8 * GIB, 0, False) for pid in range(8)]
    work = estimate.work(loads, estimate.rates({}), processors=16)
    assert 5.8 <= work.seconds["suspend"] <= 1.3 * 5.8
    assert 3.4 <= work.seconds["resume"] <= 1.3 * 3.4


def test_no_process_takes_no_time() -> None:
    work = estimate.work([], rates(), 4)
    assert (work.image, work.device, work.unknown) == (0, 0, 0)
    assert estimate.of_capabilities(work.seconds) == {"suspend": 0.0, "dump": 0.0, "migrate": 0.0}


def test_unknown_processes_are_counted_and_not_guessed() -> None:
    work = estimate.work([Load(1, None, GIB, False), Load(2, GIB, 0, False)], rates(), 4)
    assert work.unknown == 1 and work.device == GIB and work.image == GIB + GIB // 256 + 64 * MIB


def test_a_capability_takes_its_phases_there_and_back() -> None:
    seconds = {"suspend": 1.0, "dump": 2.0, "restore": 4.0, "resume": 8.0}
    assert estimate.of_capabilities(seconds) == {"suspend": 9.0, "dump": 15.0, "migrate": 15.0}
