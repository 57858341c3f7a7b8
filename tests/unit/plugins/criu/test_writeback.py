# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of an image on their way to the disk while they are still being written."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Dict, List, Tuple

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import writeback
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.writeback import PIECE, Writeback, hand_over


def grown(path: Path, size: int) -> None:
    with open(path, "ab") as stream:
        stream.truncate(size)


def test_whole_pieces_of_files_of_pages_and_each_once(tmp_path: Path) -> None:
    calls: List[Tuple[int, int]] = []
    done: Dict[str, int] = {}

    def write(_handle: int, start: int, length: int) -> None:
        calls.append((start, length))

    grown(tmp_path / "pages-1.img", 2 * PIECE + 5)
    grown(tmp_path / "core-1.img", 4 * PIECE)
    grown(tmp_path / "xpages-1.img", 4 * PIECE)
    assert hand_over(str(tmp_path), done, write, lambda: False)
    assert calls == [(0, PIECE), (PIECE, PIECE)]
    assert not hand_over(str(tmp_path), done, write, lambda: False), "nothing new"
    grown(tmp_path / "pages-1.img", 3 * PIECE)
    assert hand_over(str(tmp_path), done, write, lambda: False)
    assert calls[2:] == [(2 * PIECE, PIECE)]
    os.unlink(tmp_path / "pages-1.img")
    assert not hand_over(str(tmp_path), done, write, lambda: False)
    grown(tmp_path / "pages-1.img", PIECE)
    assert hand_over(str(tmp_path), done, write, lambda: False), "written anew"
    assert calls[3:] == [(0, PIECE)]


def test_a_link_is_not_followed_and_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    grown(tmp_path / "elsewhere", PIECE)
    (tmp_path / "pages-1.img").symlink_to(tmp_path / "elsewhere")
    assert not hand_over(str(tmp_path), {}, lambda *_all: pytest.fail("followed"), lambda: False)
    assert not hand_over(str(tmp_path / "none"), {}, lambda *_all: None, lambda: False)


def test_it_stops_between_two_pieces(tmp_path: Path) -> None:
    calls: List[int] = []
    grown(tmp_path / "pages-1.img", 8 * PIECE)
    hand_over(str(tmp_path), {}, lambda _handle, start, _length: calls.append(start), lambda: bool(calls))
    assert calls == [0]


def test_the_kernel_has_written_it_though_nobody_has_synced(tmp_path: Path) -> None:
    """Of a file system in memory there is nothing to see."""
    if writeback._sync_file_range() is None:
        pytest.skip("this C library has no sync_file_range")
    path = tmp_path / "pages-1.img"
    with Writeback(str(tmp_path)):
        path.write_bytes(os.urandom(4 * PIECE))
        end = time.monotonic() + 20
        # Blocks are given to a file when its data is written back.
        while path.stat().st_blocks * 512 < 4 * PIECE and time.monotonic() < end:
            time.sleep(0.02)
    assert path.stat().st_blocks * 512 >= 4 * PIECE


def test_nothing_of_it_is_left(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with Writeback(str(tmp_path)) as one:
        os.close(writer)
        assert os.read(reader, 1) == b"", "it holds none of its parent's descriptors"
        pid = one._pid
        assert Path(f"/proc/{pid}").exists()
    os.close(reader)
    assert not Path(f"/proc/{pid}").exists()


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    told, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        with Writeback(str(tmp_path)) as one:
            os.write(tell, b"%d\n" % one._pid)
            time.sleep(60)
        os._exit(0)
    pid = int(os.read(told, 32))
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < end
        time.sleep(0.02)
    os.close(told)
    os.close(tell)
