# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has a device open or mapped, read from real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _device_holders
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_holders import read_holders

PROGRAM = """
import mmap, sys
opened = open(sys.argv[1] + "0", "r+b")
with open(sys.argv[1] + "-uvm", "r+b") as stream:
    mapped = mmap.mmap(stream.fileno(), 4096)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files in the place of devices."""
    prefix = f"{tmp_path}/nvidia"
    for name in ("0", "-uvm"):
        Path(prefix + name).write_bytes(bytes(4096))
    monkeypatch.setattr(_device_holders, "_DEVICE", prefix)
    return prefix


@pytest.fixture
def holder(devices: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, devices], stdin=-1, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def test_what_is_open_and_what_is_mapped_is_found(devices: str, holder: int) -> None:
    (found,) = read_holders()
    assert found.pid == holder
    assert found.files == (devices + "-uvm", devices + "0")
    assert found.executable == os.path.realpath(sys.executable)
    assert found.as_dict()["files"] == [devices + "-uvm", devices + "0"]


def test_who_is_left_out_is_left_out(devices: str, holder: int) -> None:
    with open(devices + "0", "rb"):
        assert [one.pid for one in read_holders()] == [holder], "not this process itself"
        assert read_holders({holder}) == ()
