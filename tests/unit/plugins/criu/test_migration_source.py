# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is on its way, of the images of a store, and of what runs under their names."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    HELD,
    MOVED,
    RESTORING,
    RETURNED,
    SHARED,
    SOURCE,
    SPENT,
    UNSPENT,
    Handoff,
    Life,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tool import Criu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration import source
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.evidence import LIVE, TreeEvidence
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._migration.source import Source, joined
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
from tests.unit.plugins.criu.images_made import make_image, make_manifest

SELECT = {"unit": "inference.service"}
A, B = "a" * 32, "b" * 32


def stored(place: Path) -> list[TreeEvidence]:
    with open_journal(str(place.parent / "journal.db")) as journal:
        return Source(journal, Criu("criu", (4, 1, 1), ""), lambda: ())._stored(SELECT, str(place))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "images"


def test_a_restore_that_broke_off_is_on_its_way(place: Path) -> None:
    """As when the source began to bring it back, and lacked GPU memory."""
    for number, state in enumerate((UNSPENT, RESTORING, SPENT, HELD, RETURNED)):
        make_image(place / f"pid-{number}", Life(state))
    make_image(place / "pid-8", Life(MOVED, handoff=Handoff("1" * 32, SOURCE, B)))
    make_image(place / "pid-9", Life(RESTORING), selection="{}")
    assert [(one.manifest.name, one.state, one.peer) for one in stored(place)] == [
        ("pid-0", UNSPENT, ""),
        ("pid-1", RESTORING, ""),
        ("pid-8", MOVED, B),
    ]


@pytest.mark.parametrize("state", [UNSPENT, RESTORING])
def test_one_that_both_see_and_the_other_host_has_taken_is_there(
    place: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(source, "read_machine_id", lambda: A)
    mark = Handoff("1" * 32, SHARED, B)
    make_image(place / "pid-1", Life(state, handoff=mark, host=B))
    assert [(one.state, one.peer, one.handoff) for one in stored(place)] == [(MOVED, B, mark.id)]
    monkeypatch.setattr(source, "read_machine_id", lambda: B)
    assert [(one.state, one.peer) for one in stored(place)] == [(state, "")]


def tree(state: str, **fields: Any) -> TreeEvidence:
    return TreeEvidence(make_manifest(**fields), state, "", "", {}, ())


@pytest.mark.parametrize("state", [UNSPENT, RESTORING, MOVED])
def test_an_image_comes_before_what_runs_under_its_name(state: str) -> None:
    others = tree(LIVE, name="pid-1")
    assert joined([tree(LIVE), others], [tree(state)]) == [others, tree(state)]


def test_a_tree_whose_dump_broke_off_is_dumped_once_more() -> None:
    own = read_identity(os.getpid())
    assert own is not None
    member = replace(make_manifest().tree[0], pid=own.pid, start_ticks=own.start_ticks)
    unended = tree(UNSPENT, boot_id=own.boot_id, tree=(member,))
    assert joined([tree(LIVE)], [unended]) == [tree(LIVE)]
    assert joined([], [unended]) == [unended], "who is left of it has no CUDA any more, and it is told of all the same"
