# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checksums: what differs is found, and named."""

import errno
import hashlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import digest as module
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.digest import (
    FileDigest,
    chunk_bytes,
    digest,
    verify,
)

CHUNK = 1000
SIZES = {"empty": 0, "one": 1, "exact": CHUNK, "more": CHUNK + 1, "many": 7 * CHUNK + 13}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    chance = random.Random(1)
    for name, size in SIZES.items():
        (tmp_path / name).write_bytes(chance.randbytes(size))
    return tmp_path


def taken(image: Path, parallel: int = 2) -> tuple[FileDigest, ...]:
    return digest(str(image), list(SIZES), CHUNK, parallel)


@pytest.mark.parametrize("parallel", [0, 1, 2, 16])
def test_each_chunk_is_hashed_whoever_does_it(image: Path, parallel: int) -> None:
    for one in taken(image, parallel):
        data = (image / one.name).read_bytes()
        expected = [hashlib.sha256(data[at : at + CHUNK]).hexdigest() for at in range(0, max(1, len(data)), CHUNK)]
        assert (one.bytes, one.chunk_bytes, list(one.sha256s)) == (SIZES[one.name], CHUNK, expected)
    assert [one.name for one in taken(image, parallel)] == list(SIZES)


def test_a_chunk_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    data = random.Random(2).randbytes((5 << 20) + 7)
    (tmp_path / "a").write_bytes(data)
    (one,) = digest(str(tmp_path), ["a"], 4 << 20)
    assert one.sha256s == (hashlib.sha256(data[: 4 << 20]).hexdigest(), hashlib.sha256(data[4 << 20 :]).hexdigest())
    assert verify(str(tmp_path), [one], "full") == ()


@pytest.mark.parametrize(
    ("total", "mib"),
    [(0, 4), (8 << 30, 4), ((8 << 30) + 1, 8), (16 << 30, 8), (40 << 30, 32), (128 << 30, 64), (2 << 40, 64)],
)
def test_a_small_image_has_small_chunks_and_a_large_one_no_larger_ones_than_64_mib(total: int, mib: int) -> None:
    assert chunk_bytes(total) == mib << 20


def test_all_files_of_an_image_have_chunks_of_the_size_that_all_of_them_give(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(5 << 20)
    digests = digest(str(tmp_path), ["a", "b"])
    assert [(one.chunk_bytes, len(one.sha256s)) for one in digests] == [(4 << 20, 2), (4 << 20, 2)]
    assert verify(str(tmp_path), digests, "full") == ()


def test_the_cores_are_busy_to_nearly_the_end() -> None:
    """Chunks of one size, taken in turn: in the last turn some cores have none."""
    total = (8 << 30) + 1
    count = -(-total // chunk_bytes(total))
    for cores in (16, 32, 64):
        assert count / cores / -(-count // cores) > 0.9


@pytest.mark.parametrize("how", ["none", "sizes", "full"])
def test_nothing_is_said_of_an_image_that_is_as_it_was(image: Path, how: str) -> None:
    digests = taken(image)
    for name in ("manifest.json", "life.json", "dump.log", "restore.log", "stats-restore", ".owner"):
        (image / name).write_text("not a part of the image")
    assert verify(str(image), digests, how) == ()


def test_one_byte_is_found_in_its_chunk_by_reading_all_and_only_so(image: Path) -> None:
    digests = taken(image)
    with open(image / "many", "r+b") as file:
        file.seek(3 * CHUNK + 5)
        was = file.read(1)
        file.seek(3 * CHUNK + 5)
        file.write(bytes([was[0] ^ 1]))
    assert verify(str(image), digests, "full") == ("many is damaged: chunk 4 of 8 (from byte 3000) differs",)
    assert verify(str(image), digests, "sizes") == () == verify(str(image), digests, "none")


@pytest.mark.parametrize("name", [name for name, size in SIZES.items() if size])
def test_every_single_flipped_bit_is_found(image: Path, name: str) -> None:
    digests = taken(image)
    whole = (image / name).read_bytes()
    chance = random.Random(name)
    for _round in range(20):
        at, bit = chance.randrange(len(whole)), chance.randrange(8)
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        (image / name).write_bytes(flipped)
        (problem,) = verify(str(image), digests, "full")
        assert problem.startswith(f"{name} is damaged: chunk {at // CHUNK + 1} of ")
    (image / name).write_bytes(whole)
    assert verify(str(image), digests, "full") == ()


@pytest.mark.parametrize("how", ["sizes", "full"])
def test_what_is_missing_added_cut_or_longer_is_named(image: Path, how: str) -> None:
    digests = taken(image)
    (image / "one").unlink()
    (image / "core-9.img").write_bytes(b"")
    os.truncate(image / "exact", CHUNK - 1)
    with open(image / "more", "ab") as file:
        file.write(b"x")
    assert set(verify(str(image), digests, how)) == {
        "one is missing",
        "core-9.img is not in the manifest",
        "exact has 999 bytes instead of 1000",
        "more has 1002 bytes instead of 1001",
    }


@pytest.mark.parametrize("how", ["sizes", "full"])
def test_a_link_is_no_file(image: Path, how: str) -> None:
    digests = taken(image)
    (image / "one").rename(image / ".one")
    (image / "one").symlink_to(".one")
    assert verify(str(image), digests, how) == ("one can't be read: one is no regular file",)
    with pytest.raises(OSError, match="one is no regular file"):
        taken(image)


def test_a_pipe_is_no_file_and_nobody_waits_for_it(image: Path) -> None:
    digests = taken(image)
    (image / "one").unlink()
    os.mkfifo(image / "one")
    assert verify(str(image), digests, "full") == ("one can't be read: one is no regular file",)


def test_a_name_with_a_terminals_escape_is_shown_without_it(image: Path) -> None:
    digests = taken(image)
    (image / "\x1b[2J").write_text("")
    assert verify(str(image), digests, "sizes") == ("\\x1b[2J is not in the manifest",)


def test_many_problems_are_counted(image: Path) -> None:
    digests = taken(image)
    for number in range(70):
        (image / f"odd-{number}").write_text("")
    problems = verify(str(image), digests, "sizes")
    assert len(problems) == 51 and problems[-1] == "20 more"


def test_a_file_that_is_missing_can_not_be_hashed(image: Path) -> None:
    (image / "one").unlink()
    with pytest.raises(FileNotFoundError):
        taken(image)
    with pytest.raises(ValueError, match="how 'half'"):
        verify(str(image), (), "half")
    with pytest.raises(FileNotFoundError):
        verify(str(image / "elsewhere"), (), "full")


@pytest.mark.parametrize("parallel", [1, 4])
def test_after_an_error_sealing_begins_nothing_more_and_verifying_goes_on(
    image: Path, monkeypatch: pytest.MonkeyPatch, parallel: int
) -> None:
    digests = taken(image)
    begun = []

    def broken(task: Any, _buffer: memoryview) -> str:
        begun.append((task.name, task.start))
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module, "_hash", broken)
    with pytest.raises(OSError, match="Input/output error"):
        taken(image, parallel)
    assert 1 <= len(begun) <= parallel
    del begun[:]
    problems = verify(str(image), digests, "full", parallel)
    assert len(problems) == len(begun) == len(set(begun)) == sum(len(one.sha256s) for one in digests)
    assert "many can't be read in chunk 4 of 8 (from byte 3000): Input/output error" in problems


def test_a_file_that_grows_while_it_is_read_is_named(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = taken(image)
    hash_one = module._hash

    def grown(task: Any, buffer: memoryview) -> str:
        if task.name == "one":
            os.truncate(image / "one", 2)
        return hash_one(task, buffer)

    monkeypatch.setattr(module, "_hash", grown)
    with pytest.raises(OSError, match=r"/one changes while it is read"):
        taken(image)
    os.truncate(image / "one", 1)
    (problem,) = verify(str(image), digests, "full")
    assert problem == "one can't be read in chunk 1 of 1 (from byte 0): it changes while it is read"


def test_no_descriptor_is_left_open(image: Path) -> None:
    before = os.listdir("/proc/self/fd")
    digests = taken(image, 8)
    verify(str(image), digests, "full")
    (image / "one").unlink()
    with pytest.raises(FileNotFoundError):
        taken(image, 8)
    assert os.listdir("/proc/self/fd") == before
