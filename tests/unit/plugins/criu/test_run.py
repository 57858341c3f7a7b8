# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How CRIU is run: with programs in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import run as runner
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import read_log, run


def script(path: Path, text: str) -> list[str]:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return [str(path)]


def wait_for(met: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "criu.log")


def test_status_and_log(tmp_path: Path, log: str) -> None:
    done = run(script(tmp_path / "criu", f"echo Error >{log}; sleep 0.2; exit 7"), log)
    assert (done.rc, done.log, done.note) == (7, "Error\n", "")
    assert 0.2 <= done.seconds < 10


def test_success_and_signals(tmp_path: Path, log: str) -> None:
    assert run(script(tmp_path / "criu", "exit 0"), log).rc == 0
    assert run(script(tmp_path / "criu", "kill -9 $$"), log).rc == -9


def test_what_it_says_without_a_log(tmp_path: Path, log: str) -> None:
    done = run(script(tmp_path / "criu", "echo 'unrecognized option' >&2; exit 2"), log)
    assert (done.rc, done.log) == (2, "unrecognized option\n")


def test_its_surroundings(tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of its own, no descriptor or setting of the caller, a fixed PATH, files for root alone."""
    monkeypatch.setenv("CRIU_CONFIG_FILE", "/tmp/evil")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    inherited = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        done = run(
            script(
                tmp_path / "criu",
                "{ env | grep -v ^PWD=; echo umask $(umask); pwd; ls -l /proc/$$/fd | sed 's/.* -> //' | sort -u; "
                # By the shell alone: while it starts a program, it blocks everything.
                "while read -r a b; do case $a in SigBlk:|SigIgn:) echo $a $b;; esac; done </proc/$$/status; "
                f"ps -o sid= -p $$; echo $$; }} >{log}; touch {tmp_path}/made",
            ),
            log,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(inherited)
    lines = done.log.split("\n")
    assert {f"PATH={runner.PATH}", "LC_ALL=C", "umask 0077", "/", "/dev/null"} <= set(lines)
    assert not any(one.startswith(("CRIU_CONFIG_FILE", "LANG", "LD_LIBRARY")) for one in lines)
    signals = {one.partition(":")[0]: int(one.partition(":")[2], 16) for one in lines if one.startswith("Sig")}
    # make leaves the two that the C library keeps for itself ignored; nobody can ask for another thing.
    assert signals["SigBlk"] == 0 and signals["SigIgn"] & ~0x180000000 == 0
    assert lines[-3].strip() == lines[-2].strip(), "it leads its session"
    allowed = {"/", "/dev/null", "/memfd:criu (deleted)", log, str(tmp_path / "criu")}
    assert {one for one in lines if one.startswith("/")} == allowed
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600


def test_its_libraries_are_found(tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/criu/lib")
    assert run(script(tmp_path / "criu", f"echo $LD_LIBRARY_PATH >{log}"), log).log == "/opt/criu/lib\n"


def test_before_it_begins(tmp_path: Path, log: str) -> None:
    """It waits while it is moved; the PID is its own."""
    seen: list[int] = []

    def before(pid: int) -> str:
        seen.append(pid)
        time.sleep(0.1)
        assert not os.path.exists(log)
        return "moved"

    done = run(script(tmp_path / "criu", f"echo $$ >{log}"), log, before=before)
    assert done.log == f"{seen[0]}\n" and done.note == "moved"


def test_it_does_not_begin_when_that_fails(
    tmp_path: Path, log: str, new_children: Callable[[], list[psutil.Process]]
) -> None:
    def before(pid: int) -> str:
        raise LookupError(pid)

    with pytest.raises(LookupError) as caught:
        run(script(tmp_path / "criu", f"echo begun >{log}"), log, before=before)
    pid = caught.value.args[0]
    assert not psutil.pid_exists(pid) and new_children() == []
    assert not os.path.exists(log)


def test_while_it_is_at_work(tmp_path: Path, log: str) -> None:
    """It is looked at until there is nothing more to look for."""
    seen: list[int] = []

    def meanwhile(pid: int) -> bool:
        seen.append(pid)
        assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return len(seen) == 3

    argv = script(tmp_path / "criu", f"echo $$ >{log}; sleep 0.5; exit 3")
    done = run(argv, log, meanwhile=meanwhile)
    assert (done.rc, done.log) == (3, f"{seen[0]}\n") and len(seen) == 3 and len(set(seen)) == 1
    seen.clear()
    assert run(script(tmp_path / "criu", "exit 4"), log, meanwhile=lambda pid: False).rc == 4
    late = run(script(tmp_path / "criu", "sleep 5"), log, seconds=0.1, meanwhile=lambda pid: False)
    assert late.rc is None and late.seconds < 4


def test_past_its_time_it_goes_on(tmp_path: Path, log: str) -> None:
    argv = script(tmp_path / "criu", f"echo begun >{log}; sleep 1; echo done >>{log}")
    done = run(argv, log, seconds=0.4)
    assert (done.rc, done.log) == (None, "begun\n") and done.seconds < 1
    wait_for(lambda: Path(log).read_text() == "begun\ndone\n")


def test_it_goes_on_without_its_caller(tmp_path: Path, log: str) -> None:
    argv = script(tmp_path / "criu", f"echo begun >{log}; sleep 0.5; echo done >>{log}")
    caller = (
        "import sys; from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import run; "
        f"run({argv!r}, {log!r})"
    )
    tree = Path(__file__).resolve().parents[4] / "build" / "tree"
    with subprocess.Popen([sys.executable, "-c", caller], env={**os.environ, "PYTHONPATH": str(tree)}) as process:
        wait_for(lambda: os.path.exists(log))
        process.kill()
    wait_for(lambda: Path(log).read_text() == "begun\ndone\n")


def test_a_caller_that_dies_before_it_begins(tmp_path: Path, log: str) -> None:
    argv = script(tmp_path / "criu", f"echo begun >{log}")
    waiting = tmp_path / "waiting"
    caller = (
        "import os, time; from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import run; "
        f"run({argv!r}, {log!r}, before=lambda pid: (open({str(waiting)!r}, 'w').write(str(pid)), os._exit(1)))"
    )
    tree = Path(__file__).resolve().parents[4] / "build" / "tree"
    subprocess.run([sys.executable, "-c", caller], env={**os.environ, "PYTHONPATH": str(tree)}, check=False)
    wait_for(waiting.exists)
    time.sleep(0.2)
    assert not os.path.exists(log)


def test_nothing_is_left_behind(tmp_path: Path, log: str, new_children: Callable[[], list[psutil.Process]]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _round in range(3):
        run(script(tmp_path / "criu", "exit 1"), log)
    assert new_children() == []
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_caller_that_ignores_its_children(tmp_path: Path, log: str) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run(script(tmp_path / "criu", "exit 3"), log).rc == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_program_that_cannot_be_executed(tmp_path: Path, log: str) -> None:
    with pytest.raises(CriuError, match=r"criu: No such file or directory.*Run it by hand"):
        run([str(tmp_path / "criu")], log)


# The log


def test_what_is_there_is_removed_and_no_link_followed(tmp_path: Path, log: str) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    Path(log).symlink_to(other)
    done = run(script(tmp_path / "criu", f"echo new >>{log}"), log)
    assert done.log == "new\n" and other.read_text() == "precious" and not Path(log).is_symlink()
    assert run(script(tmp_path / "criu", "exit 1"), log).log == ""


def test_a_directory_in_its_place(tmp_path: Path, log: str) -> None:
    Path(log).mkdir()
    with pytest.raises(CriuError, match="it can't be removed: Is a directory"):
        run(script(tmp_path / "criu", "exit 0"), log)


def test_head_and_tail_of_a_large_one(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "HEAD_BYTES", 10)
    monkeypatch.setattr(runner, "TAIL_BYTES", 5)
    Path(log).write_bytes(b"0123456789abcde")
    assert read_log(log) == "0123456789abcde"
    Path(log).write_bytes(b"0123456789....abcde")
    assert read_log(log) == "0123456789\n... 4 bytes left out ...\nabcde"
    assert read_log(log + ".not") == ""


def test_a_criu_that_dumps_has_ended_when_it_returns(tmp_path: Path, log: str) -> None:
    """Also where the process in between is killed, and nobody knows its status."""
    assert run(script(tmp_path / "criu", "sleep 0.3; exit 5"), log, 0.1, dumps=True).rc == 5
    done = run(script(tmp_path / "criu", f"kill -9 $PPID; sleep 0.5; touch {tmp_path}/ended"), log, dumps=True)
    assert done.rc is None and (tmp_path / "ended").exists()


def test_a_criu_that_dumps_can_be_stopped_and_continued(tmp_path: Path, log: str) -> None:
    """Its tracer takes no signal from it."""
    command = "sh -c 'sleep 0.3; kill -CONT '$$ & kill -STOP $$; trap 'exit 6' USR1; kill -USR1 $$; exit 1"
    done = run(script(tmp_path / "criu", command), log, dumps=True)
    assert done.rc == 6 and done.seconds >= 0.3


def test_what_a_criu_that_dumps_leaves_in_its_session_ends(tmp_path: Path, log: str) -> None:
    done = run(script(tmp_path / "criu", f"sleep 100 & echo $! >{tmp_path}/left; kill -9 $$"), log, dumps=True)
    assert done.rc == -9
    left = int((tmp_path / "left").read_text())
    wait_for(lambda: not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE)
