# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that several files of tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.lab import Lab, build_simulator, labs


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated driver, built once."""
    return build_simulator(tmp_path_factory.mktemp("sim") / "root")


@pytest.fixture(scope="session")
def two_labs(simulator: Path) -> Iterator[list[Lab]]:
    """Two hosts without systemd, driver 580, each with two GPUs of 1 GiB."""
    with labs(simulator, "--gpus", "2", "--vram", "1024", hosts=2) as both:
        yield both


@pytest.fixture(scope="session")
def second_lab(two_labs: list[Lab]) -> Lab:
    """For what takes long: used by one file at a time, which watches it itself."""
    return two_labs[1]


@pytest.fixture
def lab(two_labs: list[Lab]) -> Iterator[Lab]:
    """After the test every job counts on with the memory that it had, and nothing is left behind."""
    with two_labs[0].watched() as one:
        yield one


@pytest.fixture
def trainer(lab: Lab) -> str:
    """A user of the host, with a home directory."""
    lab.host.sh("id trainer >/dev/null 2>&1 || useradd -m -s /bin/sh trainer")
    return "trainer"
