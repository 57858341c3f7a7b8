# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sample of the matrix, always the same: each fault and each way at least once. All of it: `make faults`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.drain.drainlab import Runs, on_each
from tests.drain.drainlab import runs as run_directory
from tests.faults.batch import Batch
from tests.faults.matrix import Scenario, batches, sample
from tests.system.lab import Lab, build_simulator, labs
from tests.system.striking import prepare

SEED, COUNT, HOSTS = 1, 48, 12
BATCHES = list(batches(sample(SEED, COUNT), HOSTS))


@pytest.fixture(scope="module")
def fleet_of_labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Lab]]:
    simulator = build_simulator(tmp_path_factory.mktemp("sim") / "root")
    with labs(simulator, "--gpus", "1", "--vram", "512", "--disk", "1536", hosts=HOSTS) as every:
        on_each(every, prepare)
        yield every


@pytest.fixture
def runs() -> Iterator[Runs]:
    with run_directory() as own:
        yield own


@pytest.mark.parametrize("scenarios", BATCHES, ids=lambda batch: f"{batch[0].point.way}-{len(batch)}")
def test_nothing_is_lost(fleet_of_labs: list[Lab], runs: Runs, scenarios: Sequence[Scenario]) -> None:
    outcomes = Batch(fleet_of_labs, scenarios, runs).run()
    told = "\n".join(outcome.line() for outcome in outcomes)
    print(told)
    assert all(outcome.fired for outcome in outcomes), told
    assert not any(outcome.problems for outcome in outcomes), told
