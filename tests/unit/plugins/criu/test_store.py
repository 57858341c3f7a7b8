# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A store: images are whole or not there, whoever dies when, and belong to nobody else."""

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Optional

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import digest, hidden, owner, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import SPENT, Life, write_life
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import read_manifest, write_manifest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Broken, Image
from tests.unit.plugins.criu.images_made import FILES, fill, make_image, make_manifest, names

PR_SET_PDEATHSIG = 1


def fork(work: Callable[[], object]) -> int:
    """A child that does the work and exits with 0, or with 1 and a traceback."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Sleeper:
    """A child that has done the work, and lives until it is ended."""

    def __init__(self, work: Callable[[], object]) -> None:
        told, tell = os.pipe()

        def whole() -> None:
            work()
            os.write(tell, b".")
            time.sleep(600)

        self.pid = fork(whole)
        os.close(tell)
        with os.fdopen(told, "rb") as stream:
            assert stream.read(1) == b".", "it has ended"

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert wait(self.pid) == -signal.SIGKILL


def refused(action: Callable[..., object], *arguments: Any) -> CriuError:
    with pytest.raises(CriuError) as caught:
        action(*arguments)
    return caught.value


def backdate(path: Path) -> None:
    os.utime(path, (1, 1))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "store" / "inference-4711"
    make_image(path)
    return path


# Making


def test_an_image_is_sealed_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "store" / "image"
    before = os.umask(0)
    try:
        partial = store.make_partial(str(path))
        assert partial == f"{path}.partial" and os.stat(partial).st_mode & 0o777 == 0o700
        assert not path.exists()
        fill(partial)
        for name in FILES:
            os.chmod(os.path.join(partial, name), 0o666)
        made = make_manifest(chunks=digest.digest(partial, store.content(partial)))
        write_manifest(partial, made)
        store.sync(partial)
        store.seal(partial, str(path))
    finally:
        os.umask(before)
    assert names(path.parent) == ["image"]
    assert names(path) == sorted([*FILES, "life.json", "manifest.json"])
    assert path.stat().st_mode & 0o777 == 0o700
    assert {one.stat().st_mode & 0o777 for one in path.iterdir()} == {0o600}
    found = store.open_image(str(path))
    assert found == Image(str(path), made, Life()) and found == store.find_image(str(path))
    assert digest.verify(str(path), found.manifest.chunks, "full") == ()
    assert path.parent.stat().st_mode & 0o777 == 0o700 == path.parent.parent.stat().st_mode & 0o777


def test_only_what_criu_has_made_is_content(tmp_path: Path) -> None:
    for name in ("b.img", "a.img", "dump.log", "restore.log", "manifest.json", "life.json", ".owner", "stats-restore"):
        (tmp_path / name).write_text("")
    assert store.content(str(tmp_path)) == ("a.img", "b.img")
    (tmp_path / "link").symlink_to("a.img")
    assert "it holds link, which is no file of an image" in refused(store.content, str(tmp_path)).evidence
    (tmp_path / "link").unlink()
    (tmp_path / "directory").mkdir()
    assert "it holds directory" in refused(store.content, str(tmp_path)).evidence
    (tmp_path / "directory").rmdir()
    (tmp_path / "a\n").write_text("")
    assert "it holds a\\n" in refused(store.content, str(tmp_path)).evidence


def test_nothing_but_files_is_sealed(tmp_path: Path) -> None:
    path = str(tmp_path / "image")
    partial = store.make_partial(path)
    write_manifest(partial, make_manifest())
    os.symlink("/etc/passwd", os.path.join(partial, "pages-3.img"))
    before = os.stat("/etc/passwd").st_mode
    assert "pages-3.img, which is no file of an image" in refused(store.seal, partial, path).evidence
    assert os.stat("/etc/passwd").st_mode == before
    store.remove_partial(partial)
    assert names(tmp_path) == []


def test_the_place_is_checked_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "others can write" in refused(store.make_partial, str(tmp_path / "open" / "image")).evidence
    assert names(tmp_path / "open") == []
    with pytest.raises(ValueError, match="has no manifest"):
        store.seal(store.make_partial(str(tmp_path / "image")), str(tmp_path / "image"))


@pytest.mark.parametrize("number", [0, errno.EINVAL, errno.ENOSYS])
def test_an_image_is_replaced_also_where_names_can_not_be_exchanged(
    image: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    if number:
        monkeypatch.setattr(hidden, "_renameat2", lambda *_arguments: number)
    partial = store.make_partial(str(image))
    fill(partial, {"inventory.img": b"newer"})
    newer = make_manifest(lineage="newer", chunks=digest.digest(partial, store.content(partial)))
    write_manifest(partial, newer)
    store.seal(partial, str(image))
    assert names(image.parent) == [image.name]
    assert store.open_image(str(image)).manifest == newer
    assert names(image) == ["inventory.img", "life.json", "manifest.json"]


def test_what_is_no_image_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir()
    (path / "thesis").write_text("years")
    partial = store.make_partial(str(path))
    write_manifest(partial, make_manifest())
    assert "there is something without manifest.json" in refused(store.seal, partial, str(path)).evidence
    store.remove_partial(partial)
    assert "there is something without manifest.json" in refused(store.remove, str(path)).evidence
    assert (path / "thesis").read_text() == "years" and names(tmp_path) == ["home"]


# Who is at work


def test_two_do_not_make_one_image(tmp_path: Path) -> None:
    path = str(tmp_path / "image")
    other = Sleeper(lambda: store.make_partial(path))
    error = refused(store.make_partial, path)
    assert error.evidence == f"PID {other.pid} of {os.uname().nodename} is at work on it"
    assert error.subject == f"{path}.partial" and error.remedy == "Wait until it is done."
    assert refused(store.remove_partial_of, path).evidence == error.evidence
    assert refused(store.remove_partial, f"{path}.partial").evidence == error.evidence
    assert [(one.by, one.active) for one in store.list_partials(str(tmp_path))] == [
        (f"PID {other.pid} of {os.uname().nodename}", True)
    ]
    assert names(tmp_path) == ["image.partial"], "what a refused one has made is gone"
    other.end()
    assert [one.active for one in store.list_partials(str(tmp_path))] == [False]
    assert store.has_partial(path)
    store.remove_partial(store.make_partial(path))
    assert not store.has_partial(path) and names(tmp_path) == []


def test_looking_does_not_give_up_what_one_works_on(tmp_path: Path) -> None:
    path = str(tmp_path / "image")
    partial = store.make_partial(path)
    assert store.list_partials(str(tmp_path))[0].active and owner.is_owned(partial)
    assert owner.read_owner(partial) is not None
    assert wait(fork(lambda: refused(store.make_partial, path))) == 0
    with pytest.raises(ValueError, match="this process is at work on"):
        store.make_partial(path)
    store.remove_partial(partial)


def test_a_child_that_was_forked_does_not_keep_what_its_parent_had(tmp_path: Path) -> None:
    path = str(tmp_path / "image")
    pids = tmp_path / "pids"

    def work() -> None:
        store.make_partial(path)
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
        pids.write_text(str(child))

    parent = Sleeper(work)
    parent.end()
    try:
        assert store.remove_partial_of(path), "its child lives on, and is not at work on it"
    finally:
        os.kill(int(pids.read_text()), signal.SIGKILL)


def test_what_a_dead_process_has_left_goes_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "image"
    assert not store.remove_partial_of(str(path))
    Sleeper(lambda: fill(store.make_partial(str(path)))).end()
    assert store.remove_partial_of(str(path)) and names(tmp_path) == []
    (tmp_path / "image.partial").mkdir()
    (tmp_path / "image.partial" / "thesis").write_text("years")
    for action in (store.make_partial, store.remove_partial_of):
        error = refused(action, str(path))
        assert error.evidence == "it is there, and was not made by this collection"
        assert error.remedy == "Move it away."
    assert (tmp_path / "image.partial" / "thesis").read_text() == "years"


def test_a_criu_that_goes_on_by_itself_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "image"
    partial = f"{path}.partial"
    work = tmp_path / ".image.work-0123456789ab"
    Sleeper(lambda: fill(store.make_partial(str(path)))).end()
    work.mkdir()
    backdate(work)
    argv = ["sh", "-c", "echo ready; read _", "criu", "--images-dir", partial, str(work)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as criu:
        assert criu.stdout is not None and criu.stdout.readline()
        for action in (store.make_partial, store.remove_partial_of):
            error = refused(action, str(path))
            assert error.evidence == f"PID {criu.pid} still writes to it, though who started it has ended"
        assert set(FILES) < set(names(Path(partial))) and work.exists()
    assert store.remove_partial_of(str(path)) and names(tmp_path) == []


def test_a_partial_image_that_is_a_link_is_left(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "image.partial").symlink_to("other")
    assert "was not made by this collection" in refused(store.make_partial, str(tmp_path / "image")).evidence
    assert (tmp_path / "image.partial").is_symlink() and names(tmp_path / "other") == []


def test_leftovers_go_when_nobody_works_in_them_any_more(tmp_path: Path) -> None:
    for name in (".a.deleted-0123456789ab", ".a.work-0123456789ab", ".b.deleted-0123456789ab", ".a.deleted-x", ".a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pages-1.img").write_text("")
    other = Sleeper(lambda: owner.claim(str(tmp_path / ".a.work-0123456789ab")))
    for one in tmp_path.iterdir():
        backdate(one)
    hidden.sweep(str(tmp_path), "a")
    kept = [".a", ".a.deleted-x", ".a.work-0123456789ab"]
    assert names(tmp_path) == sorted([*kept, ".b.deleted-0123456789ab"])
    hidden.sweep(str(tmp_path))
    assert names(tmp_path) == sorted(kept)
    other.end()
    hidden.sweep(str(tmp_path))
    assert names(tmp_path) == [".a", ".a.deleted-x"]
    hidden.sweep(str(tmp_path / "missing"))


def test_what_is_being_made_is_no_leftover(tmp_path: Path) -> None:
    (tmp_path / ".a.new-0123456789ab").mkdir()
    hidden.sweep(str(tmp_path))
    assert names(tmp_path) == [".a.new-0123456789ab"], "it may be a moment old"
    backdate(tmp_path / ".a.new-0123456789ab")
    hidden.sweep(str(tmp_path))
    assert names(tmp_path) == []


# Deaths

HERE = Path(str(store.__file__)).parent
WATCHED = [str(HERE / f"{name}.py") for name in ("store", "hidden", "owner", "life", "durable")]


def die_at(line: int, work: Callable[[], object], *also: str) -> Callable[[], None]:
    """The work, killed before the nth line of the code under test is run. also: further files of code."""

    def whole() -> None:
        left = line

        def trace(frame: FrameType, event: str, _argument: object) -> Optional[Any]:
            nonlocal left
            if frame.f_code.co_filename not in (*WATCHED, *also):
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        work()

    return whole


def check_after_death(path: Path, allowed: tuple[str, ...]) -> str:
    """Whoever looks now finds a whole image or none, and the next run begins anew. Returns the lineage, "" for none."""
    found = store.find_image(str(path))
    lineage = found.manifest.lineage if found is not None else ""
    assert lineage in allowed
    if found is not None:
        assert digest.verify(str(path), found.manifest.chunks, "full") == ()
    assert [one.path for one in store.list_images(str(path.parent))] == ([str(path)] if found else [])
    assert not any(one.active for one in store.list_partials(str(path.parent)))
    return lineage


@pytest.mark.parametrize("exchange", [True, False])
def test_killed_at_any_line_of_making_an_image_nothing_half_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _handle: None)  # a killed process loses nothing that it has written
    if not exchange:
        monkeypatch.setattr(hidden, "_renameat2", lambda *_arguments: errno.ENOSYS)
    seen: set[tuple[bool, str]] = set()
    line, ends = 0, 0
    while ends < 2:
        directory = tmp_path / str(line)
        directory.mkdir(0o700)
        path = directory / "image"
        replacing = line % 2 == 1
        if replacing:
            make_image(path, lineage="old")
        status = wait(fork(die_at(line, lambda path=path: make_image(path, lineage="new"))))  # type: ignore[misc]
        assert status in (0, -signal.SIGKILL)
        allowed = ("old", "new") if replacing and exchange else ("old", "new", "") if replacing else ("", "new")
        seen.add((replacing, check_after_death(path, allowed)))
        for one in directory.iterdir():
            backdate(one)
        make_image(path, lineage="again")
        assert names(directory) == ["image"], f"line {line}"
        assert store.open_image(str(path)).manifest.lineage == "again"
        ends = ends + 1 if status == 0 else 0
        line += 1
    assert line > 100
    assert seen >= {(False, ""), (False, "new"), (True, "old"), (True, "new")}


def test_killed_at_any_line_of_deleting_one_it_is_whole_or_gone(tmp_path: Path) -> None:
    seen = set()
    line, status = 0, 1
    while status != 0:
        path = tmp_path / str(line) / "image"
        make_image(path)
        status = wait(fork(die_at(line, lambda path=path: store.remove(str(path)), shutil.__file__)))  # type: ignore[misc]
        seen.add(check_after_death(path, ("", make_manifest().lineage)))
        hidden.sweep(str(path.parent))
        assert names(path.parent) in ([], ["image"])
        line += 1
    assert len(seen) == 2 and line > 20


def test_a_full_disk_leaves_what_was_there(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_manifest(str(image))
    partial = store.make_partial(str(image))
    write_manifest(partial, make_manifest())

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            store.seal(partial, str(image))
    assert read_manifest(str(image)) == before
    store.remove_partial(partial)
    assert names(image.parent) == [image.name]


# Deleting


def test_an_image_that_is_being_restored_is_not_deleted(image: Path) -> None:
    other = Sleeper(lambda: owner.claim(str(image)))
    assert f"PID {other.pid} of " in refused(store.remove, str(image)).evidence
    store.open_image(str(image))
    other.end()
    store.remove(str(image))
    assert names(image.parent) == []


def test_a_broken_image_can_be_deleted(image: Path) -> None:
    (image / "manifest.json").write_text("{")
    refused(store.open_image, str(image))
    store.remove(str(image))
    assert names(image.parent) == []


# Looking


def test_what_is_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "image")
    assert store.find_image(path) is None
    assert refused(store.open_image, path).evidence == "there is no image"
    partial = store.make_partial(path)
    assert refused(store.open_image, path).evidence == f"there is no image, only one that was not finished, {partial}"
    assert "is no name for an image" in refused(store.open_image, partial).evidence, "never restorable"
    assert store.find_image(path) is None
    store.remove_partial(partial)
    assert store.list_images(str(tmp_path / "missing")) == () == store.list_partials(str(tmp_path / "missing"))


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o777])
def test_an_image_that_others_can_look_into(image: Path, mode: int) -> None:
    image.chmod(mode)
    error = refused(store.open_image, str(image))
    assert error.evidence == f"it is open to others (mode {mode:04o})"
    assert error.remedy.endswith(f"chmod 700 {image}")


@pytest.mark.parametrize("name", ["manifest.json", "pages-1.img", "life.json", "dump.log"])
def test_a_file_in_it_that_others_can_write(image: Path, name: str) -> None:
    (image / name).chmod(0o620)
    assert refused(store.open_image, str(image)).subject == str(image / name)


@pytest.mark.parametrize("name", ["manifest.json", "pages-1.img", "life.json", "core-1.img"])
def test_a_link_in_it(image: Path, name: str) -> None:
    (image / name).unlink(missing_ok=True)
    (image / name).symlink_to("/etc/passwd")
    error = refused(store.open_image, str(image))
    assert (error.subject, error.evidence) == (str(image / name), "it is no regular file")


def test_one_without_its_mark_might_live_twice(image: Path) -> None:
    (image / "life.json").unlink()
    error = refused(store.open_image, str(image))
    assert error.subject == str(image / "life.json") and "a second life could begin" in error.reason


def test_a_store_is_listed_by_name_with_what_is_broken(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        make_image(tmp_path / name)
    write_life(str(tmp_path / "c"), Life(SPENT, "b007", "r", 5.0))
    (tmp_path / "b" / "manifest.json").write_text("{}")
    (tmp_path / "file").write_text("")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "other").mkdir(0o700)
    partial = store.make_partial(str(tmp_path / "d"))
    found = store.list_images(str(tmp_path))
    assert [os.path.basename(one.path) for one in found] == ["a", "b", "c", "other"]
    assert [isinstance(one, Image) for one in found] == [True, False, True, False]
    assert isinstance(found[1], Broken) and "version is null" in found[1].why
    assert isinstance(found[2], Image) and found[2].life.state == SPENT
    assert isinstance(found[3], Broken) and "manifest.json: No such file" in found[3].why
    assert [one.path for one in store.list_partials(str(tmp_path))] == [partial]
    store.remove_partial(partial)
    (tmp_path / "link").symlink_to(tmp_path)
    assert "is a symbolic link" in refused(store.list_images, str(tmp_path / "link")).evidence


def test_a_store_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.probe(str(tmp_path / "missing" / "store")) == ()
    assert names(tmp_path) == []

    def no_locks(_handle: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", no_locks)
        (problem,) = store.probe(str(tmp_path))
        assert "files there can't be locked: No locks available" in problem and "NFS" in problem
        assert "can't be locked" in refused(store.make_partial, str(tmp_path / "image")).evidence
    with monkeypatch.context() as patch:
        uid = os.geteuid()
        patch.setattr(os, "geteuid", lambda: uid + 1)
        (problem,) = store.probe(str(tmp_path))
        assert f"belongs to user id {uid}" in problem and "no_root_squash" in problem
    with monkeypatch.context() as patch:
        mkdir = os.mkdir
        patch.setattr(os, "mkdir", lambda path, _mode: mkdir(path, 0o755))
        (problem,) = store.probe(str(tmp_path))
        assert "a directory made there for its owner only has mode 0755" in problem

    def no_sync(_handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_sync)
        (problem,) = store.probe(str(tmp_path))
        assert "Input/output error" in problem
    for one in tmp_path.iterdir():
        backdate(one)
    hidden.sweep(str(tmp_path))
    assert names(tmp_path) == []
