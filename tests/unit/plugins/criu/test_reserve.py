# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Room that is kept for the way back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.reserve import BYTES, Reserve


def free(path: Path) -> int:
    room = os.statvfs(path)
    return room.f_bfree * room.f_frsize


def link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:  # the listing's own
        return ""


def test_it_has_no_name_and_is_given_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kept = Reserve(str(tmp_path))
    links = {name: link(name) for name in os.listdir("/proc/self/fd")}
    (handle,) = [int(name) for name, target in links.items() if target.startswith(str(tmp_path))]
    assert os.listdir(tmp_path) == []
    assert os.fstat(handle).st_blocks * 512 >= BYTES
    other = os.dup(handle)
    kept.release()
    kept.release()
    assert os.fstat(other).st_blocks == 0, "also where another process has it open"
    os.close(other)
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_room_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "posix_fallocate", full)
    Reserve(str(tmp_path)).release()
    Reserve(str(tmp_path / "missing")).release()
    assert len(os.listdir("/proc/self/fd")) == len(before)
