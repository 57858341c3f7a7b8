# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base images of several flavours in one cache."""

import fcntl
import hashlib
import os
from pathlib import Path

import pytest

from tests.fleet.gpufleet_testfleet import base, recipe, recipe_slurm


def test_the_plain_image_knows_nothing_of_flavours() -> None:
    assert base.key() == hashlib.sha256(Path(recipe.__file__).read_bytes()).hexdigest()[:12]
    assert base.packages() == recipe.PACKAGES


def test_a_flavour_is_an_image_of_its_own() -> None:
    assert base.key("slurm") != base.key()
    assert set(base.packages("slurm")) == {*recipe.PACKAGES, *recipe_slurm.PACKAGES}
    assert "slurmctld" in base.packages("slurm")


def images(cache: Path, *names: str) -> None:
    for age, name in enumerate(names):
        (cache / name).mkdir()
        os.utime(cache / name, (1_000_000 - age, 1_000_000 - age))


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


@pytest.mark.parametrize("flavour,prefix,other", [("", "base-", "base+slurm-"), ("slurm", "base+slurm-", "base-")])
def test_each_flavour_keeps_its_last_ones(tmp_path: Path, flavour: str, prefix: str, other: str) -> None:
    images(tmp_path, f"{prefix}new", f"{prefix}old", f"{prefix}older", f"{other}a", f"{other}b", f"{other}c")
    base._prune(tmp_path, tmp_path / f"{prefix}new", flavour)
    assert left(tmp_path) == sorted([f"{prefix}new", f"{prefix}old", f"{other}a", f"{other}b", f"{other}c"])


def test_an_image_with_a_host_on_it_stays(tmp_path: Path) -> None:
    images(tmp_path, "base-new", "base-old", "base-older")
    fd = os.open(tmp_path / "base-older", os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        base._prune(tmp_path, tmp_path / "base-new", "")
    finally:
        os.close(fd)
    assert left(tmp_path) == ["base-new", "base-old", "base-older"]
