# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One toggle, only in the right direction, never two at once; and the state from what a process holds."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import toggle, tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.call import ThreadCall
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.toggle import Toggle
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Mapping
from tests.unit.plugins.cuda.fake import Exchange, FakeTool

ROOT = Path(__file__).resolve().parents[4]
ILLEGAL = "the operation cannot be performed in the present state"
UVM = Mapping("/dev/nvidia-uvm", 0x204A00000, 2 << 20)


@dataclass(frozen=True)
class Seen:
    uvm_mappings: Optional[tuple[Mapping, ...]]
    looks_suspended: Optional[bool]
    may_be_cuda: Optional[bool]


RUNNING = Seen((UVM,), False, True)
TWO_GPUS = Seen((UVM, UVM), False, True)
SUSPENDED = Seen((), True, True)
NOT_CUDA = Seen((), False, False)
BETWEEN = Seen((), False, True)


@pytest.mark.parametrize(
    "seen,state,code",
    [
        (RUNNING, "running", 0),
        (TWO_GPUS, "running", 0),
        (SUSPENDED, "checkpointed", 0),
        (NOT_CUDA, None, 3),
        (BETWEEN, None, None),
        (None, None, 304),
        (Seen(None, None, None), None, 304),
        (Seen(None, False, True), None, 304),
        (Seen((), None, True), None, 304),
        (Seen((), False, None), None, 304),
    ],
)
def test_the_state_from_what_a_process_holds(seen: Optional[Seen], state: Optional[str], code: Optional[int]) -> None:
    reply = toggle.judge(7, seen)
    assert (reply.ok, reply.state, reply.code) == (state is not None, state, code)


def test_a_process_in_between_is_explained() -> None:
    assert toggle.judge(7, BETWEEN).text == (
        "process 7 holds a GPU without mapping /dev/nvidia-uvm: a toggle of it is on its way, or an earlier resume "
        "failed, and it can't be resumed any more"
    )


@pytest.fixture
def target() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process.pid
    process.kill()
    process.wait()


Look = Callable[[Optional[Seen]], None]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    def show(seen: Optional[Seen]) -> None:
        monkeypatch.setattr(toggle, "read_process", lambda pid: seen)

    return show


def made(folder: Path, script: list[Exchange]) -> tuple[FakeTool, Toggle]:
    fake = FakeTool(folder, script)
    return fake, Toggle(tool.Offer(str(fake.path), frozenset(("--toggle", "--pid", "--help")), "550.163.01"))


def answer(call: ThreadCall) -> Reply:
    reply = call.wait(30)
    assert reply is not None
    return reply


def test_what_it_can_do(tmp_path: Path) -> None:
    _fake, backend = made(tmp_path, [])
    assert (backend.name, backend.can_lock, backend.can_hold, backend.can_map) == ("toggle", False, False, False)


def test_a_checkpoint_and_a_restore_are_one_toggle_each(target: int, look: Look, tmp_path: Path) -> None:
    fake, backend = made(tmp_path, [Exchange(["--toggle", "--pid", str(target)])] * 2)
    look(RUNNING)
    assert answer(backend.checkpoint(target)).ok
    look(SUSPENDED)
    assert answer(backend.restore(target, ())).ok
    fake.check()


def test_no_toggle_in_the_wrong_direction(target: int, look: Look, tmp_path: Path) -> None:
    fake, backend = made(tmp_path, [])
    look(SUSPENDED)
    suspend = answer(backend.checkpoint(target))
    assert (suspend.ok, suspend.code, suspend.text) == (False, 401, ILLEGAL)
    look(RUNNING)
    resume = answer(backend.restore(target, ()))
    assert (resume.ok, resume.code, resume.text) == (False, 401, ILLEGAL)
    fake.check()


@pytest.mark.parametrize("seen,code", [(NOT_CUDA, 3), (BETWEEN, None), (None, 304), (Seen(None, None, None), 304)])
def test_no_toggle_of_what_is_not_understood(
    seen: Optional[Seen], code: Optional[int], target: int, look: Look, tmp_path: Path
) -> None:
    fake, backend = made(tmp_path, [])
    look(seen)
    for reply in (answer(backend.checkpoint(target)), answer(backend.restore(target, ()))):
        assert (reply.ok, reply.code) == (False, code)
    fake.check()


def test_a_process_that_is_gone(look: Look, tmp_path: Path) -> None:
    fake, backend = made(tmp_path, [])
    process = subprocess.Popen(["true"])
    process.wait()
    look(RUNNING)
    assert answer(backend.checkpoint(process.pid)).code == 304
    fake.check()


def test_a_real_process_without_cuda(target: int, tmp_path: Path) -> None:
    fake, backend = made(tmp_path, [])
    assert answer(backend.state(target)).code == 3
    assert answer(backend.checkpoint(target)).code == 3
    fake.check()


def test_what_the_tool_says_comes_back(target: int, look: Look, tmp_path: Path) -> None:
    err = f'Error toggling CUDA in process ID {target}: "operation not supported"\n'
    fake, backend = made(tmp_path, [Exchange(["--toggle", "--pid", str(target)], 1, err=err)])
    look(RUNNING)
    reply = answer(backend.checkpoint(target))
    assert (reply.ok, reply.code, reply.text) == (False, 801, "operation not supported")
    fake.check()


def test_two_toggles_at_once_are_refused(target: int, look: Look, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    argv = ["--toggle", "--pid", str(target)]
    fake, backend = made(tmp_path, [Exchange(argv, waits_for=str(gate)), Exchange(argv)])
    look(RUNNING)
    first = backend.checkpoint(target)
    until(fake.pids)
    for call in (backend.checkpoint(target), backend.restore(target, ())):
        reply = answer(call)
        assert (reply.ok, reply.code, reply.text) == (False, None, f"another toggle of process {target} is on its way")
    gate.touch()
    assert answer(first).ok
    assert answer(backend.checkpoint(target)).ok
    fake.check()


def test_toggles_of_two_processes_do_not_wait_for_each_other(target: int, look: Look, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fake, backend = made(
        tmp_path,
        [
            Exchange(["--toggle", "--pid", str(target)], waits_for=str(gate)),
            Exchange(["--toggle", "--pid", str(os.getpid())]),
        ],
    )
    look(RUNNING)
    first = backend.checkpoint(target)
    until(fake.pids)
    assert answer(backend.checkpoint(os.getpid())).ok
    assert first.poll() is None
    gate.touch()
    assert answer(first).ok
    fake.check()


CALLER = """
import sys, time
sys.path[:0] = [{tree!r}]
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import toggle, tool
class Seen:
    uvm_mappings, looks_suspended, may_be_cuda = (1,), False, True
toggle.read_process = lambda pid: Seen
call = toggle.Toggle(tool.Offer({path!r}, frozenset(), "")).checkpoint({target})
time.sleep(1000)
"""


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_toggle_stays_alone_after_its_caller_was_killed(target: int, look: Look, tmp_path: Path) -> None:
    """The lock is the tool's as well: it ends when the toggle does, and leaves nothing behind."""
    gate = tmp_path / "gate"
    argv = ["--toggle", "--pid", str(target)]
    fake, backend = made(tmp_path, [Exchange(argv, waits_for=str(gate)), Exchange(argv)])
    look(RUNNING)
    script = CALLER.format(tree=str(ROOT / "build/tree"), path=str(fake.path), target=target)
    caller = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    until(fake.pids)
    os.killpg(caller.pid, signal.SIGKILL)
    caller.wait(30)
    refused = answer(backend.checkpoint(target))
    assert refused.text == f"another toggle of process {target} is on its way"
    gate.touch()
    until(lambda: answer(backend.checkpoint(target)).ok)
    fake.check()


@pytest.mark.parametrize(
    "call,what",
    [
        (lambda backend: backend.lock(7, 500), "has no lock of its own"),
        (lambda backend: backend.unlock(7), "has no unlock of its own: a restore does both"),
        (lambda backend: backend.restore_thread(7), "names no restore thread"),
        (lambda backend: backend.restore(7, [("GPU-a", "GPU-b")]), "takes no device map; drivers from 580 on do"),
    ],
)
def test_what_it_lacks_is_said(call: Callable[[Toggle], ThreadCall], what: str, tmp_path: Path) -> None:
    fake, backend = made(tmp_path, [])
    reply = answer(call(backend))
    assert (reply.ok, reply.code) == (False, None)
    assert reply.text == f"cuda-checkpoint of driver 550.163.01, which only toggles, {what}"
    fake.check()


def test_a_pid_that_is_none(tmp_path: Path) -> None:
    _fake, backend = made(tmp_path, [])
    with pytest.raises(ValueError, match="0 is no PID"):
        backend.checkpoint(0)
