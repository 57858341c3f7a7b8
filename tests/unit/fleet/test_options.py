# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of `fleet up` and the simulated driver's configuration."""

import dataclasses
from typing import Any

import pytest

from tests.fleet.gpufleet_testfleet.errors import FleetError
from tests.fleet.gpufleet_testfleet.names import Host
from tests.fleet.gpufleet_testfleet.options import DRIVERS, Options, gpusim_conf, parse_settings


@pytest.mark.parametrize("driver", [*DRIVERS, "580.159.04", "535.1"])
def test_drivers(driver: str) -> None:
    Options(hosts=1, driver=driver).check()


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"hosts": 0}, "1 to 64 hosts"),
        ({"hosts": 65}, "1 to 64 hosts"),
        ({"hosts": -1}, "1 to 64 hosts"),
        ({"gpus": -1}, "--gpus -1"),
        ({"vram": 0}, "--vram 0"),
        ({"vram": (1 << 24) + 1}, "1 to 16777216 MiB"),
        ({"disk": 1}, "--disk 1"),
        ({"disk": 99999999999}, "256 to 16777216 MiB"),
        ({"sim": "/nonexistent"}, "--sim /nonexistent"),
        ({"init": "upstart"}, "--init upstart"),
        ({"flavour": "pbs"}, "--with pbs: unknown"),
        ({"flavour": "slurm", "init": "none"}, "leave out --init none"),
        ({"driver": "581"}, "unknown driver version"),
        ({"driver": "418.40"}, "unknown driver version"),
        ({"driver": "580."}, "unknown driver version"),
        ({"driver": ""}, "unknown driver version"),
        ({"model": "two\nlines"}, "one line"),
        ({"settings": {"Bad-Key": "1"}}, "--set Bad-Key"),
        ({"settings": {"gpus": "100"}}, "use --gpus"),
        ({"settings": {"vram_mib": "1"}}, "use --vram"),
        ({"settings": {"context_mib": "-1"}}, "--set context_mib=-1"),
        ({"settings": {"copy_mib_per_s": "fast"}}, "from 0 to 16777216"),
        ({"settings": {"host_overhead_mib": "1048577"}}, "from 0 to 1048576"),
        ({"settings": {"seed": "a\nb"}}, "--set seed"),
    ],
)
def test_refusals(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FleetError, match=said):
        dataclasses.replace(Options(hosts=1), **changes).check()


def test_settings() -> None:
    assert parse_settings(["seed=a=b", "context_mib=0", "seed="]) == {"seed": "", "context_mib": "0"}
    with pytest.raises(FleetError, match="KEY=VALUE"):
        parse_settings(["seed"])


def test_options_survive_the_state_file() -> None:
    options = Options(hosts=3, gpus=2, driver="550", settings={"seed": "x"}, sim="/layer", flavour="slurm")
    assert Options.from_json(options.as_json()) == options


def test_gpusim_conf() -> None:
    options = Options(hosts=1, gpus=2, vram=1024, driver="570", model="A B", settings={"copy_mib_per_s": "100"})
    assert gpusim_conf(options, Host("0123abcd", 7)).splitlines() == [
        "driver=570",
        "gpus=2",
        "vram_mib=1024",
        "model=A B",
        "seed=h7",
        "context_mib=64",
        "host_overhead_mib=8",
        "copy_mib_per_s=100",
    ]
