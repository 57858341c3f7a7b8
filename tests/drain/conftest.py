# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that all tests of the directory share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.drain.drainlab import Runs, watched
from tests.drain.drainlab import runs as run_directory
from tests.system.lab import Lab, build_simulator, labs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("GPUFLEET_DRAINS") == "all":
        return
    for item in items:
        if item.get_closest_marker("whole") is not None:
            item.add_marker(pytest.mark.skip(reason="takes minutes: GPUFLEET_DRAINS=all runs it"))


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated driver, built once."""
    return build_simulator(tmp_path_factory.mktemp("sim") / "root")


@pytest.fixture(scope="session")
def systemd_fleet(simulator: Path) -> Iterator[list[Lab]]:
    with labs(simulator, "--gpus", "1", "--vram", "1024", hosts=3, init="systemd") as every:
        yield every


@pytest.fixture(scope="session")
def large_fleet(simulator: Path) -> Iterator[list[Lab]]:
    with labs(simulator, "--gpus", "1", "--vram", "1024", hosts=16) as every:
        yield every


@pytest.fixture
def three(large_fleet: list[Lab]) -> Iterator[Sequence[Lab]]:
    """h1, h2 and h3, without systemd; afterwards every workload counts on, and no run holds a host."""
    with watched(large_fleet[:3]) as labs:
        yield labs


@pytest.fixture
def runs() -> Iterator[Runs]:
    with run_directory() as own:
        yield own
