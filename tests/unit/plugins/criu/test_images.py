# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CRIU's own files: what a real image says, and what a damaged or made-up one can do."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import images, wire
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular
from tests.unit.plugins.criu.known import RECORDED, unpack

COMMON = struct.pack("<I", wire.COMMON)
PSTREE = COMMON + struct.pack("<I", 0x50273030)
PAGEMAP = COMMON + struct.pack("<I", 0x56084025)
DONE = "(00.1) Dumping finished successfully\n"


@pytest.fixture
def image(tmp_path: Path) -> str:
    return unpack(tmp_path / "image")


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def record(**fields: int) -> bytes:
    """f1=2: field 1 is 2."""
    body = b"".join(varint(int(name[1:]) << 3) + varint(value) for name, value in fields.items())
    return struct.pack("<I", len(body)) + body


def put(image: str, name: str, data: bytes) -> None:
    Path(image, name).write_bytes(data)


# What a real one says


def test_processes_with_their_threads(image: str) -> None:
    tasks = images.read_pstree(image)
    assert [(one.pid, one.parent, one.group, one.session, one.threads, one.name) for one in tasks] == [
        (223, 0, 223, 223, (223,), "sh"),
        (225, 223, 223, 223, (225, 228, 229), "victim"),
        (227, 225, 223, 223, (), "victim"),
        (226, 223, 223, 223, (226,), "sleep"),
    ]
    assert [one.state for one in tasks] == ["stopped", "stopped", "dead", "stopped"]
    assert [one.pid for one in tasks if one.is_zombie] == [227]


def test_memory_by_process(image: str) -> None:
    assert images.page_bytes(image) == {223: 122880, 225: 335872, 226: 114688}
    assert images.page_files(image) == ("pages-1.img", "pages-2.img", "pages-3.img")


def test_regular_files_with_programs_and_libraries(image: str) -> None:
    found = {one.path: one for one in images.regular_files(image)}
    assert found["/srv/data"] == OpenRegular("/srv/data", 10, writable=True)
    assert found["/srv/gone"] == OpenRegular("/srv/gone", 4, deleted=True, writable=True)
    assert found["/usr/bin/sleep"] == OpenRegular("/usr/bin/sleep", 43432)
    assert "/usr/lib/x86_64-linux-gnu/libc.so.6" in found
    # No directories and no devices: CRIU does not look at their size.
    assert not {"/", "/dev/null"} & set(found)


def test_a_log_that_may_grow_has_no_size(image: str) -> None:
    """CRIU writes none for O_WRONLY|O_APPEND."""
    path = Path(image, "files.img")
    body = (
        b"\x08\x07\x10" + varint(os.O_WRONLY | os.O_APPEND) + b"\x18\x00\x2a\x00\x32\x06/a.log\x50" + varint(0o100644)
    )
    entry = b"\x08\x01\x10\x07\x1a" + varint(len(body)) + body
    path.write_bytes(path.read_bytes() + struct.pack("<I", len(entry)) + entry)
    assert images.regular_files(image)[-1] == OpenRegular("/a.log", -1, writable=True)


def test_without_deleted_files_there_is_no_such_file(image: str) -> None:
    Path(image, "remap-fpath.img").unlink()
    assert not any(one.deleted for one in images.regular_files(image))


def test_complete(image: str) -> None:
    assert images.is_complete(image, "dump", DONE)
    assert not images.is_complete(image, "dump", "(00.1) Error (criu/cr-dump.c:2111): Dumping FAILED.\n")
    assert images.is_complete(image, "restore", "Restore finished successfully. Tasks resumed.")
    assert not images.is_complete(image, "restore", DONE)


@pytest.mark.parametrize("damage", ["missing", "empty", "other version"])
def test_incomplete_without_its_inventory(image: str, damage: str) -> None:
    path = Path(image, "inventory.img")
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:4] + record(f1=3))
    assert not images.is_complete(image, "dump", DONE)


# CRIU 4.2 and older ones


def test_pages_are_counted_in_the_wide_field_of_newer_images(image: str) -> None:
    put(image, "pagemap-9.img", PAGEMAP + record(f1=9) + record(f1=4096, f2=7, f4=4, f5=2))
    put(image, "pages-9.img", bytes(8192))
    assert images.page_bytes(image)[9] == 8192


def test_pages_of_a_parent_image_are_not_in_this_one(image: str) -> None:
    entries = record(f1=4096, f2=3, f4=1) + record(f1=8192, f2=2, f4=5) + record(f1=8192, f2=1, f3=1)
    put(image, "pagemap-9.img", PAGEMAP + record(f1=9) + entries + record(f1=16384, f2=1))
    put(image, "pages-9.img", bytes(4096))
    assert images.page_bytes(image)[9] == 4096


def test_shared_memory_belongs_to_no_process(image: str) -> None:
    put(image, "pagemap-shmem-77.img", PAGEMAP + record(f1=4) + record(f1=0, f2=1, f4=4))
    put(image, "pages-4.img", bytes(4096))
    assert set(images.page_bytes(image)) == {223, 225, 226}


# Hostile ones


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.unlink(), "pages-2.img: it can't be looked at: No such file"),
        (lambda path: os.truncate(path, 335871), "pages-2.img: it has 335871 bytes, and its maps tell of 335872"),
        (lambda path: os.truncate(path, 335873), "pages-2.img: it has 335873 bytes, and its maps tell of 335872"),
        (lambda path: (path.unlink(), path.mkdir()), "pages-2.img: it is no regular file"),
        (lambda path: (path.unlink(), path.symlink_to("pages-1.img")), "pages-2.img: it is no regular file"),
    ],
)
def test_memory_that_is_not_all_there(image: str, change: object, words: str) -> None:
    assert callable(change)
    change(Path(image, "pages-2.img"))
    with pytest.raises(images.ImageError, match=words):
        images.page_bytes(image)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "begins with nothing"),
        (b"\x7fELF", "begins with 7f454c46, not with 30302750"),
        (COMMON + b"\x00\x00\x00\x00", "begins with 00000000"),
        (PSTREE, "holds no process"),
        (PSTREE + b"\x05\x00", "ends in the middle"),
        (PSTREE + struct.pack("<I", 100) + b"abc", "ends in the middle"),
        (PSTREE + struct.pack("<I", 0xFFFFFFFF), "a record of 4294967295 bytes"),
        (PSTREE + struct.pack("<I", 3) + b"\x08\xff\xff", "number that does not end"),
        (PSTREE + struct.pack("<I", 12) + b"\x08" + b"\xff" * 11, "number that does not end"),
        (PSTREE + struct.pack("<I", 3) + b"\x0a\x7fx", "longer than its record"),
        (PSTREE + struct.pack("<I", 1) + b"\x0b", "unknown kind 3"),
        (PSTREE + struct.pack("<I", 2) + b"\x00\x00", "impossible fields"),
        (PSTREE + record(f2=0), "lacks its field 1"),
        (PSTREE + struct.pack("<I", 3) + b"\x0a\x01\x05", "field 1 is no number"),
        (PSTREE + record(f1=0, f2=0, f3=1, f4=1), "PID 0 is there twice, or is impossible"),
        (PSTREE + record(f1=1 << 23, f2=0, f3=1, f4=1), "impossible"),
        (PSTREE + record(f1=223, f2=1, f3=223, f4=223), "the parent 1, which is not in the tree"),
        (PSTREE + record(f1=223, f2=0, f3=1 << 30, f4=223), "impossible parent, group"),
        (PSTREE + record(f1=223, f2=0, f3=223, f4=223, f5=1 << 30), "impossible parent, group, session or thread"),
        (PSTREE + 2 * record(f1=223, f2=0, f3=223, f4=223), "PID 223 is there twice"),
        (PSTREE + record(f1=223, f2=0, f3=1, f4=1) + record(f1=225, f2=0, f3=1, f4=1), "PID 225 has the parent 0"),
        (PSTREE + record(f1=999, f2=0, f3=1, f4=1), "core-999.img: it can't be opened"),
    ],
)
def test_made_up_trees(image: str, data: bytes, words: str) -> None:
    put(image, "pstree.img", data)
    with pytest.raises(images.ImageError, match=words):
        images.read_pstree(image)


def test_no_link_is_followed_and_no_pipe_waited_for(image: str, tmp_path: Path) -> None:
    path = Path(image, "pstree.img")
    other = tmp_path / "other"
    path.rename(other)
    path.symlink_to(other)
    with pytest.raises(images.ImageError, match=r"pstree\.img: it can't be opened"):
        images.read_pstree(image)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(images.ImageError, match="no regular file"):
        images.read_pstree(image)


def test_random_damage_is_an_error_or_harmless(image: str) -> None:
    """Never another exception, never a hang: bytes changed, cut off, doubled."""
    chance = random.Random(5)
    names = ["pstree.img", "core-225.img", "pagemap-225.img", "files.img", "remap-fpath.img", "inventory.img"]
    refused = 0
    for _round in range(1500):
        name = chance.choice(names)
        whole = (RECORDED / name).read_bytes()
        data = bytearray(whole)
        for _change in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            kind = chance.randrange(3)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1 and len(data) > 1:
                del data[at : at + chance.randint(1, 8)]
            else:
                data[at:at] = data[at : at + chance.randint(1, 8)]
            if not data:
                break
        put(image, name, bytes(data))
        try:
            images.read_pstree(image)
            images.page_bytes(image)
            images.regular_files(image)
            images.is_complete(image, "dump", DONE)
        except images.ImageError as error:
            refused += 1
            assert str(error).startswith(error.name) and error.problem
        put(image, name, whole)
    assert refused > 500
