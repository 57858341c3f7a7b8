# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a broken off dump has left of a tree that lives: real processes, a journal, and half an image."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _drain_mend
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import lifeline
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import Drain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity, task_state
from tests.unit.plugins.drain.made import drain


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "checkpoint.db")) as one:
        yield one


@pytest.fixture
def stopped() -> Iterator[Identity]:
    """A process that somebody has stopped."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for(process.pid, "T")
        identity = read_identity(process.pid)
        assert identity is not None
        yield identity
        process.kill()


def wait_for(pid: int, state: str) -> None:
    end = time.monotonic() + 10
    while task_state(pid, pid) != state:
        assert time.monotonic() < end, f"it is {task_state(pid, pid)}"
        time.sleep(0.01)


def broken(journal: Journal, path: Path, root: Identity) -> Drain:
    """A dump of the process that was left in the middle."""
    row = journal.begin_image(lineage="l", path=str(path), run_id="a", root=root, leave="killed", worker=None)
    journal.image_step(row.id, "dump", stopped=[root])
    return drain(run_id="a", phase="undoing")


def test_the_rest_of_the_tree_goes_on_and_the_row_is_closed(
    journal: Journal, tmp_path: Path, stopped: Identity
) -> None:
    row = broken(journal, tmp_path / "image", stopped)
    assert [one.root for one in _drain_mend.broken_off(journal, row)] == [stopped]
    assert _drain_mend.prepare(journal, row) == ()
    assert task_state(stopped.pid, stopped.pid) == "T", "not before its CUDA processes run"
    assert _drain_mend.let_go(journal, row) == ()
    wait_for(stopped.pid, "S")
    assert _drain_mend.broken_off(journal, row) == ()
    assert journal.live_images() == ()


def test_what_has_ended_or_is_at_work_is_not_broken_off(journal: Journal, tmp_path: Path, stopped: Identity) -> None:
    row = broken(journal, tmp_path / "image", stopped)
    os.kill(stopped.pid, signal.SIGKILL)
    wait_for(stopped.pid, "Z")
    assert _drain_mend.broken_off(journal, row) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="an image belongs to root")
def test_a_process_that_can_not_be_mended_is_not_continued_and_keeps_what_tells_how_it_was(
    journal: Journal, tmp_path: Path, stopped: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = broken(journal, tmp_path / "image", stopped)
    (tmp_path / "image.partial").mkdir(mode=0o700)
    monkeypatch.setattr(lifeline, "put_back_all", lambda _saved: ((), ("PID 1: it is traced",)))
    with pytest.raises(CriuError, match=r"it is traced\. Continued like that, it would die"):
        _drain_mend.prepare(journal, row)
    with pytest.raises(CriuError, match="its dump was broken off, and it is there still"):
        _drain_mend.let_go(journal, row)
    assert (tmp_path / "image.partial").is_dir()
    assert task_state(stopped.pid, stopped.pid) == "T"
