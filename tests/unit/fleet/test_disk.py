# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sparse copies, state files and locks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.gpufleet_testfleet import disk, state
from tests.fleet.gpufleet_testfleet.errors import FleetError
from tests.fleet.gpufleet_testfleet.options import Options


@pytest.mark.parametrize("offsets", [[], [0], [5 << 20], [0, 3 << 20, (16 << 20) - 4]])
def test_copy_sparse(tmp_path: Path, offsets: list[int]) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with open(source, "wb") as file:
        file.truncate(16 << 20)
        for offset in offsets:
            file.seek(offset)
            file.write(b"data")
    target.write_bytes(b"what was there before" * 1000)
    disk.copy_sparse(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks <= source.stat().st_blocks + 8


def test_state_survives(tmp_path: Path) -> None:
    directory = state.Directory(tmp_path)
    fleet = state.Fleet(directory, Options(hosts=2, settings={"seed": "x"}), Path("/base"))
    fleet.save()
    assert state.load(directory) == fleet
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.json"]


def test_no_fleet_and_foreign_state(tmp_path: Path) -> None:
    directory = state.Directory(tmp_path)
    with pytest.raises(FleetError, match="no such fleet"):
        state.load(directory)
    directory.state.write_text('{"format": 99}')
    with pytest.raises(FleetError, match="another version"):
        state.load(directory)


def test_read_json_of_a_torn_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for text in ("", '{"phase": ', "[1]", "\udcff"):
        path.write_text(text, errors="surrogateescape")
        assert state.read_json(path) is None


def test_lock_excludes_and_survives_removal_of_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "locked"
    program = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "try:\n    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept BlockingIOError:\n    sys.exit(3)\n"
    )

    def other() -> int:
        return subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode

    with state.Lock(path):
        assert other() == 3
    assert other() == 0
    with state.Lock(path, shared=True), state.Lock(path, shared=True):
        assert other() == 3
        os.rmdir(path)
        with state.Lock(path):
            assert path.is_dir()
