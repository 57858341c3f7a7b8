# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a fleet with Slurm are one cluster."""

from tests.fleet.gpufleet_testfleet import seed_slurm

NAMES = ["h1", "h2", "h3"]


def test_every_host_is_a_node_and_the_first_one_the_controller() -> None:
    lines = seed_slurm.files(NAMES)["etc/slurm/slurm.conf"].splitlines()
    assert "SlurmctldHost=h1" in lines
    assert [line.split()[0] for line in lines if line.startswith("NodeName")] == ["NodeName=h1,h2,h3"]
    assert [line.split()[1] for line in lines if line.startswith("Partition")] == ["Nodes=h1,h2,h3"]


def test_only_the_first_one_runs_the_controller() -> None:
    assert [seed_slurm.masked(NAMES, name) for name in NAMES] == [(), ("slurmctld.service",), ("slurmctld.service",)]
