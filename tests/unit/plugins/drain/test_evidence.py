# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of a drain as they lie on the disk, and who came out of them."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _drain_evidence
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import Life
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_judge import ImageSeen
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity
from tests.unit.plugins.criu.images_made import make_image, make_manifest
from tests.unit.plugins.drain.made import EARLIER, drain
from tests.unit.plugins.journal.helpers import begin, fork, identity, kill, me

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an image belongs to root")
MANIFEST = make_manifest()
CUDA = [member.pid for member in MANIFEST.tree if member.cuda]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "checkpoint.db")) as one:
        yield one


def seen(journal: Journal, store: Path, *runs: str) -> tuple[ImageSeen, ...]:
    row = drain(runs=runs or (MANIFEST.run_id,), mode="disk", store=str(store))
    return _drain_evidence._images(journal, row)


def test_an_image_is_whole_or_damaged_by_size(journal: Journal, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_image(store / "one")
    (one,) = seen(journal, store)
    assert (one.state, one.why, one.pid) == ("unspent", "", MANIFEST.root)
    assert [member.identity.pid for member in one.members] == CUDA and CUDA
    assert seen(journal, store, "another") == (), "it is not of this drain"
    name = next(chunk.name for chunk in MANIFEST.chunks) if MANIFEST.chunks else "pages-1.img"
    (store / "one" / name).write_bytes(b"")
    (one,) = seen(journal, store)
    assert one.state == "damaged" and name in one.why


def test_a_directory_that_is_no_image_is_damaged(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "store" / "odd").mkdir(parents=True, mode=0o700)
    (one,) = seen(journal, tmp_path / "store")
    assert one.state == "damaged" and one.why


def test_an_image_that_the_journal_knows_and_the_disk_does_not_is_missing(journal: Journal, tmp_path: Path) -> None:
    store = tmp_path / "store"
    root = identity(7, boot_id=EARLIER)
    row = journal.begin_image(
        lineage="l", path=str(store / "one"), run_id=MANIFEST.run_id, root=root, leave="killed", worker=None
    )
    journal.finish_image(row.id, "gone")
    (one,) = seen(journal, store)
    assert (one.state, one.why) == ("missing", "it is not there any more")
    journal.finish_image(row.id, "undone")
    assert seen(journal, store) == ()


def test_who_came_out_is_known_by_the_number_in_the_image_also_in_a_namespace(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = CUDA[0], me()
    make_image(tmp_path / "store" / "one", life=Life("spent", here.boot_id, "r", 1.0, (here,), here))
    monkeypatch.setattr(_drain_evidence, "inside", lambda first: {there: here.pid} if first == here.pid else {})
    (one,) = seen(journal, tmp_path / "store")
    assert [member.came for member in one.members if member.identity.pid == there] == [here]
    assert one.lives


def test_only_living_workers_are_at_work(journal: Journal) -> None:
    row = drain(run_id="run")
    begin(journal, pid=12)
    assert _drain_evidence.at_work(journal, row) == ()
    worker = fork(lambda: time.sleep(60))
    alive = read_identity(worker)
    assert isinstance(alive, Identity)
    journal.update(1, worker=alive)
    assert _drain_evidence.at_work(journal, row) == (f"worker PID {worker} at step lock of PID 12",)
    now = iter(range(100))
    slept: list[float] = []
    busy = _drain_evidence.wait_until_idle(journal, row, 2.5, slept.append, lambda: float(next(now)))
    assert busy and len(slept) == 2
    kill(worker)
    assert _drain_evidence.wait_until_idle(journal, row, 60) == ()
