# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real PID namespace, with programs in CRIU's place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import namespace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import run
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import NAMESPACE_INIT

TREE = Path(__file__).resolve().parents[4] / "build" / "tree"


def may_unshare() -> bool:
    command = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "true"]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_root = pytest.mark.skipif(not may_unshare(), reason="no PID namespace can be made here")


def script(path: Path, text: str) -> list[str]:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return [str(path)]


def wait_for(met: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


class Place:
    """seen: PIDs of CRIUs that were begun, and of the first process of each namespace."""

    def __init__(self, directory: Path) -> None:
        self.log = str(directory / "log")
        self.program = directory / "criu"
        self.seen: list[int] = []

    def before(self, pid: int) -> str:
        self.seen += [pid, psutil.Process(pid).ppid()]
        return ""

    def run(self, text: str, seconds: float = 0.0) -> int | None:
        return run(script(self.program, text), self.log, seconds, before=self.before, new_namespace=True).rc

    @property
    def first(self) -> int:
        return self.seen[-1]

    def says(self) -> list[str]:
        return Path(self.log).read_text().split("\n")[:-1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    one = Place(tmp_path)
    yield one
    for pid in one.seen:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


@needs_root
def test_criu_is_inside_and_its_status_is_told(place: Place) -> None:
    assert place.run(f"{{ echo $$ $PPID; ls /proc | grep -c '^[0-9]'; umask; pwd; }} >{place.log}; exit 7") == 7
    assert place.says()[0].endswith(" 1"), "its parent is the first process"
    assert int(place.says()[1]) < 8, "its /proc is that of the namespace"
    assert place.says()[2:] == ["0077", "/"]
    assert place.run("kill -9 $$") == -9
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in place.seen))
    assert Path("/proc/1/comm").exists(), "the /proc of this host is as it was"


@needs_root
def test_the_tree_lives_on_and_is_known_by_both_numbers(place: Place) -> None:
    assert place.run(f"setsid sleep 60 & setsid sleep 61 & echo $! >{place.log}") == 0
    (inside,) = place.says()
    known = namespace.inside(place.first)
    assert known[1] == place.first
    here = known[int(inside)]
    wait_for(lambda: psutil.Process(here).cmdline() == ["sleep", "61"])
    assert psutil.Process(here).ppid() == place.first
    assert len(known) == 3
    first = psutil.Process(place.first)
    assert first.name() == NAMESPACE_INIT
    assert {one.path for one in first.open_files()} <= {os.devnull}
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
        os.kill(place.first, number)
    time.sleep(0.1)
    assert psutil.pid_exists(here)
    # It reaps, and ends with the last one.
    os.kill(here, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(here))
    assert set(namespace.inside(place.first)) == set(known) - {int(inside)}
    (other,) = (pid for pid in namespace.inside(place.first).values() if pid != place.first)
    os.kill(other, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(place.first))
    assert namespace.inside(place.first) == {}


@needs_root
def test_the_tree_lives_on_without_the_caller(place: Place, tmp_path: Path) -> None:
    """Nobody reads any more what the first process tells: that must not end it, since everybody would end with it."""
    argv = script(place.program, f"setsid sleep 60 & echo $! >{place.log}; sleep 0.5; exit 0")
    told = tmp_path / "first"
    caller = (
        "from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import run; import os; "
        "first = lambda pid: open('/proc/%d/stat' % pid).read().rpartition(')')[2].split()[1]; "
        f"run({argv!r}, {place.log!r}, before=lambda pid: [open({str(told)!r}, 'w').write(first(pid)), ''][1], "
        "new_namespace=True)"
    )
    with subprocess.Popen([sys.executable, "-c", caller], env={**os.environ, "PYTHONPATH": str(TREE)}) as process:
        wait_for(lambda: os.path.exists(place.log) and place.says())
        process.kill()
    place.seen.append(int(told.read_text()))
    time.sleep(0.8)
    known = namespace.inside(place.first)
    assert known.keys() == {1, int(place.says()[0])}


@needs_root
def test_a_caller_that_does_not_let_it_begin(tmp_path: Path) -> None:
    seen: list[int] = []

    def before(pid: int) -> str:
        seen.extend([pid, psutil.Process(pid).ppid()])
        raise LookupError(pid)

    log = tmp_path / "log"
    with pytest.raises(LookupError):
        run(script(tmp_path / "criu", f"echo begun >{log}"), str(log), before=before, new_namespace=True)
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in seen))
    assert not log.exists()


@needs_root
def test_past_its_time_it_goes_on(place: Place) -> None:
    go = f"{place.log}.go"
    waits = f"until [ -e {go} ]; do sleep 0.05; done"
    assert place.run(f"echo begun >{place.log}; {waits}; echo done >>{place.log}", seconds=0.3) is None
    Path(go).touch()
    wait_for(lambda: place.says() == ["begun", "done"])


@needs_root
def test_one_that_can_not_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "_NEW_PIDS", 0x1)
    with pytest.raises(CriuError, match=r"a PID namespace can't be made: .*Invalid argument"):
        run(script(tmp_path / "criu", "exit 0"), str(tmp_path / "log"), new_namespace=True)


def test_who_is_in_none_is_nobody() -> None:
    assert namespace.inside(os.getpid()) == {} and namespace.inside(2**22) == {}
    with subprocess.Popen(["sleep", "60"]) as child:
        assert namespace.child_of(child.pid) == 0
        child.kill()
