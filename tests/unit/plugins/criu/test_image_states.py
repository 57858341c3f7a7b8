# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What criu_image says and refuses by the image that is there, without CRIU and without a GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_report
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import SPENT, Life
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tool import Criu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_absent import Absent
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_arguments import parse
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_engine import ImageEngine, Subject
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageOptions
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.modules.criu_image import ARGUMENTS

from .images_made import SHELL, make_image

#: No process has it: the kernel gives out smaller ones only.
NOBODY = 4194304


def options(tmp_path: Path, check: bool = False, **given: Any) -> ImageOptions:
    table: dict[str, dict[str, Any]] = ARGUMENTS  # type: ignore[assignment]  # of mixed types
    params = {name: spec.get("default") for name, spec in table.items()}
    return parse({**params, "journal": str(tmp_path / "journal.db"), **given}, check)


@contextmanager
def engine(asked: ImageOptions) -> Iterator[ImageEngine]:
    with open_journal(asked.journal, create=True) as journal:
        yield ImageEngine(asked, None, Criu("/usr/sbin/criu", (4, 1, 1), ""), journal, lambda: ())


@pytest.fixture
def process() -> Iterator[Identity]:
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, start_new_session=True) as child:
        found = read_identity(child.pid)
        assert found is not None
        yield found
        child.kill()


def image_of(path: Path, root: Identity, **changed: Any) -> None:
    shell = replace(SHELL, pid=root.pid, start_ticks=root.start_ticks, threads=(root.pid,))
    make_image(path, root=root.pid, tree=(shell,), boot_id=root.boot_id, **changed)


# absent


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_image_is_never_deleted(tmp_path: Path, force: bool, check: bool) -> None:
    """A store, and what is no directory of ours at all: force is not what helps, and check mode promises nothing."""
    make_image(tmp_path / "store" / "train")
    for path, words in ((str(tmp_path / "store"), "no image"), ("/", "no name for an image")):
        asked = options(tmp_path, check, state="absent", path=path, force=force)
        with open_journal(asked.journal, create=True) as journal:
            absent = Absent(asked, journal)
            with pytest.raises(CriuError) as refused:
                absent.run()
        assert words in str(refused.value) and "force" not in str(refused.value)
        assert not any(one.changed for one in absent.subjects)
    assert (tmp_path / "store" / "train").is_dir()


@pytest.mark.parametrize("check", [False, True])
def test_a_damaged_image_is_deleted_with_force(tmp_path: Path, check: bool) -> None:
    path = tmp_path / "store" / "train"
    make_image(path)
    (path / "manifest.json").write_text("{}")
    asked = options(tmp_path, check, state="absent", path=str(path))
    with open_journal(asked.journal, create=True) as journal:
        with pytest.raises(CriuError, match="force: true"):
            Absent(asked, journal).run()
        absent = Absent(replace(asked, force=True), journal)
        absent.run()
    assert absent.subjects[0].changed and path.exists() == check


# restored


def test_what_has_ended_since_its_restore_is_a_warning(tmp_path: Path) -> None:
    """Nothing is brought back, and nobody reads the result of a task that went well."""
    path = tmp_path / "store" / "train"
    make_image(path, Life(SPENT, run_id="20261130T020145-7f3a9c"))
    with engine(options(tmp_path, state="restored", path=str(path))) as one:
        one.run()
    (told,) = _image_report.warnings(one)
    assert told.startswith(f"{path}: nothing was brought back")
    assert "20261130T020145-7f3a9c" in told and "has ended since" in told and "second_life" in told
    assert _image_report.report(one)["images"][0]["ended"] is True


def test_what_lives_since_its_restore_is_none(tmp_path: Path, process: Identity) -> None:
    path = tmp_path / "store" / "train"
    make_image(path, Life(SPENT, members=(process,)))
    with engine(options(tmp_path, state="restored", path=str(path))) as one:
        one.run()
    assert _image_report.warnings(one) == []


# present


def present(tmp_path: Path, path: Path, pid: object, **given: Any) -> ImageOptions:
    return options(tmp_path, state="present", pid=pid, path=str(path), **{"leave_running": False, **given})


@pytest.mark.parametrize("pid", [NOBODY, {"pid": 4711, "start_ticks": 99}, 4712])
def test_an_image_of_another_process_is_not_what_was_asked_for(tmp_path: Path, pid: object) -> None:
    path = tmp_path / "store" / "train"
    make_image(path)
    with engine(present(tmp_path, path, pid)) as one, pytest.raises(ArgumentError) as refused:
        one._identity = lambda wanted: None  # type: ignore[method-assign]  # whoever has such a PID here
        one.run()
    given = pid["pid"] if isinstance(pid, dict) else pid
    named = f"{given}, started at 99 ticks," if isinstance(pid, dict) else f"{given}"
    assert f"{named} is no process of this host" in str(refused.value)
    assert f"{path} is the image of PID 4711" in str(refused.value)


def test_the_image_of_the_process_that_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "store" / "train"
    make_image(path)
    for pid in (4711, {"pid": 4711, "start_ticks": SHELL.start_ticks}):
        with engine(present(tmp_path, path, pid)) as one:
            one._identity = lambda wanted: None  # type: ignore[method-assign]  # whoever has such a PID here
            one.run()
        assert [(subject.before, subject.after) for subject in one.subjects] == [("present", "present")]


def test_the_difference_tells_that_a_process_ends(
    tmp_path: Path, process: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot is replaced by an image: there is one before and after, and the process is gone."""
    path = tmp_path / "store" / "train"
    image_of(path, process, snapshot=True)
    monkeypatch.setattr(ImageEngine, "_gate_dumps", lambda self, due: None)
    with engine(present(tmp_path, path, process.pid, check=True)) as one:
        one.run()
    told = _image_report.report(one)
    assert told["changed"] and told["diff"] == {
        "before": f"{path}: present (snapshot, PID {process.pid} runs)\n",
        "after": f"{path}: present (image, PID {process.pid} has ended)\n",
    }


def test_no_difference_where_nothing_is_done(tmp_path: Path, process: Identity) -> None:
    path = tmp_path / "store" / "train"
    image_of(path, process, snapshot=True)
    with engine(present(tmp_path, path, process.pid, leave_running=True)) as one:
        one.run()
    told = _image_report.report(one)
    assert not told["changed"] and told["diff"] == dict.fromkeys(("before", "after"), f"{path}: present\n")


def test_what_a_dead_run_had_stopped_is_found_behind_one_that_came_second(tmp_path: Path, process: Identity) -> None:
    """The second one was refused the place, and has ended: what the first had stopped is still to go on."""
    path = str(tmp_path / "train")
    with subprocess.Popen(["true"]) as dead:
        worker = read_identity(dead.pid)
    with engine(options(tmp_path, state="present", pid=str(process.pid), path=path, leave_running=False)) as made:
        journal = made._journal
        more: dict[str, Any] = {"lineage": "5b1d", "path": path, "root": process, "leave": "killed"}
        first = journal.begin_image(run_id="first", worker=worker, **more)
        journal.image_step(first.id, "dump", stopped=[process])
        second = journal.begin_image(run_id="second", worker=worker, **more)
        journal.finish_image(second.id, "failed")
        subject = Subject(path=path, name="train", root=process)
        made._mend(subject)
        assert subject.stopped == [process] and subject.taken_over == ["first"]
        assert not journal.unfinished_images(path, process)
