# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody who can write an image store, on a file server say, can make root do to processes that live."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_left
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import lifeline, manifest, options, saved
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import PARTIAL
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.saved import Saved
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from tests.unit.plugins.journal.helpers import begin, identity, me


def left_by_criu(identity: Identity) -> Saved:
    return Saved(identity, (), (), ((4096, b"\x90" * 64),), frozenset((0, 1)), 0, 0)


def test_a_partial_image_chooses_no_process_that_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def put_back_all(given: list[Saved]) -> tuple[tuple[Saved, ...], tuple[str, ...]]:
        written.extend(one.identity.pid for one in given)
        return tuple(given), ()

    monkeypatch.setattr(lifeline, "put_back_all", put_back_all)
    journal = open_journal(str(tmp_path / "journal.db"))
    path = str(tmp_path / "image")
    row = journal.begin_image(lineage="l", path=path, run_id="run", root=me(), leave="killed", worker=None)
    journal.image_step(row.id, "criu_dump", stopped=[identity(20)])
    begin(journal, pid=21)
    (tmp_path / f"image{PARTIAL}").mkdir()
    victims = [Identity(1, 5, me().boot_id), identity(22), Identity(me().pid, 1, me().boot_id)]
    ours = [me(), identity(20), identity(21)]
    saved.store(path + PARTIAL, [left_by_criu(one) for one in (*victims, *ours)])
    (row,) = journal.live_images()
    hurt, problems, foreign = _image_left.take_out(journal, row)
    assert written == [one.pid for one in ours] and len(hurt) == 3 and not problems
    assert len(foreign) == 1 and "PID 1, PID 22" in foreign[0] and "left alone" in foreign[0]
    journal.file.close()


def test_what_criu_left_is_read_from_a_file_of_its_own_only(tmp_path: Path) -> None:
    saved.store(str(tmp_path), [left_by_criu(me())])
    (found,) = saved.load(str(tmp_path))
    assert found == left_by_criu(me())
    (tmp_path / saved.FILE).rename(tmp_path / "elsewhere")
    (tmp_path / saved.FILE).symlink_to(tmp_path / "elsewhere")
    assert saved.load(str(tmp_path)) == ()


def test_a_manifest_chooses_no_option_of_criu() -> None:
    """Of those that it was dumped with, only switches that this collection knows are passed on."""
    recorded = [
        "--tcp-established",
        "--action-script=/tmp/x",
        "--exec-cmd",
        "--lsm-profile=x",
        "--external",
        "file[1]:x",
    ]
    assert options.again(recorded, options.CriuOptions()).arguments == ("--tcp-established", "--manage-cgroups=ignore")


def test_a_manifest_has_no_arguments_and_no_environment() -> None:
    """They hold tokens, and a manifest is shown by criu_image_info."""
    fields = {*manifest.Manifest.__dataclass_fields__, *manifest.Member.__dataclass_fields__}
    assert not fields & {"command", "arguments", "args", "argv", "environment", "environ", "env"}
