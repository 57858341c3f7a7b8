# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each version of the driver brings."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import drivers

EARLY = ("toggle", "actions", "libcuda", "nvml_users")


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("535.274.02", ()),
        ("545.23.08", ()),
        ("550.163.01", ("toggle",)),
        ("555.58.02", ("toggle", "actions")),
        ("570.86.10", EARLY),
        ("575.51.03", EARLY),
        ("575.57.08", (*EARLY, "some_gpus")),
        ("580.159.04", (*EARLY, "some_gpus", "device_map")),
        ("590.48.01", (*EARLY, "some_gpus", "device_map", "launch_job")),
        ("610.10", (*EARLY, "some_gpus", "device_map", "launch_job", "cuda_ipc")),
        ("", ()),
        ("580.x", ()),
    ],
)
def test_each_version_brings_what_it_is_known_for(version: str, names: tuple[str, ...]) -> None:
    assert tuple(one.name for one in drivers.features(drivers.parse(version))) == names
    assert all(drivers.has(drivers.parse(version), name) for name in names)


@pytest.mark.parametrize(
    ("version", "denied"),
    [("610.57", True), ("610.57.02", True), ("610.5", False), ("610.58", False), ("590.57", False), ("", False)],
)
def test_a_version_on_the_list_is_denied_with_all_its_builds(version: str, denied: bool) -> None:
    assert bool(drivers.denied(drivers.parse(version))) is denied


@pytest.mark.parametrize(
    ("text", "version"), [("575.57.08", (575, 57, 8)), ("550", (550,)), ("", ()), ("12a.1", ()), ("580.", ())]
)
def test_versions_are_numbers(text: str, version: tuple[int, ...]) -> None:
    assert drivers.parse(text) == version


def test_a_version_is_shown_as_nvidia_writes_it() -> None:
    assert [drivers.show(version) for version in ((550,), (575, 57, 8), (610, 57))] == ["550", "575.57.08", "610.57"]


def test_versions_are_compared_as_numbers() -> None:
    assert drivers.has(drivers.parse("1000.1"), "device_map")
    assert not drivers.has(drivers.parse("575.57.07"), "some_gpus")
    assert drivers.has(drivers.parse("575.144.03"), "some_gpus")


def test_the_table_is_in_order_and_names_each_feature_once() -> None:
    assert list(drivers.FEATURES) == sorted(drivers.FEATURES, key=lambda one: one.since)
    assert len({one.name for one in drivers.FEATURES}) == len(drivers.FEATURES)
    assert {one.since[0] for one in drivers.FEATURES} == {550, 555, 570, 575, 580, 590, 610}
    sources = {one.source for one in drivers.FEATURES} | {one.source for one in drivers.DENIED}
    assert sources <= {"measured", "documented", "reported"}


def test_a_name_that_is_none_is_no_feature() -> None:
    with pytest.raises(KeyError):
        drivers.feature("teleport")
