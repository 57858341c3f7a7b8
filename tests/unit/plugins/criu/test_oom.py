# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is protected from the out-of-memory killer while a tree is restored. Any process may make itself a better victim,
so what stands here for CRIU is changed that way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import oom
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import run

FORKS = "import os, sys, time; sys.stdin.readline(); pid = os.fork(); pid and print(pid, flush=True); time.sleep(60)"


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.fixture
def criu() -> Iterator[subprocess.Popen[str]]:
    """Forks when it is told to."""
    command = [sys.executable, "-S", "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_from_the_first_process_of_the_tree_on_it_is_protected_and_that_one_is_not(
    criu: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oom, "NEVER", 900)
    assert criu.stdin is not None and criu.stdout is not None
    before = score(criu.pid)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        # A process by that PID that CRIU has not made, and none at all.
        for other in (1, 2**22, 0):
            assert oom.protect_once_forked(partial(int, other))(criu.pid) is False
        criu.stdin.write("\n")
        criu.stdin.flush()
        root = int(criu.stdout.readline())
        try:
            assert score(criu.pid) == before
            assert oom.protect_once_forked(lambda: root)(criu.pid) is True
            assert (score(criu.pid), score(root)) == (900, before)
            sibling = oom.protect_once_forked(lambda: stranger.pid)
            assert sibling(criu.pid) is True, "with --restore-sibling, both have the same parent"
        finally:
            os.kill(root, 9)
            stranger.kill()


def test_when_it_is_gone_there_is_nothing_more_to_look_for() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert oom.protect_once_forked(lambda: 1)(process.pid) is True


def test_what_can_not_be_set_is_told() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert oom.write(process.pid, 500) == "" and score(process.pid) == 500
        assert (
            oom.write(process.pid, 5000) == f"oom_score_adj of PID {process.pid} can't be set to 5000: Invalid argument"
        )
        process.kill()


def test_the_tree_inherits_what_is_set_before_it_begins(tmp_path: Path) -> None:
    """As criu restore does, for processes with 0 in the image."""
    own, child = tmp_path / "own", tmp_path / "child"
    program = tmp_path / "criu"
    program.write_text(f"#!/bin/sh\ncat /proc/$$/oom_score_adj >{own}; sh -c 'cat /proc/$$/oom_score_adj' >{child}\n")
    program.chmod(0o755)
    run([str(program)], str(tmp_path / "log"), before=lambda pid: oom.write(pid, 700))
    assert own.read_text() == child.read_text() == "700\n"
