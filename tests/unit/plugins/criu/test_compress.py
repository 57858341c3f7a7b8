# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compressed images: the same bytes come out, beside the image, and nothing else does."""

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import compress, digest, hidden, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import Life, write_life
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest, write_manifest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import PATH
from tests.unit.plugins.criu.images_made import fill, make_manifest, names

pytestmark = pytest.mark.skipif(shutil.which("zstd", path=PATH) is None, reason="zstd is not installed")

CHANCE = random.Random(3)
FILES = {
    "core-1.img": b"core",
    "inventory.img": b"",
    "pages-1.img": CHANCE.randbytes(300000) + bytes(5 << 20),
    "pages-2.img": b"",
    "pages-3.img": b"x",
    "pages-4.img": bytes(range(256)) * 1000,
}
PAGES = [name for name in FILES if name.startswith("pages")]


def make(path: Path, given: dict[str, bytes] | None = None) -> Manifest:
    files = FILES if given is None else given
    partial = store.make_partial(str(path))
    fill(partial, files)
    compress.compress(partial, [name for name in PAGES if name in files])
    made = make_manifest(chunks=digest.digest(partial, store.content(partial)), compressed="zstd")
    write_manifest(partial, made)
    write_life(partial, Life())
    store.seal(partial, str(path))
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "image"


def refused(action: Callable[..., object], *arguments: object) -> CriuError:
    with pytest.raises(CriuError) as caught:
        action(*arguments)
    return caught.value


def test_what_comes_out_is_what_went_in(path: Path) -> None:
    made = make(path)
    kept = ["core-1.img", "inventory.img", "pages-2.img"]
    packed = ["pages-1.img.zst", "pages-3.img.zst", "pages-4.img.zst"]
    assert names(path) == sorted([*kept, *packed, "life.json", "manifest.json"])
    assert (path / "pages-1.img.zst").stat().st_size < 400000
    assert {one.stat().st_mode & 0o777 for one in path.iterdir()} == {0o600}
    assert digest.verify(str(path), made.chunks, "full") == ()
    before = os.umask(0)
    try:
        work = Path(compress.unpack(str(path), made))
    finally:
        os.umask(before)
    assert work.parent == path.parent and hidden.HIDDEN.fullmatch(work.name)
    assert {name: (work / name).read_bytes() for name in names(work) if name != ".owner"} == FILES
    assert work.stat().st_mode & 0o777 == 0o700
    assert {one.stat().st_mode & 0o777 for one in work.iterdir()} == {0o600}
    assert (work / "core-1.img").samefile(path / "core-1.img"), "a link takes no space"
    assert [one.path for one in store.list_images(str(path.parent))] == [str(path)]
    assert store.list_partials(str(path.parent))[0].active
    compress.discard(str(work))
    assert names(path.parent) == ["image"]
    assert digest.verify(str(path), made.chunks, "full") == ()


def test_it_is_given_back_when_its_user_died(path: Path) -> None:
    made = make(path)
    pid = os.fork()
    if not pid:
        compress.unpack(str(path), made)
        os._exit(0)
    os.waitpid(pid, 0)
    (left,) = store.list_partials(str(path.parent))
    assert not left.active and left.bytes > 5 << 20
    os.utime(left.path, (1, 1))
    hidden.sweep(str(path.parent))
    assert names(path.parent) == ["image"]


def test_only_what_is_ours_is_discarded(path: Path) -> None:
    make(path)
    with pytest.raises(ValueError, match="is none of ours"):
        compress.discard(str(path))
    assert path.exists()


@pytest.mark.parametrize("links", [errno.EPERM, errno.EOPNOTSUPP])
def test_where_there_are_no_hard_links(path: Path, monkeypatch: pytest.MonkeyPatch, links: int) -> None:
    made = make(path)

    def link(*_arguments: object, **_named: object) -> None:
        raise OSError(links, os.strerror(links))

    monkeypatch.setattr(os, "link", link)
    work = Path(compress.unpack(str(path), made))
    assert (work / "core-1.img").read_bytes() == b"core"
    assert (work / "core-1.img").stat().st_mode & 0o777 == 0o600
    compress.discard(str(work))


def test_without_zstd(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = make(path)
    monkeypatch.setattr(compress, "PATH", str(tmp_path / "nowhere"))
    for action, arguments in ((compress.unpack, (str(path), made)), (compress.compress, (str(path), ["core-1.img"]))):
        error = refused(action, *arguments)
        assert (error.subject, error.remedy, error.option) == ("zstd", "Install the package zstd.", "compress: none")
        assert str(tmp_path / "nowhere") in error.evidence


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it does not begin as zstd's files do"),
        (b"no zstd at all", "it does not begin as zstd's files do"),
        (b"\x28\xb5\x2f\xfd\x00\x58" + b"\x00" * 12, "it does not say how large it is unpacked"),
        (b"\x28\xb5\x2f\xfd\xc0\x58" + b"\xff" * 12, f"it claims to be {2**64 - 1} bytes unpacked"),
        (b"\x28\xb5\x2f\xfd\xe0" + b"\x01", "it does not say how large it is unpacked"),
    ],
)
def test_what_is_not_compressed_as_it_says(path: Path, data: bytes, words: str) -> None:
    made = make(path)
    (path / "pages-4.img.zst").write_bytes(data)
    error = refused(compress.unpack, str(path), made)
    assert (error.subject, error.evidence) == (str(path / "pages-4.img.zst"), words)
    assert names(path.parent) == ["image"]


def test_damage_in_the_middle_is_told_and_nothing_is_left(path: Path) -> None:
    made = make(path)
    data = bytearray((path / "pages-1.img.zst").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (path / "pages-1.img.zst").write_bytes(data)
    error = refused(compress.unpack, str(path), made)
    assert error.subject == str(path / "pages-1.img.zst") and "it could not be unpacked" in error.evidence
    assert names(path.parent) == ["image"]


def test_a_second_frame_does_not_write_more_than_the_first_has_said(path: Path) -> None:
    made = make(path)
    bomb = subprocess.run(["zstd", "-q", "-c"], input=bytes(256 << 20), capture_output=True, check=True).stdout
    with open(path / "pages-3.img.zst", "ab") as file:
        file.write(bomb)
    error = refused(compress.unpack, str(path), made)
    assert (error.subject, error.evidence) == (str(path / "pages-3.img.zst"), "it unpacks to more than it says")
    assert names(path.parent) == ["image"]


def test_room_is_looked_at_before_anything_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(path)
    seen = os.statvfs(path)
    values = list(seen)
    values[4] = (20 << 20) // seen.f_frsize
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(values))
    error = refused(compress.unpack, str(path), made)
    assert error.subject == str(path.parent) and error.evidence == "20 MiB are free, 21 MiB are needed"
    assert names(path.parent) == ["image"]


def test_one_name_from_two_files(path: Path) -> None:
    made = make(path)
    (path / "pages-4.img").write_bytes(b"other")
    both = make_manifest(chunks=digest.digest(str(path), store.content(str(path))), compressed="zstd")
    error = refused(compress.unpack, str(path), both)
    assert error.evidence == "pages-4.img is there as well"
    assert made != both and names(path.parent) == ["image"]


def test_a_name_is_never_taken_for_an_option(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name '--rm'"):
        compress.compress(str(tmp_path), ["--rm"])
    with pytest.raises(ValueError, match=r"name '\.\./x'"):
        compress.compress(str(tmp_path), ["../x"])
    assert compress.compress_argv("zstd", ["a"])[-2:] == ["--", "a"]
    assert compress.unpack_argv("zstd", "a", "b")[-2:] == ["--", "a"]
    assert "-T0" in compress.compress_argv("zstd", ["a"])


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    zstd = tmp_path / "zstd"
    zstd.write_text("#!/bin/sh\necho 'zstd: error 70 : Write error : No space left on device' >&2\nexit 70\n")
    zstd.chmod(0o755)
    (tmp_path / "a").write_text("x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compress, "PATH", str(tmp_path))
        error = refused(compress.compress, str(tmp_path), ["a"])
    assert "it could not be compressed: zstd: error 70" in error.evidence
    assert (error.remedy, error.option) == ("Free space on that file system.", "compress: none")
