# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real trees: read, stopped from the top, continued from the bottom, told when one of them ran, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.stillness import (
    end_tree,
    go_on,
    stop_others,
    who_ran,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, is_alive, read_identity

# A parent that notes every stop of a child that it hears of, and a child that counts into a file.
PARENT = """
import os, signal, sys, time
child = os.fork()
if not child:
    with open(sys.argv[1], "w") as out:
        for number in range(10**9):
            out.write("x"); out.flush(); time.sleep(0.001)
open(sys.argv[2], "w").close()
while True:
    pid, status = os.waitpid(-1, os.WUNTRACED)
    with open(sys.argv[2], "a") as out:
        out.write("stopped" if os.WIFSTOPPED(status) else "ended")
"""


def until(met: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[Identity, Path, Path]]:
    count, heard = tmp_path / "count", tmp_path / "heard"
    command = ["python3", "-c", PARENT, str(count), str(heard)]
    null = subprocess.DEVNULL
    with subprocess.Popen(command, start_new_session=True, stdin=null, stdout=null, stderr=null) as process:
        try:
            until(lambda: heard.exists() and count.exists() and count.stat().st_size)
            identity = read_identity(process.pid)
            assert identity is not None
            yield identity, count, heard
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def stop(root: Identity) -> tuple[Tree, list[Identity], list[int]]:
    stopped: list[Identity] = []
    told: list[int] = []
    tree = stop_others(root, stopped, lambda: told.append(len(stopped)))
    return tree, stopped, told


def test_a_tree_is_read_with_its_open_files(job: tuple[Identity, Path, Path]) -> None:
    root, count, _heard = job
    tree = read_tree(root.pid)
    assert tree is not None
    assert len(tree.members) == 2
    assert tree.root.identity == root
    child = tree.members[1]
    assert child.parent == root.pid and child.session == root.pid and not child.cuda
    assert [(one.path, one.writable, one.deleted) for one in child.files if one.writable] == [(str(count), True, False)]
    assert tree.member(child.pid) is child


def test_nobody_and_a_zombie_have_no_tree() -> None:
    with subprocess.Popen(["true"]) as process:
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "Z")
        assert read_tree(process.pid) is None
    assert read_tree(process.pid) is None


def test_a_parent_never_hears_that_its_child_was_stopped(job: tuple[Identity, Path, Path]) -> None:
    root, count, heard = job
    tree, stopped, told = stop(root)
    assert [one.pid for one in stopped] == list(tree.pids), "the parent first"
    assert told[0] == 2, "noted before the first is stopped"
    assert all(member.is_stopped for member in tree.members)
    size = count.stat().st_size
    time.sleep(0.2)
    assert count.stat().st_size == size
    assert who_ran(tree) == ()
    assert go_on(stopped) == ()
    until(lambda: count.stat().st_size > size)
    assert heard.read_text() == ""


def test_one_that_was_stopped_before_is_not_ours_to_continue(job: tuple[Identity, Path, Path]) -> None:
    root, _count, _heard = job
    seen = read_tree(root.pid)
    assert seen is not None
    os.kill(seen.members[1].pid, signal.SIGSTOP)
    _tree, stopped, _told = stop(root)
    assert stopped == [root]


def test_whoever_ran_since_is_told(job: tuple[Identity, Path, Path]) -> None:
    root, count, _heard = job
    tree, _stopped, _told = stop(root)
    child, size = tree.members[1], count.stat().st_size
    os.kill(child.pid, signal.SIGCONT)
    until(lambda: count.stat().st_size > size)
    os.kill(child.pid, signal.SIGSTOP)
    assert who_ran(tree) == (f"PID {child.pid} ({child.name}) has run",)
    assert who_ran(tree, guarded=[child.pid]) == (), "what a guard answers is no run"
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: who_ran(tree, guarded=[child.pid]) == (f"PID {child.pid} ({child.name}) has ended",))


def test_the_end_of_a_tree_lets_none_of_it_run(job: tuple[Identity, Path, Path]) -> None:
    """The kernel continues stopped members of an orphaned process group: the children go first."""
    root, count, _heard = job
    tree, _stopped, _told = stop(root)
    size = count.stat().st_size
    left = end_tree(tree, seconds=1)
    assert not any(is_alive(member.identity) for member in tree.members)
    # The root's parent is this test, which has not reaped it yet.
    assert left[0] == (
        f"PID {root.pid} has ended, but its parent has not reaped it: the number stays in use until it does"
    )
    assert count.stat().st_size == size


def test_a_root_that_has_ended_is_refused(job: tuple[Identity, Path, Path]) -> None:
    root, _count, _heard = job
    with pytest.raises(CriuError, match=f"PID {root.pid}: it has ended"):
        stop(Identity(root.pid, root.start_ticks - 1, root.boot_id))
