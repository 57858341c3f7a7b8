# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a run on the controller."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.directory import Directory, Superseded
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Host, RecordError, Run
from tests.unit.plugins.run.making import BEGAN, RUN_ID, attempt_of, run_of


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    made = Directory(str(tmp_path / "runs" / RUN_ID))
    made.create()
    made.change_run(lambda _before: run_of(attempt_of(("h1", "h2"))))
    return made


def touched(host: Host) -> Host:
    return record.event(host, "claimed", BEGAN, {})


def test_what_is_written_is_read_again(directory: Directory) -> None:
    written = directory.change_host("h1", touched)
    assert directory.host("h1") == written
    assert directory.hosts() == {"h1": written}
    assert directory.run() == run_of(attempt_of(("h1", "h2")))


def test_nothing_there_is_no_error(tmp_path: Path) -> None:
    none = Directory(str(tmp_path / "none"))
    assert (none.run(), none.host("h1"), none.hosts()) == (None, None, {})


def test_only_the_owner_reads_it(directory: Directory) -> None:
    directory.change_host("h1", touched)
    for path in [Path(directory.path), *Path(directory.path).rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("name", ["a/../../b", "..", "[fe80::1%eth0]", "gpu node", "größe", "h1.json"])
def test_any_name_of_a_host_is_a_name_of_a_file(directory: Directory, name: str) -> None:
    directory.change_host(name, touched)
    assert list(directory.hosts()) == [name]
    assert len(list(Path(directory.path, "hosts").iterdir())) == 1


def test_no_half_file_is_left_when_writing_fails(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.change_host("h1", touched)
    before = directory.host("h1")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match=r"h1.json: it can't be used: No space left on device\. .*gpu_drain_run_dir"):
        directory.change_host("h1", lambda host: replace(host, message="x" * 100))
    monkeypatch.undo()
    assert directory.host("h1") == before
    assert [path.name for path in Path(directory.path, "hosts").iterdir()] == ["h1.json"]


def test_everything_is_on_the_disk_before_it_takes_its_name(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real_sync(descriptor)

    def rename(old: str, new: str) -> None:
        done.append("rename")
        real_replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    directory.change_host("h1", touched)
    assert done == ["file", "rename", "directory"]


def test_a_superseded_attempt_writes_nothing(directory: Directory) -> None:
    first, second = attempt_of(("h1",)), attempt_of(("h1",), number=2)
    directory.change_host("h1", touched, fence=first)
    directory.change_run(lambda run: known(run).with_attempt(second), fence=second)
    said = f"run {RUN_ID}, attempt 1: attempt 2 of this run has taken over"
    before = {path: path.read_bytes() for path in Path(directory.path).rglob("*.json")}
    with pytest.raises(Superseded, match=said):
        directory.change_host("h1", lambda host: replace(host, message="late"), fence=first)
    with pytest.raises(Superseded, match=said):
        directory.change_run(lambda run: replace(known(run), kind="suspend"), fence=first)
    with pytest.raises(Superseded, match=said):
        directory.write_report({}, "", fence=first)
    assert {path: path.read_bytes() for path in Path(directory.path).rglob("*.json")} == before
    directory.change_host("h1", touched, fence=attempt_of(("h2",), slice=2))


def known(run: Run | None) -> Run:
    assert run is not None
    return run


def test_writers_do_not_lose_each_others_changes(directory: Directory) -> None:
    def add_one(number: int) -> None:
        directory.change_run(lambda run: known(run).with_attempt(attempt_of(("h1",), number=number)))

    def add(number: int) -> None:
        for one in range(10):
            add_one(100 * number + one)

    writers = [threading.Thread(target=add, args=(number,)) for number in range(1, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(known(directory.run()).attempts) == 41


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "it is no record of a run"),
        ("[]", "it is no record of a run"),
        ('{"schema": 1, "run_id": "x"}', "it is no record of a run"),
        ('{"schema": 7}', "its schema is 7, this release of the collection knows 1"),
    ],
)
def test_what_is_no_record_is_said_to_be_none(directory: Directory, text: str, words: str) -> None:
    for name, read in (("run.json", directory.run), ("hosts/h1.json", lambda: directory.host("h1"))):
        Path(directory.path, name).write_text(text)
        with pytest.raises(RecordError) as told:
            read()
        assert words in str(told.value)
        assert name in str(told.value)


def test_an_outcome_that_is_not_known_is_no_record(directory: Directory) -> None:
    directory.change_host("h1", touched)
    path = Path(directory.path, "hosts/h1.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "outcome": "fine"}))
    with pytest.raises(RecordError, match="outcome 'fine'"):
        directory.host("h1")


def test_a_host_without_a_run_is_refused(tmp_path: Path) -> None:
    made = Directory(str(tmp_path))
    made.create()
    with pytest.raises(RecordError, match=r"run.json: there is none\. .*status"):
        made.change_host("h1", touched)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="file/run: it can't be used: Not a directory"):
        Directory(str(tmp_path / "file" / "run")).create()


def test_a_report_is_a_page_and_its_data(directory: Directory) -> None:
    path = directory.write_report({"counts": {"hosts": 2}}, "<!DOCTYPE html>")
    assert Path(path).read_text() == "<!DOCTYPE html>"
    assert json.loads(Path(path).with_name("report.json").read_text()) == {"counts": {"hosts": 2}}
