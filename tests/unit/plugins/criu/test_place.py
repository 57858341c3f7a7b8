# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where an image may lie."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import place
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import check_place, make_way


def refused(path: object) -> CriuError:
    with pytest.raises(CriuError) as caught:
        check_place(str(path))
    assert caught.value.remedy
    return caught.value


def test_a_place_of_ones_own(tmp_path: Path) -> None:
    check_place(str(tmp_path / "image"))
    check_place(str(tmp_path / "not" / "there" / "yet"))
    (tmp_path / "image").mkdir(0o700)
    check_place(str(tmp_path / "image"))
    check_place("/image")


@pytest.mark.parametrize("path", ["image", "./image", "", "/a/../b", "/a/./b", "/a//b", "//a", "/a/", "/a\0b", "~/a"])
def test_only_one_spelling_of_a_path(path: str) -> None:
    assert "it is not absolute, or has . or .. or an empty part in it" in refused(path).evidence


@pytest.mark.parametrize("name", [".hidden", "-rf", "a b", "a\nb", "ä", "x" * 201, "image.partial", "a;b", "*"])
def test_names_that_are_none_for_an_image(tmp_path: Path, name: str) -> None:
    error = refused(tmp_path / name)
    assert "is no name for an image" in error.evidence
    assert str(error).isprintable()


def test_the_root_is_no_image() -> None:
    assert "is no name for an image" in refused("/").evidence


def test_a_symbolic_link_on_the_way_is_named_with_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    for path in (tmp_path / "link" / "image", tmp_path / "link" / "below" / "image"):
        error = refused(path)
        assert error.evidence == f"{tmp_path}/link is a symbolic link"
    assert error.remedy == f"Name the place itself: {tmp_path}/real/below"


def test_a_symbolic_link_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "image").symlink_to("/etc")
    assert refused(tmp_path / "image").evidence == f"{tmp_path}/image is a symbolic link"
    (tmp_path / "image").unlink()
    (tmp_path / "image").symlink_to("nowhere")
    assert refused(tmp_path / "image").evidence == f"{tmp_path}/image is a symbolic link"


def test_a_file_in_its_place_or_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refused(tmp_path / "file").evidence == "it is no directory"
    assert refused(tmp_path / "file" / "image").evidence == f"{tmp_path}/file is no directory"


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777, 0o703])
def test_a_directory_that_others_can_write(tmp_path: Path, mode: int) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(mode)
    error = refused(store / "image")
    assert error.evidence == f"others can write {store} (mode {mode:04o})"
    assert error.remedy == f"Choose another path, or close it: chmod go-w {store}"
    assert "secrets" in error.reason


def test_the_sticky_bit_helps_further_up_and_not_where_the_name_is_made(tmp_path: Path) -> None:
    open_to_all = tmp_path / "tmp"
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    assert "others can write" in refused(open_to_all / "image").evidence
    assert "others can write" in refused(open_to_all / "missing" / "image").evidence, "others could make it first"
    (open_to_all / "own").mkdir(0o700)
    check_place(str(open_to_all / "own" / "image"))
    open_to_all.chmod(0o777)
    assert refused(open_to_all / "own" / "image").evidence == f"others can write {open_to_all} (mode 0777)"


def test_the_group_of_root_counts_as_root_and_every_other_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o770)
    group = os.stat(store).st_gid
    lstat: Callable[..., os.stat_result] = os.lstat

    def seen(gid: int) -> Callable[..., os.stat_result]:
        def look(path: str) -> os.stat_result:
            values = list(lstat(path))
            values[5] = gid if os.fspath(path) == str(store) else values[5]
            return os.stat_result(values)

        return look

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", seen(0))
        check_place(str(store / "image"))
        patch.setattr(place, "_has_access_list", lambda path: path == str(store))
        assert refused(store / "image").evidence == f"others can write {store} (mode 0770)"
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", seen(group or 1234))
        assert refused(store / "image").evidence == f"others can write {store} (mode 0770)"


def test_somebody_elses_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    store.mkdir(0o755)
    lstat: Callable[..., os.stat_result] = os.lstat

    def look(path: str) -> os.stat_result:
        values = list(lstat(path))
        values[4] = 4711 if os.fspath(path) == str(store) else values[4]
        return os.stat_result(values)

    monkeypatch.setattr(os, "lstat", look)
    assert refused(store / "image").evidence == f"{store} belongs to user id 4711"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_really_belongs_to_somebody_else_or_to_another_group(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "below").mkdir(parents=True)
    os.chown(store, 65534, -1)
    for path in (store / "image", store / "below" / "image"):
        assert refused(path).evidence == f"{store} belongs to user id 65534"
    os.chown(store, 0, 65534)
    store.chmod(0o770)
    assert refused(store / "below" / "image").evidence == f"others can write {store} (mode 0770)"
    os.chown(store, 0, 0)
    check_place(str(store / "below" / "image"))


def test_what_is_missing_on_the_way_is_made_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_way(str(tmp_path / "a" / "b"))
        make_way(str(tmp_path / "a" / "b"))
    finally:
        os.umask(before)
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        assert path.stat().st_mode & 0o777 == 0o700
