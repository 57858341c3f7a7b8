# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What comes to the simulated driver's layer: nvidia-ml-py, if there is one, and never over one that is there."""

from pathlib import Path

import pytest

from tests.fleet.gpufleet_testfleet.layer import add_pynvml

PLACE = "usr/lib/python3/dist-packages/pynvml.py"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    packages = tmp_path / "venv/lib/python3.13/site-packages"
    packages.mkdir(parents=True)
    (packages / "pynvml.py").write_text("ours")
    return tmp_path / "venv"


def test_it_comes_from_the_virtual_environment(venv: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "usr").mkdir(parents=True)
    add_pynvml(venv, layer)
    assert (layer / PLACE).read_text() == "ours"
    assert {(layer / PLACE).parents[i].stat().st_mode & 0o777 for i in range(3)} == {0o755}


def test_a_layer_keeps_its_own(venv: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / PLACE).parent.mkdir(parents=True)
    (layer / PLACE).write_text("theirs")
    add_pynvml(venv, layer)
    assert (layer / PLACE).read_text() == "theirs"


def test_without_one_the_layer_stays_as_it_is(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    add_pynvml(tmp_path / "nothing", layer)
    assert list(layer.iterdir()) == []
