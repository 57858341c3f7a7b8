# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tree that CRIU has to end itself: from then on its partial image is all that there is, and is never deleted."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_dump, _image_units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import ending, owner, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.digest import digest, verify
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest, Member
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_dump import Dump
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
from tests.unit.plugins.criu.images_made import FILES, fill, make_manifest


@pytest.fixture
def root() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            yield child
        finally:
            child.kill()


def manifest_of(root: "subprocess.Popen[bytes]") -> Manifest:
    identity = read_identity(root.pid)
    assert identity is not None
    member = Member(
        root.pid, 1, 1, 1, identity.start_ticks, "sleep", "/bin/sleep", 0, (root.pid,), False, {}, "", False
    )
    return make_manifest(root=root.pid, tree=(member,), boot_id=read_boot_id(), gpus=(), chunks=())


@pytest.fixture
def path(tmp_path: Path, root: "subprocess.Popen[bytes]") -> str:
    """Of an image whose maker has died after CRIU was told to end the tree."""
    tmp_path.chmod(0o700)
    where = str(tmp_path / "pid-4711")
    partial = store.make_partial(where)
    fill(partial)
    ending.announce(partial, manifest_of(root))
    owner.release(partial, forget=False)
    return where


def end(root: "subprocess.Popen[bytes]") -> None:
    root.kill()
    root.wait()


def test_while_the_tree_lives_it_goes_as_every_partial_image_does(path: str) -> None:
    assert not store.finish(path, lambda _partial: True)
    assert store.remove_partial_of(path)
    assert not os.path.exists(path + ".partial")


def test_once_it_has_ended_nobody_deletes_it(path: str, root: "subprocess.Popen[bytes]") -> None:
    end(root)
    for delete in (store.remove_partial_of, store.make_partial):
        with pytest.raises(CriuError, match=r"nothing else does.*state: restored"):
            delete(path)
    assert (Path(path + ".partial") / "pages-1.img").read_bytes() == FILES["pages-1.img"]


def test_the_next_run_finishes_it(path: str, root: "subprocess.Popen[bytes]") -> None:
    end(root)
    assert store.finish(path, lambda partial: os.path.exists(f"{partial}/pages-1.img"))
    image = store.find_image(path)
    assert image is not None and image.manifest.root == root.pid and image.life.state == "unspent"
    assert {one.name for one in image.manifest.chunks} == set(FILES)
    assert not verify(path, image.manifest.chunks, "full")
    assert not os.path.exists(path + ".partial") and not os.path.exists(f"{path}/{ending.FILE}")
    assert not store.finish(path, lambda _partial: True)


def test_one_that_criu_had_not_written_whole_stays(path: str, root: "subprocess.Popen[bytes]") -> None:
    end(root)
    with pytest.raises(CriuError, match="before it had written everything"):
        store.finish(path, lambda _partial: False)
    assert (Path(path + ".partial") / "pages-1.img").exists() and store.find_image(path) is None


def test_compressing_it_may_have_been_broken_off(path: str, root: "subprocess.Popen[bytes]") -> None:
    end(root)
    partial = Path(path + ".partial")
    (partial / "pages-1.img.zst").write_bytes(b"half")
    (partial / "pages-3.img.zst").write_bytes(b"whole")
    assert store.finish(path, lambda _partial: True)
    image = store.find_image(path)
    assert image is not None and image.manifest.compressed == "zstd"
    assert {one.name for one in image.manifest.chunks} == {*FILES, "pages-3.img.zst"}


@pytest.mark.parametrize("directory", [True, False])
def test_what_somebody_else_has_put_there_is_left_alone(tmp_path: Path, directory: bool) -> None:
    tmp_path.chmod(0o700)
    theirs = tmp_path / "pid-4711.partial"
    if directory:
        theirs.mkdir()
    else:
        theirs.write_text("mine")
    assert not store.finish(str(tmp_path / "pid-4711"), lambda _partial: True)
    with pytest.raises(CriuError, match="was not made by this collection"):
        store.make_partial(str(tmp_path / "pid-4711"))


def test_damage_where_it_is_announced_deletes_nothing(path: str, root: "subprocess.Popen[bytes]") -> None:
    end(root)
    (Path(path + ".partial") / ending.FILE).write_text("{}")
    with pytest.raises(CriuError, match="may hold the only copy"):
        store.remove_partial_of(path)
    assert os.path.exists(path + ".partial")


def dump_of(path: str, root: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that has made and proved an image of a tree with connections; CRIU is played."""
    dump: Any = Dump.__new__(Dump)
    options = SimpleNamespace(unit_policy="refuse", leave_running=False, compress="none")
    dump._job = SimpleNamespace(path=path, lineage="l", root=None, options=options)
    dump._journal = None
    begun = dump.begun = []
    dump._steps = SimpleNamespace(
        begin=begun.append, finish=lambda *_words: None, measured=lambda *_words: None, notes=[], must_go_on=False
    )
    dump._stopped, dump._subjects, dump._ended, dump.is_open = [], [], False, True
    dump._tree = SimpleNamespace(root=SimpleNamespace(name="sleep"), members=(), cuda=(), pids=(root.pid,))
    dump._job.root = read_identity(root.pid)
    dump._chosen, dump._held = SimpleNamespace(must_kill=True, arguments=()), {}
    dump._reserve = SimpleNamespace(release=lambda: None)
    dump._guards = SimpleNamespace(guarded=frozenset(), wait=lambda: None)
    dump._partial = store.make_partial(path)
    fill(dump._partial)
    dump._announced = manifest_of(root)

    def criu(_tree: object, leave: str) -> None:
        assert leave == "killed" and not (Path(dump._partial) / "pages-1.img").exists()
        fill(dump._partial)
        end(root)
        dump._ended = True

    dump._criu = criu
    dump._doubts = lambda _tree: ()
    monkeypatch.setattr(_image_dump, "who_ran", lambda *_of: [])
    monkeypatch.setattr(_image_dump, "wait_gone", lambda *_of: [])
    monkeypatch.setattr(_image_units, "let_go", lambda *_of: None)
    monkeypatch.setattr(_image_dump, "go_on", lambda _stopped: [])
    return dump


@pytest.fixture
def dump(tmp_path: Path, root: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch) -> Any:
    tmp_path.chmod(0o700)
    return dump_of(str(tmp_path / "pid-4711"), root, monkeypatch)


def test_criu_ends_the_tree_only_when_all_trees_of_the_task_are_dumped(dump: Any) -> None:
    """Another tree of the task fails: this one lives, and its image goes."""
    path = dump._job.path
    assert dump.undo("undone") == ()
    assert not os.path.exists(path) and not os.path.exists(path + ".partial")


def test_the_commit_has_criu_end_it_and_seals_what_it_wrote(dump: Any) -> None:
    path = dump._job.path
    assert not dump.commit()["lives"]
    image = store.find_image(path)
    assert image is not None and not verify(path, image.manifest.chunks, "full")
    assert image.manifest.chunks == digest(path, store.content(path)) and not os.path.exists(f"{path}/{ending.FILE}")


@pytest.mark.parametrize("failing", ["complete", "seal", "_criu"])
def test_what_fails_afterwards_leaves_it_for_the_next_run(
    dump: Any, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = dump._job.path

    def full(*_of: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if failing == "complete":
            patch.setattr(ending, "complete", full)
        elif failing == "seal":
            patch.setattr(store, "seal", full)
        else:
            ends = dump._criu

            def ended(tree: object, leave: str) -> None:
                ends(tree, leave)
                full()

            dump._criu = ended
        with pytest.raises((CriuError, OSError), match="No space left"):
            dump.commit()
        if dump.is_open:
            (problem,) = dump.undo("failed")
            assert "is all that there is of it" in problem
    owner.release(path + ".partial", forget=False)
    assert store.finish(path, lambda _partial: True)
    image = store.find_image(path)
    assert image is not None and not verify(path, image.manifest.chunks, "full")


def test_one_that_came_second_undoes_nothing_of_the_first(dump: Any) -> None:
    """Its place was taken: it stopped nobody, and another run's holds over units are not its own."""
    dump._partial, dump._tree = "", None
    dump._let_go_on = lambda: pytest.fail("nothing is to be let go")
    assert dump.undo("failed") == () and not dump.is_open
