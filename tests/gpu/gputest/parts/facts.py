# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What libcuda does, without the collection: threads that it creates, a restore thread that is stopped midway, and
whose thread id it names. Recorded as facts; the expectations are what the collection relies on."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Set

from conform import hold, proc, workload
from conform.backend import Libcuda, Request
from conform.child import Child

from ..registry import add, test
from ..subject import Subject
from ..trial import Stop, Trial

KINDS = ("jax", "torch", "plain")


class _Adds(Set[int]):
    """Remembers what was ever in it."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: List[int] = []

    def add(self, item: int) -> None:
        self.ever.append(item)
        super().add(item)


class Watch:
    """Every thread id that /proc shows for a process, with its name, from another thread."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.scans = 0
        self.names: Dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.is_set():
            for tid in proc.threads_of(self.pid):
                if tid not in self.names:
                    try:
                        self.names[tid] = Path(f"/proc/{self.pid}/task/{tid}/comm").read_text().strip()
                    except OSError:
                        self.names[tid] = "?"
            self.scans += 1
            time.sleep(0.0005)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


def call(t: Trial, op: str, pid: int, seconds: float = 0) -> Any:
    reply = Libcuda(t.spec.libcuda).start(Request(op, pid)).wait(seconds or t.sizes.patience)
    if reply is None:
        raise Stop(f"{op} of {pid}: no answer")
    return reply


def restore_tid(t: Trial, one: Subject) -> int:
    reply = call(t, "tid", one.pid)
    t.must(isinstance(reply.value, int), f"the driver names a restore thread of {one.name}", reply=str(reply))
    return int(reply.value)


def _held(pid: int, tid: int, starters: List[Callable[[], Any]], seconds: float, stop: bool) -> Dict[str, Any]:
    """Runs in a child: the calls while only the restore thread runs; the process is left stopped, or let go."""
    one = hold.Hold(pid, tid, seconds)
    one.created = _Adds()
    if stop:
        one.stop()
    one.seize()
    held = sorted(one.held)
    replies = one.play(starters, seconds)
    one.settle()
    os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)
    one.detach()
    return {
        "created": one.created.ever,
        "held": len(held),
        "results": [None if reply is None else reply.result for reply in replies],
        "seconds": [None if reply is None else round(reply.seconds, 3) for reply in replies],
    }


def under_hold(t: Trial, one: Subject, tid: int, ops: List[str], stop: bool) -> Dict[str, Any]:
    driver = Libcuda(t.spec.libcuda)
    starters: List[Callable[[], Any]] = [functools.partial(driver.start, Request(op, one.pid)) for op in ops]
    patience = t.sizes.patience + one.mib / t.sizes.rate
    with Watch(one.pid) as watch:
        before = set(proc.threads_of(one.pid))
        child = Child(lambda: _held(one.pid, tid, starters, patience, stop))
        if not child.wait(patience + 30):
            child.kill()
            raise Stop(f"{ops}: no answer under the hold")
    new = {number: name for number, name in watch.names.items() if number not in before}
    gone = sorted(before - set(proc.threads_of(one.pid)))
    return {**child.value, "new threads in /proc": new, "threads gone": gone, "scans of /proc": watch.scans}


def threads(t: Trial, kind: str) -> None:
    """Does libcuda create threads in Checkpoint or in Restore?"""
    one = t.one(kind, f"{kind}1", mib=t.sizes.big // 2)
    tid = restore_tid(t, one)
    t.fact("restore thread", {"tid": tid, "name": Path(f"/proc/{one.pid}/task/{tid}/comm").read_text().strip()})
    for number in (1, 2):
        t.must(bool(call(t, "lock", one.pid).ok), "lock")
        out = under_hold(t, one, tid, ["checkpoint"], stop=True)
        t.fact(f"checkpoint {number}", out)
        with t.gpu_shared():
            back = under_hold(t, one, tid, ["restore", "unlock"], stop=False)
        t.fact(f"restore {number}", back)
        made = [*out["created"], *back["created"], *out["new threads in /proc"], *back["new threads in /proc"]]
        t.say(f"{kind}, round {number}: threads created in Checkpoint or Restore: {len(made)}")
        t.expect(call(t, "tid", one.pid).value == tid, "the restore thread is the same afterwards")
    t.whole([one])


for _kind in KINDS:
    add(
        f"facts/threads-{_kind}",
        functools.partial(threads, kind=_kind),
        framework="" if _kind == "plain" else _kind,
        seconds=240,
    )


def _hold_and_serve(pid: int, tid: int, ready: Path) -> None:
    """Stop first, hold, let the restore thread run and pass on its stops, until killed."""
    one = hold.Hold(pid, tid, 120)
    one.stop()
    one.seize()
    one.go()
    ready.touch()
    _serve(one, tid)


def _take_over(pid: int, tid: int, ready: Path) -> None:
    """Of a stopped process: hold it again and let the restore thread run, until killed."""
    one = hold.Hold(pid, tid, 120)
    one.seize()
    one.go()
    ready.touch()
    _serve(one, tid)


def _serve(one: Any, tid: int) -> None:
    while True:
        for number in [tid, *sorted(one.created)]:
            one._serve(number)
        time.sleep(0.001)


def _wait_for(path: Path, child: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        if child.wait(0.01) or time.monotonic() > end:
            raise Stop("the holder did not come to hold the process")


def _grown(one: Subject, base: int, pending: Any, seconds: float) -> Optional[int]:
    """Wait for the midst of a checkpoint; the bytes copied by then, None when it was over first."""
    end = time.monotonic() + seconds
    while pending.wait(0) is None and time.monotonic() < end:
        grown = int(proc.rss_anon(one.pid)) - base
        if grown > one.mib * (1 << 20) // 8:
            return grown
        time.sleep(0.001)
    return None


@test("facts/stopped-midway", framework="jax", seconds=240)
def stopped_midway(t: Trial) -> None:
    """The holder dies in mid-checkpoint, the call lives on: does the checkpoint end once the thread is seized again?"""
    one = t.one("jax", "jax1", mib=t.sizes.big)
    tid = restore_tid(t, one)
    driver = Libcuda(t.spec.libcuda)
    t.must(bool(call(t, "lock", one.pid).ok), "lock")
    base = int(proc.rss_anon(one.pid))
    first = Child(lambda: _hold_and_serve(one.pid, tid, t.work / "held1"))
    _wait_for(t.work / "held1", first)
    pending = driver.start(Request("checkpoint", one.pid))
    grown = _grown(one, base, pending, t.sizes.patience)
    first.kill()
    time.sleep(0.3)
    after = int(proc.rss_anon(one.pid)) - base
    early = pending.wait(3.0)
    later = int(proc.rss_anon(one.pid)) - base
    t.fact(
        "holder killed in mid-checkpoint",
        {
            "bytes copied when it was killed": grown,
            "bytes 0.3 s later": after,
            "bytes 3.3 s later": later,
            "of": one.mib << 20,
            "the call has returned": None if early is None else early.result,
            "process": one.look().short(),
        },
    )
    t.expect(grown is not None, "the holder was killed in mid-checkpoint")
    t.expect(one.look().stopped, "the process is stopped after its holder died", seen=one.look().short())
    second = Child(lambda: _take_over(one.pid, tid, t.work / "held2"))
    _wait_for(t.work / "held2", second)
    reply = pending.wait(t.sizes.patience)
    t.fact("seized again", {"the call returns": None if reply is None else reply.result})
    t.expect(reply is not None and reply.ok, "the first call returns success once the thread is seized again")
    state = driver.start(Request("state", one.pid)).wait(t.sizes.patience)
    t.fact("state then", None if state is None else state.value)
    second.kill()
    time.sleep(0.2)
    t.expect(one.look().parked, "parked", seen=one.look().short())
    with t.gpu_shared():
        t.fact("restore", under_hold(t, one, tid, ["restore", "unlock"], stop=False))
    t.say(f"stopped at {grown} of {one.mib << 20} bytes; seized again, the call gave {reply and reply.result}")
    t.whole([one])


def in_namespace(t: Trial, kind: str) -> None:
    """Whose thread id does GetRestoreThreadId name for a process in another PID namespace? And the module with it."""
    wrap = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    from .. import subject

    with t.gpu_shared():
        outer = subject.start(t.spec, t.work, f"{kind}1", kind, t.sizes.small, wrap=wrap)
        end = time.monotonic() + t.sizes.ready
        inner = 0
        while not inner:
            if time.monotonic() > end or outer.death() != "alive":
                raise Stop(f"no workload in the namespace: {outer.stderr()}")
            time.sleep(0.05)
            inner = next((pid for pid in _children(outer.pid) if proc.state_of(pid)), 0)
        load = workload.Workload(f"{kind}1", inner, t.work / f"{kind}1", t.sizes.small)
        load.wait_ready(t.sizes.ready)
    one = t.adopt(load, kind)
    t.remember([one])
    named = restore_tid(t, one)
    pairs = {}
    for tid in proc.threads_of(one.pid):
        status = proc.parse_status(Path(f"/proc/{one.pid}/task/{tid}/status").read_text())
        pairs[tid] = [int(word) for word in status["NSpid"].split()]
    as_host = [tid for tid in pairs if tid == named]
    as_inner = [tid for tid, both in pairs.items() if both[-1] == named]
    names = {tid: Path(f"/proc/{one.pid}/task/{tid}/comm").read_text().strip() for tid in {*as_host, *as_inner}}
    t.fact(
        "GetRestoreThreadId",
        {
            "named": named,
            "host PID": one.pid,
            "is a thread id of the host": as_host,
            "is a thread id of its namespace, host id": as_inner,
            "names": names,
        },
    )
    t.expect(bool(as_host) != bool(as_inner), "it is one or the other", host=as_host, inner=as_inner)
    t.say(f"{kind} in a PID namespace: the id is {'the host' if as_host else 'its namespace'}'s")
    done = t.module("suspend", "checkpointed", [one])
    t.reached("suspend", done, "checkpointed", [one], changed=True)
    t.expect(one.look().parked, "parked", seen=one.look().short())
    done = t.module("resume", "running", [one])
    t.reached("resume", done, "running", [one], changed=True)
    t.whole([one])
    t.nothing_left([one])


def _children(parent: int) -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and proc.snapshot(int(name)).parent == parent]


for _kind in ("jax", "plain"):
    add(
        f"facts/pid-namespace-{_kind}",
        functools.partial(in_namespace, kind=_kind),
        requires=["pidns"],
        framework="" if _kind == "plain" else _kind,
        seconds=240,
    )
