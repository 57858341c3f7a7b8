# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real process to hold (target.c), holders that can be killed, and driver calls that its "restore thread" answers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import mmap
import os
import pickle
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import park
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._step_names import ProcessStep

READY, RESTORE_TID, STATE, VIOLATIONS, CREATED, CREATED_SUM, BUSY, PID, READS, GATE = range(10)
HANDLED, HANDLED_BY, COUNTERS, SLOTS = 64, 192, 1024, 4096
RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2


@functools.lru_cache(maxsize=None)
def scratch() -> Path:
    path = Path(tempfile.mkdtemp(prefix="hold-"))
    path.chmod(0o755)
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(str(path), ignore_errors=True)


@functools.lru_cache(maxsize=None)
def program() -> str:
    source = Path(__file__).with_name("target.c")
    binary = scratch() / "target"
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", "-pthread", "-o", str(binary), str(source)], check=True)
    return str(binary)


def until(condition: Callable[[], Any], what: str, seconds: float = 10) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.001)


def states(pid: int) -> Dict[int, str]:
    found = {}
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    for name in names:
        try:
            text = Path(f"/proc/{pid}/task/{name}/stat").read_text()
        except OSError:
            continue
        found[int(name)] = text.rpartition(")")[2].split()[0]
    return found


def status(pid: int, field: str, tid: Optional[int] = None) -> str:
    text = Path(f"/proc/{pid}/task/{tid or pid}/status").read_text()
    return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(field + ":"))


class FakeCall:
    """A driver call: the restore thread is told what to do, and says when it is done."""

    numbers = 1000

    def __init__(self, target: Target, what: str, argument: int = 0, ok: bool = True) -> None:
        FakeCall.numbers += 1
        # Unique over all holders of a target: what a dead one has asked for is answered later, to nobody.
        self._id = (os.getpid() % 20000) * 10000 + FakeCall.numbers % 10000
        self._target = target
        self._started = time.monotonic()
        self._ok = ok
        self._reply: Optional[Reply] = None
        self._data = b""
        self.polls = 0
        os.write(target.requests, f"{self._id} {what} {argument}\n".encode())

    def poll(self) -> Optional[Reply]:
        return self.wait(0)

    def wait(self, seconds: float) -> Optional[Reply]:
        self.polls += 1
        if self._reply is None and select.select([self._target.replies], [], [], seconds)[0]:
            self._data += os.read(self._target.replies, 4096)
            for line in self._data.decode().splitlines():
                number, _space, value = line.partition(" ")
                if int(number) == self._id:
                    state = ("running", "locked", "checkpointed")[int(value)]
                    self._reply = Reply(self._ok, 0 if self._ok else 801, "", time.monotonic() - self._started, state)
        return self._reply


class Target:
    """`options` as in target.c. argv: a program that starts it. pid_is_ours: it sees its PID as we do."""

    def __init__(
        self, threads: int = 4, *options: object, argv: Tuple[str, ...] = (), pid_is_ours: bool = True
    ) -> None:
        fd, self.path = tempfile.mkstemp(dir=str(scratch()))
        os.ftruncate(fd, SLOTS * 8)
        os.chmod(self.path, 0o666)
        self._memory = mmap.mmap(fd, SLOTS * 8)
        os.close(fd)
        theirs_in, self.requests = os.pipe()
        self.replies, theirs_out = os.pipe()
        self.popen = subprocess.Popen(
            [
                *argv,
                program(),
                self.path,
                str(threads),
                *(str(int(option) if isinstance(option, int) else option) for option in options),
            ],
            stdin=theirs_in,
            stdout=theirs_out,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.threads = threads
        try:
            until(lambda: self.slot(READY) and self.slot(RESTORE_TID), "the target is ready")
            # Another one than popen.pid where it was started by way of another program.
            self.pid = self.slot(PID) if pid_is_ours else self.popen.pid
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.popen.kill()
        if self.popen.pid != self.slot(PID) > 1:
            try:
                os.kill(self.slot(PID), signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            self.popen.wait(10)
        finally:
            for descriptor in (self.requests, self.replies):
                os.close(descriptor)
            self._memory.close()
            os.unlink(self.path)

    def slot(self, number: int) -> int:
        return int(struct.unpack_from("Q", self._memory, number * 8)[0])

    def set_slot(self, number: int, value: int) -> None:
        struct.pack_into("Q", self._memory, number * 8, value)

    @contextlib.contextmanager
    def gate_shut(self) -> Iterator[None]:
        """Checkpoint and restore do not come to their end meanwhile."""
        self.set_slot(GATE, 0)
        try:
            yield
        finally:
            self.set_slot(GATE, 1)

    def await_work(self) -> None:
        """The restore thread is in the middle of it."""
        before = self.slot(BUSY)
        until(lambda: self.slot(BUSY) > before + 2, "the restore thread works")

    def counters(self) -> List[int]:
        return list(struct.unpack_from(f"{max(self.threads, 64)}Q", self._memory, COUNTERS * 8))

    @property
    def identity(self) -> Identity:
        found = read_identity(self.pid)
        assert found is not None
        return found

    @property
    def target(self) -> park.Target:
        return park.Target(self.identity, self.slot(RESTORE_TID))

    def call(self, what: str, argument: int = 0, ok: bool = True) -> Callable[[], FakeCall]:
        return lambda: FakeCall(self, what, argument, ok)

    def resuming(self) -> List[Tuple[Optional[ProcessStep], Callable[[], FakeCall]]]:
        return [("restore", self.call("r", 5))]

    def unlock(self) -> None:
        """As it is done: the process runs, locked."""
        reply = self.call("u")().wait(10)
        assert reply is not None and reply.ok

    # What it is now

    def all_stopped(self) -> bool:
        """Stopped by SIGSTOP, and by nobody's ptrace."""
        found = [state for state in states(self.pid).values() if state not in "ZX"]
        return bool(found) and all(state == "T" for state in found)

    def assert_parked(self) -> None:
        until(self.all_stopped, f"every thread is T: {states(self.pid)}")
        assert int(status(self.pid, "TracerPid")) == 0
        self.assert_still()

    def assert_still(self, seconds: float = 0.02) -> None:
        """No thread executes an instruction."""
        before = self.counters()
        time.sleep(seconds)
        assert self.counters() == before
        assert self.slot(VIOLATIONS) == 0

    def assert_runs(self) -> None:
        """Every thread counts on, nobody is attached, nothing is blocked that was not before."""
        before = self.counters()[: self.threads]
        until(
            lambda: all(self.counters()[n] > count for n, count in enumerate(before)),
            f"every thread counts on: {states(self.pid)}",
        )
        assert int(status(self.pid, "TracerPid")) == 0
        assert not [state for state in states(self.pid).values() if state in "Tt"]
        assert self.slot(VIOLATIONS) == 0
        assert self.slot(STATE) != CHECKPOINTED


class Holder:
    """A fork that holds, and can be killed. It gives messages with `tell`; its last one is what `work` returned."""

    def __init__(self, work: Callable[[Callable[[Any], None]], Any], uid: Optional[int] = None) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(work, write, uid)
        os.close(write)
        self._data = b""
        self.status: Optional[int] = None

    def _child(self, work: Callable[[Callable[[Any], None]], Any], write: int, uid: Optional[int]) -> None:
        def tell(value: Any) -> None:
            data = pickle.dumps(value)
            os.write(write, struct.pack("I", len(data)) + data)

        try:
            os.setsid()
            if uid is not None:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            tell(("value", work(tell)))
        except BaseException as error:
            tell(("error", type(error).__name__, str(error), traceback.format_exc()))
        finally:
            os._exit(0)

    def next(self, seconds: float = 20) -> Any:
        """Its next message; EOFError when it is gone."""
        end = time.monotonic() + seconds
        while True:
            if len(self._data) >= 4:
                size = struct.unpack_from("I", self._data)[0]
                if len(self._data) >= 4 + size:
                    value = pickle.loads(self._data[4 : 4 + size])
                    self._data = self._data[4 + size :]
                    return value
            assert select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0], "the holder says nothing"
            data = os.read(self._read, 65536)
            if not data:
                raise EOFError
            self._data += data

    def messages(self) -> List[Any]:
        """Those that a holder that is gone has left."""
        found = []
        try:
            while True:
                found.append(self.next())
        except EOFError:
            return found

    def result(self) -> Any:
        """What `work` returned; what it raised is raised here as Failed."""
        while True:
            value = self.next()
            if isinstance(value, tuple) and value and value[0] == "value":
                self.wait()
                return value[1]
            if isinstance(value, tuple) and value and value[0] == "error":
                self.wait()
                raise Failed(value[1], value[2], value[3])

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
        return self.status

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def __del__(self) -> None:
        os.close(self._read)


class Failed(Exception):
    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(f"{kind}: {text}\n{trace}")
        self.kind = kind
        self.text = text


def held(work: Callable[[], Any], uid: Optional[int] = None) -> Any:
    """The value of `work`, done by a holder that ends afterwards."""
    with Holder(lambda tell: work(), uid) as holder:
        return holder.result()


def suspend(target: Target, **options: Any) -> None:
    """In this process: checkpoint, and let go parked."""
    reply, hold = park.suspend(target.target, target.call("c", 5), **options)
    assert reply is not None and reply.ok
    park.let_go(hold, run=False)


def resume(target: Target, unlock: bool = True, **options: Any) -> None:
    """unlock: not of a process that dies as soon as it goes on."""
    replies, hold = park.resume(target.target, target.resuming(), **options)
    assert [reply is not None and reply.ok for reply in replies] == [True]
    park.let_go(hold, run=True)
    if unlock:
        target.unlock()


def bring_back(target: Target, mask: Optional[str] = None, unlock: bool = True) -> None:
    """What a later run does with whatever a dead holder left: hold, ask, finish, let run."""

    def work() -> None:
        hold = park.adopt(target.target, mask=mask)
        reply = park.ask(hold, target.call("q"))
        assert reply is not None
        if reply.state == "checkpointed":
            replies, hold = park.resume(target.target, target.resuming(), hold=hold)
            assert [one is not None and one.ok for one in replies] == [True]
        park.let_go(hold, run=True)
        if unlock and reply.state != "running":
            target.unlock()

    held(work)
