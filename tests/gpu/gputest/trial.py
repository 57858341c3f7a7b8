# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a test works with: subjects, plays, expectations; each is in its record as soon as it is known."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Set, Tuple

from conform import cgroup, nvml, proc
from conform import host as hosts

from . import judge, locks, memory, plays, subject
from .plays import Bare, Play, Started, TaskResult
from .spec import Spec
from .subject import FRAMEWORKS, Look, Subject

MARK = "GPUTEST_TEST"
WORKER = "gpufleet-hold"


class Stop(Exception):
    """Something that the rest of a test stands on did not hold."""


class NotApplicableError(Exception):
    """The machine turned out not to be able to show this."""


class Trial:
    def __init__(self, name: str, spec: Spec, work: Path, result: Path, mark: str) -> None:
        self.name = name
        self.spec = spec
        self.sizes = spec.sizes
        self.work = work
        self.home = Path(spec.home)
        self.mark = mark
        self.subjects: List[Subject] = []
        self.others: List[int] = []
        self.groups: List[Any] = []
        self.undo: List[Callable[[], None]] = []
        self._result = result
        self._began = time.monotonic()
        self._plays = 0
        self._saved = 0.0
        self._locked: Set[int] = set()
        self._used: Set[int] = set()
        self._grown = False
        self.record: Dict[str, Any] = {
            "status": "cut",
            "summary": [],
            "facts": {},
            "sums": [],
            "expectations": [],
            "steps": [],
        }

    # -- the record

    def save(self, now: bool = False) -> None:
        """At most twice a second."""
        if not now and time.monotonic() - self._saved < 0.5:
            return
        self._saved = time.monotonic()
        self.record["seconds"] = round(time.monotonic() - self._began, 1)
        partial = self._result.with_name(self._result.name + ".partial")
        partial.write_text(json.dumps(self.record, default=str))
        partial.rename(self._result)

    def note(self, do: str, **data: Any) -> None:
        self.record["steps"].append({"at": round(time.monotonic() - self._began, 2), "do": do, **data})
        self.save()

    def say(self, text: str) -> None:
        """A line for the report."""
        self.record["summary"].append(text)
        self.save()

    def fact(self, name: str, value: Any) -> None:
        self.record["facts"][name] = value
        self.save()

    def expect(self, ok: bool, what: str, **seen: Any) -> bool:
        one: Dict[str, Any] = {"what": what, "ok": bool(ok), "at": round(time.monotonic() - self._began, 2)}
        if seen and not ok:
            one["seen"] = seen
        self.record["expectations"].append(one)
        self.save()
        return bool(ok)

    def must(self, ok: bool, what: str, **seen: Any) -> None:
        if not self.expect(ok, what, **seen):
            raise Stop(what)

    @property
    def failures(self) -> List[Dict[str, Any]]:
        return [one for one in self.record["expectations"] if not one["ok"]]

    # -- subjects

    def start(self, wanted: Sequence[Tuple[str, str]], mib: int = 0, gpu: int = 0, **how: Any) -> List[Subject]:
        """`wanted`: (name, kind). Ready, and their checksums remembered."""
        self._admit([kind for _name, kind in wanted], mib or self.sizes.small, gpu)
        with self.gpu_shared(gpu):
            started = subject.start_many(self.spec, self.work, list(wanted), mib or self.sizes.small, gpu, **how)
        self.subjects += started
        self.note("started", processes={one.name: [one.pid, one.kind] for one in started})
        self.remember(started)
        return started

    def _admit(self, kinds: Sequence[str], mib: int, gpu: int) -> None:
        """Waits until there is room beside the other tests. A framework takes more than twice what it keeps."""
        reading = nvml.read(self.spec.nvml)
        if reading is None:
            raise Stop("NVML gave no answer in 30 s")
        mibs = sum(self.sizes.context + (mib if kind not in FRAMEWORKS else mib * 5 // 2) for kind in kinds)
        gpus = range(len(self.spec.gpus)) if "multi_gpu" in kinds else [gpu]
        for one in gpus:
            if not locks.admit(self.home, one, mibs, (int(reading.gpus[one].total) >> 20) * 9 // 10, self.sizes.ready):
                self.note("GPU crowded", gpu=one, mib=mibs)

    def one(self, kind: str, name: str = "w1", mib: int = 0, gpu: int = 0, **how: Any) -> Subject:
        return self.start([(name, kind)], mib, gpu, **how)[0]

    def adopt(self, load: Any, kind: str) -> Subject:
        """A process that another one has started."""
        made = Subject(load, kind)
        self.subjects.append(made)
        return made

    def other(self, argv: List[str], **how: Any) -> int:
        """A process that is no CUDA workload."""
        how.setdefault("start_new_session", True)
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **how
        )
        process.returncode = 0
        self.others.append(process.pid)
        return process.pid

    def remember(self, subjects: Sequence[Subject]) -> None:
        for one, value in zip(subjects, self._sums(subjects), strict=False):
            one.sum = value
            self.must(bool(one.sum), f"{one.name} gives a checksum before anything is done", stderr=one.stderr())

    def _sums(self, subjects: Sequence[Subject]) -> List[str]:
        """Asked for at once."""
        for one in subjects:
            with contextlib.suppress(OSError):
                one.load.beside(".sum").unlink()
            one.load.beside(".verify").touch()
        end = time.monotonic() + self.sizes.patience
        found = []
        for one in subjects:
            answer, request = one.load.beside(".sum"), one.load.beside(".verify")
            while time.monotonic() < end and one.death() == "alive" and not (answer.exists() and not request.exists()):
                time.sleep(0.02)
            given = answer.exists() and not request.exists()
            found.append(answer.read_text().strip() if given else "")
            if not given:
                with contextlib.suppress(OSError):
                    request.unlink()
        return found

    def whole(self, subjects: Sequence[Subject], when: str = "at the end") -> bool:
        """Each runs, counts on, has its memory as it was, and nothing holds it."""
        ok = True
        for one in subjects:
            alive = self.expect(one.death() == "alive", f"{one.name} lives {when}", end=one.death(), err=one.stderr())
            ok = alive and ok
            if not alive:
                continue
            window = self.sizes.kernel_ms / 1000 * 3 if one.kind == "longkernel" else 15.0
            ok = self.expect(one.moves(window), f"{one.name} counts on {when}", seen=one.look().short()) and ok
            seen = one.look()
            # A task may be seen stopped for a moment only by ptrace, of which there is none.
            ok = self.expect(not any(seen.tracers), f"{one.name} has no tracer {when}", seen=seen.short()) and ok
            free = not any(state in "Tt" for state in seen.states)
            ok = self.expect(free, f"{one.name} is not stopped {when}", seen=seen.short()) and ok
        for one, now in zip(subjects, self._sums(subjects), strict=False):
            equal = bool(now) and now == one.sum
            self.record["sums"].append(
                {"process": one.name, "kind": one.kind, "when": when, "before": one.sum, "after": now, "equal": equal}
            )
            ok = self.expect(equal, f"{one.name}: checksum equal {when}", before=one.sum, after=now) and ok
        return ok

    def unchanged(self, subjects: Sequence[Subject], before: Sequence[Look], when: str) -> bool:
        """What a refusal must leave: the same devices, no growth, no stop, no tracer."""
        ok = True
        for one, was in zip(subjects, before, strict=False):
            now = one.look()
            same = (
                now.life == was.life
                and now.devices == was.devices
                and now.stopped == was.stopped
                and set(now.tracers) == set(was.tracers)
                and now.rss_anon - was.rss_anon < one.mib * subject.MIB // 2
            )
            ok = self.expect(same, f"{one.name} is as it was {when}", was=was.short(), now=now.short()) and ok
        return ok

    def guards(self, pids: Sequence[int]) -> Dict[int, int]:
        """PID -> the worker that is attached to it."""
        found = {}
        for pid in pids:
            tracers = {one for one in subject.look(pid).tracers if one}
            for tracer in tracers:
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{tracer}/comm").read_text().strip() == WORKER:
                        found[pid] = tracer
        return found

    # -- the modules

    def task(self, state: str, subjects: Sequence[Subject], **arguments: Any) -> Dict[str, Any]:
        return plays.task(state, [one.pid for one in subjects], self.spec.journal, **arguments)

    def begin_play(self, tasks: List[Dict[str, Any]], check: bool = False) -> Started:
        self.wait_for_memory()
        self._plays += 1
        mark = f"{self.mark}-{self._plays}"
        return Started(self.spec, self.work, self._plays, tasks, check, mark)

    def play(self, what: str, tasks: List[Dict[str, Any]], *, check: bool = False, seconds: float = 0) -> Play:
        """ansible-playbook over these tasks; a task that fails does not end it."""
        with self.gpus_shared():
            started = self.begin_play([{"ignore_errors": True, **one} for one in tasks], check)
            done = started.wait(seconds or self.sizes.patience * 2)
        self.note(
            what,
            check=check,
            rc=done.rc,
            seconds=done.seconds,
            module_seconds=done.module_seconds,
            results=[{"status": one.status, **judge.slim(one.result)} for one in done.results],
        )
        self.must(
            len(done.results) == len(tasks),
            f"{what}: every task has a result",
            rc=done.rc,
            results=len(done.results),
            out=done.out[-1500:],
        )
        return done

    def bare(self, arguments: Dict[str, Any], check: bool = False) -> Tuple[Bare, str]:
        self.wait_for_memory()
        self._plays += 1
        mark = f"{self.mark}-{self._plays}"
        return Bare(self.spec, self.work, self._plays, arguments, check, mark), mark

    def arguments(self, state: str, subjects: Sequence[Subject], **more: Any) -> Dict[str, Any]:
        return {"state": state, "pids": [one.pid for one in subjects], "journal": self.spec.journal, **more}

    def module(self, what: str, state: str, subjects: Sequence[Subject], **more: Any) -> TaskResult:
        with self.gpus_shared():
            begun, _mark = self.bare(self.arguments(state, subjects, **more))
            done = begun.wait(self.sizes.patience * 2)
        self.note(what, status=done.status, result=judge.slim(done.result))
        return done

    def reached(self, what: str, done: TaskResult, state: str, subjects: Sequence[Subject], changed: bool) -> None:
        """What follows stands on it."""
        self.must(done.status == "ok", f"{what}: ok", status=done.status, msg=done.message)
        missed = judge.not_reached(done.result, state, [one.pid for one in subjects])
        self.must(not missed, f"{what}: every process is {state}", missed=missed)
        self.expect(done.changed == changed, f"{what}: changed is {changed}", changed=done.changed)

    # -- the machine

    def wait_for_memory(self) -> None:
        """A virtual machine may show its memory only once it has been used; the run sees to that at its start."""
        if self._grown:
            return
        end = time.monotonic() + 120
        while not (self.home / "grown").exists() and time.monotonic() < end:
            time.sleep(0.1)
        self._grown = True

    @property
    def last_gpu(self) -> int:
        """The one that may be filled: nothing else is on it where there are two."""
        return len(self.spec.gpus) - 1

    def free_mib(self, gpu: int) -> int:
        reading = nvml.read(self.spec.nvml)
        if reading is None:
            raise Stop("NVML gave no answer in 30 s")
        return int(reading.gpus[gpu].free) >> 20

    def listed(self, pids: Sequence[int]) -> List[int]:
        """Which of them NVML lists."""
        reading = nvml.read(self.spec.nvml)
        if reading is None:
            raise Stop("NVML gave no answer in 30 s")
        return [pid for pid in pids if any(pid in gpu.pids for gpu in reading.gpus)]

    @contextlib.contextmanager
    def gpu_shared(self, gpu: int = 0) -> Iterator[None]:
        """Whatever takes or gives back memory of that GPU; not while somebody fills it."""
        self._used.add(gpu)
        if gpu in self._locked:
            yield
            return
        with locks.shared(self.home, gpu):
            self._locked.add(gpu)
            try:
                yield
            finally:
                self._locked.discard(gpu)

    @contextlib.contextmanager
    def gpus_shared(self) -> Iterator[None]:
        """Of all that this test has used, in the order of their numbers."""
        with contextlib.ExitStack() as stack:
            for gpu in sorted({int(one.load.gpu) for one in self.subjects} | self._used):
                stack.enter_context(self.gpu_shared(gpu))
            yield

    @contextlib.contextmanager
    def gpu_filled(self, gpu: int, leave: int) -> Iterator[int]:
        """Another process takes all of the GPU but about `leave` MiB; yields what is free then."""
        with locks.alone(self.home, gpu):
            self._locked.add(gpu)
            free = self.free_mib(gpu)
            mib = free - leave - self.sizes.context
            if mib < 2:
                self._locked.discard(gpu)
                raise NotApplicableError(f"GPU {gpu} has {free} MiB free, {leave} are to be left")
            # Not in self.subjects: its memory is nobody's, and it is gone before the test is.
            filler = subject.start(self.spec, self.work, "filler", "plain", mib, gpu)
            try:
                filler.load.wait_ready(self.sizes.ready)
                left = self.free_mib(gpu)
                self.note("GPU filled", gpu=gpu, mib=mib, free_mib=left, wanted=leave)
                yield left
            finally:
                filler.signal(signal.SIGKILL)
                filler.wait_death(30)
                filler.load.reap()
                end = time.monotonic() + 20
                while self.free_mib(gpu) < mib // 2 and time.monotonic() < end:
                    time.sleep(0.05)
                self._locked.discard(gpu)

    def group(self, controller_name: str) -> Any:
        """A control group of the test's own, with a memory limit or a freezer."""
        found = hosts.from_json(self.spec.host)
        controller = found.memory if controller_name == "memory" else found.freezer
        if controller is None:
            raise NotApplicableError(f"no control group {controller_name}")
        made = cgroup.Group(controller, f"{self.mark}-{len(self.groups)}")
        self.groups.append(made)
        return made

    def remembered(self, subjects: Sequence[Subject]) -> List[Dict[str, Any]]:
        """The journal's last word on each."""
        return memory.latest(self.spec, [one.pid for one in subjects])

    def nothing_left(self, subjects: Sequence[Subject], when: str = "at the end") -> None:
        """No live operation or reservation in the journal for these, and no worker on them."""
        pids = [one.pid for one in subjects]
        end = time.monotonic() + 5
        left = memory.left(self.spec, pids)
        while left and time.monotonic() < end:  # a worker that has let go writes its last line a moment later
            time.sleep(0.1)
            left = memory.left(self.spec, pids)
        self.expect(not left, f"nothing of these is left in the journal {when}", left=left)
        self.expect(not self.guards(pids), f"no worker is attached {when}", guards=self.guards(pids))

    # -- the end

    def close(self) -> List[str]:
        """Nothing of the test is left; what could not be removed is said."""
        for group in self.groups:
            with contextlib.suppress(OSError, RuntimeError):
                if group.controller.name == "freezer":
                    group.freeze(False)
        with self.gpus_shared():
            complaints = sweep(self.mark, 20)
        for group in self.groups:
            try:
                group.remove()
            except OSError as error:
                complaints.append(f"control group {group.path}: {error}")
        for undo in reversed(self.undo):
            try:
                undo()
            except OSError as error:
                complaints.append(str(error))
        return complaints


def reap_all() -> None:
    while True:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def sweep(mark: str, seconds: float) -> List[str]:
    """SIGKILL to whatever carries the mark, but the caller, until it is gone."""
    end = time.monotonic() + seconds
    while True:
        left = [
            pid for pid in proc.marked(MARK, mark) if pid != os.getpid() and proc.state_of(pid) not in ("Z", "X", "")
        ]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap_all()
        if not left:
            return []
        if time.monotonic() > end:
            return [f"PID {pid} ({proc.state_of(pid)}) is still there" for pid in left]
        time.sleep(0.05)
