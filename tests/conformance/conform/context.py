# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a case works with: workloads, calls, observations; and the cleaning up behind it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

from . import cgroup, evidence, hold, nvml, proc
from .backend import Backend, DeviceMap, Libcuda, Pending, Reply, Request
from .child import Child
from .criu import Criu, CriuResult
from .host import Host
from .normalize import Names, tool_output, without_versions
from .options import Options
from .workload import Process, Workload, start

MARK = "GPUFLEET_CONFORM"
NO_ANSWER = "no answer"


class NotApplicable(Exception):
    """The host turned out not to be able to show this case."""


class Context:
    def __init__(self, name: str, backend: Backend, options: Options, host: Host, work: Path, mark: str) -> None:
        self.name = name
        self.backend = backend
        # States are re-read through libcuda where it can: it is quicker, and independent of the tool under test.
        self.reader: Backend = backend if host.lacks("checkpoint_functions") else Libcuda(options.libcuda)
        self.options = options
        self.size = options.sizes
        self.host = host
        self.work = work
        self.mark = mark
        self.names = Names({gpu[0]: f"gpu{i}" for i, gpu in enumerate(host.gpus)})
        self.names.add_text(options.cli, "cuda-checkpoint")
        self.observations: List[Dict[str, Any]] = []
        self.raw: List[Dict[str, Any]] = []
        self.loose: List[Pending] = []
        self.processes: List[Process] = []
        self.groups: List[cgroup.Group] = []
        self.undo: List[Callable[[], None]] = []
        self.step = "start"

    # -- observations

    def note(self, do: str, result: Any = None, state: Optional[str] = None, **found: Any) -> None:
        one: Dict[str, Any] = {"do": do}
        if result is not None:
            one["result"] = result
        if state is not None:
            one["state"] = state
        if found:
            one["evidence"] = found
        self.observations.append(one)

    def clean(self, result: Any) -> Any:
        if isinstance(result, dict):
            return {key: self.clean(value) for key, value in result.items()}
        return tool_output(without_versions(self.names.clean(result))) if isinstance(result, str) else result

    # -- processes

    def workload(
        self,
        name: str = "w1",
        kind: str = "plain",
        mib: Optional[int] = None,
        *,
        gpu: int = 0,
        options: Optional[List[str]] = None,
        ready: bool = True,
        file: str = "",
        **how: Any,
    ) -> Workload:
        self.step = f"starting {name}"
        one = start(
            self.options.workload,
            name,
            self.work / (file or name),
            kind=kind,
            mib=self.size.small if mib is None else mib,
            gpu=gpu,
            options=options,
            **how,
        )
        self.add(one)
        if ready:
            one.wait_ready(self.size.ready)
        return one

    def add(self, process: Process) -> Process:
        self.processes.append(process)
        self.names.add_pid(process.pid, process.name)
        return process

    def part(self, of: Workload, suffix: str, name: str, mib: Optional[int] = None) -> Workload:
        """A further process of a workload, by the files that it writes."""
        out = of.beside(suffix)
        end = time.monotonic() + self.size.ready
        pidfile = out.with_name(out.name + ".pid")
        while True:
            try:
                pid = int(pidfile.read_text())
                break
            except (OSError, ValueError):
                if time.monotonic() > end:
                    raise RuntimeError(f"{of.name}: no {pidfile.name} in {self.size.ready:g} s") from None
                time.sleep(0.02)
        one = Workload(name, pid, out, of.mib if mib is None else mib, of.gpu)
        self.add(one)
        one.wait_ready(self.size.ready)
        return one

    def other(self, name: str, argv: List[str], **how: Any) -> Process:
        """A process that is no CUDA workload."""
        how.setdefault("start_new_session", True)
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **how
        )
        process.returncode = 0
        return self.add(Process(name, process.pid))

    # -- calls

    def request(self, op: str, target: Process, **how: Any) -> Request:
        return Request(op=op, pid=target.pid, **how)

    def begin(self, op: str, target: Process, **how: Any) -> Pending:
        self.step = f"{op} {target.name}"
        return self.backend.start(self.request(op, target, **how))

    def starter(self, op: str, target: Process) -> Callable[[], Pending]:
        return lambda: self.backend.start(Request(op, target.pid))

    @staticmethod
    def describe(op: str, target: Process, how: Dict[str, Any]) -> str:
        words = [op, target.name]
        if how.get("timeout_ms") is not None:
            words.append(f"timeout={how['timeout_ms']}")
        if how.get("args", "zeroed") != "zeroed":
            words.append(f"args={how['args']}")
        if how.get("uid") is not None:
            words.append("as nobody")
        return " ".join(words)

    def result_of(self, op: str, target: Process, reply: Reply) -> Any:
        if op == "tid" and isinstance(reply.value, int):
            self.names.add_pid(reply.value, self.thread_name(target, reply.value))
            word = self.thread_name(target, reply.value)
            return f"0 {word}" if self.backend.name == "libcuda" else {"rc": 0, "out": f"<{word}>"}
        if op == "state" and reply.value is not None and self.backend.name == "libcuda":
            return f"0 {reply.value}"
        return self.clean(reply.result)

    @staticmethod
    def thread_name(target: Process, tid: int) -> str:
        if tid == target.pid:
            return f"main thread of {target.name}"
        return f"thread of {target.name}" if tid in proc.threads_of(target.pid) else "no thread of it"

    def call(
        self,
        op: str,
        target: Process,
        *,
        hang: bool = False,
        reread: bool = True,
        label: str = "",
        mib: int = 0,
        **how: Any,
    ) -> Optional[Reply]:
        """One driver call and its observation. `hang`: it may never answer, so little patience is shown."""
        do = label or self.describe(op, target, how)
        pending = self.begin(op, target, **how)
        patience = self.size.hang * 2 if hang else self.size.patience_for(mib or getattr(target, "mib", 0))
        reply = pending.wait(patience)
        if reply is None:
            self.loose.append(pending)
        result = NO_ANSWER if reply is None else self.result_of(op, target, reply)
        self.note(do, result, self.state(target, hang) if reread and op not in ("state", "tid") else None)
        return reply

    def state(self, target: Process, hang: bool = False) -> str:
        """Re-read, in one word."""
        pending = self.reader.start(Request("state", target.pid))
        reply = pending.wait(self.size.hang if hang else self.size.patience)
        if reply is None:
            self.loose.append(pending)
            return NO_ANSWER
        if reply.value is not None:
            return str(reply.value)
        if isinstance(reply.result, dict):
            text = str(reply.result.get("err", reply.result))
            return "error " + (text.rsplit('"', 2)[1] if text.count('"') >= 2 else self.clean(text))
        return f"error {reply.result}"

    def finish(
        self, what: str, pending: Pending, target: Process, op: str, mib: int = 0, **found: Any
    ) -> Optional[Reply]:
        """A call begun earlier is expected to come back now."""
        self.step = f"waiting for {what}"
        reply = pending.wait(self.size.patience_for(mib or getattr(target, "mib", 0)))
        if reply is None:
            self.loose.append(pending)
        result = NO_ANSWER if reply is None else self.result_of(op, target, reply)
        self.note(what, result, self.state(target), **found)
        return reply

    def at_work(self, op: str, caller: Union[Pending, Child], target: Workload) -> bool:
        """Wait until the driver is in the midst of a checkpoint (the process grows) or of a restore (it holds a device
        again), and say whether the call is still on its way then."""
        self.step = f"waiting for {op} of {target.name} to be at work"
        before = proc.rss_anon(target.pid)
        end = time.monotonic() + self.size.patience
        while not caller.wait(0) and time.monotonic() < end:
            if op == "checkpoint" and proc.rss_anon(target.pid) - before > target.bytes // 16:
                break
            if op == "restore" and proc.holds_device(target.pid):
                break
            time.sleep(0.002)
        return not caller.wait(0)

    def in_kernel(self, target: Workload) -> None:
        """Wait until a long kernel has just begun, so that there is time before its end."""
        self.step = f"waiting for a kernel of {target.name}"
        first = target.counter()
        end = time.monotonic() + self.size.patience
        while target.counter() == first:
            if time.monotonic() > end:
                raise RuntimeError(f"{target.name}: no kernel ended in {self.size.patience:g} s")
            time.sleep(0.01)
        time.sleep(0.2)

    def begun_and_over(self, op: str, target: Process) -> None:
        """A call in whose midst, or just after which, its process dies: chance decides what it returns."""
        pending = self.begin(op, target)
        reply = pending.wait(self.size.patience_for(getattr(target, "mib", 0)))
        if reply is None:
            self.loose.append(pending)
        self.raw.append({"at": f"{op} {target.name}", "result": None if reply is None else reply.result})
        self.note(f"{op} {target.name}", NO_ANSWER if reply is None else "answered")

    def suspend(self, target: Process, mib: int = 0) -> None:
        self.call("lock", target)
        self.call("checkpoint", target, mib=mib)

    def resume(self, target: Process, mib: int = 0) -> None:
        self.call("restore", target, mib=mib)
        self.call("unlock", target)

    # -- evidence

    def reading(self) -> nvml.Reading:
        reading = nvml.read(self.options.nvml)
        if reading is None:
            raise RuntimeError("NVML gave no answer in 30 s")
        return reading

    def listed_on(self, pid: int) -> List[str]:
        return [f"gpu{gpu.index}" for gpu in self.reading().gpus if pid in gpu.pids]

    def used_mib(self, gpu: int = 0) -> int:
        return self.reading().gpus[gpu].used >> 20

    def free_mib(self, gpu: int = 0) -> int:
        return self.reading().gpus[gpu].free >> 20

    def look(self, target: Workload, do: str = "look", counter: bool = True, nccl: bool = False) -> Dict[str, Any]:
        self.step = f"looking at {target.name}"
        moves = target.moves(self.size.window) if counter else None
        listed = self.listed_on(target.pid)
        seen = proc.snapshot(target.pid)
        found: Dict[str, Any] = dict(evidence.of_process(seen, target.rss, target.bytes, listed, moves))
        if nccl and seen.life == "alive":
            found.update(evidence.nccl_of(seen))
        if seen.life != "alive":
            found["end"] = target.death()
        self.raw.append({"at": f"{do} {target.name}", "counter": target.counter(), **evidence.raw(seen)})
        self.note(f"{do} {target.name}", **found)
        return found

    def remember_sum(self, target: Workload) -> None:
        target.sum = target.checksum(self.size.patience)
        if not target.sum:
            raise RuntimeError(f"{target.name} gave no checksum before anything was done; stderr: {target.stderr()!r}")

    def check_sum(self, target: Workload) -> None:
        self.step = f"checksum of {target.name}"
        now = target.checksum(self.size.patience)
        word = "equal" if now and now == target.sum else "none given" if not now else "DIFFERENT"
        self.note(f"checksum {target.name}", word)

    def whole(self, target: Workload) -> None:
        """Running, counting, and its memory as it was."""
        self.note(
            f"whole {target.name}",
            target.death(),
            self.state(target),
            counter="moves" if target.moves(8) else "stands",
        )
        self.check_sum(target)

    def death(self, target: Process, seconds: float = 10, do: str = "end of") -> str:
        how = target.wait_death(seconds)
        self.note(f"{do} {target.name}", how)
        return how

    # -- tools

    def criu(self) -> Criu:
        return Criu(self.options.criu, self.work)

    def dump(
        self, target: Process, images: str = "image", label: str = "criu dump", extra: Optional[List[str]] = None
    ) -> CriuResult:
        self.step = f"criu dump of {target.name}"
        result = self.criu().dump(
            target.pid, self.work / images, self.size.patience_for(getattr(target, "mib", 0)), extra
        )
        self.note(f"{label} {target.name}", result.text)
        self._keep_log(f"{label} {target.name}", result)
        return result

    def undump(
        self,
        target: Process,
        images: str = "image",
        label: str = "criu restore",
        extra: Optional[List[str]] = None,
    ) -> CriuResult:
        self.step = f"criu restore of {target.name}"
        result = self.criu().restore(self.work / images, self.size.patience_for(getattr(target, "mib", 0)), extra)
        self.note(f"{label} {target.name}", result.text)
        self._keep_log(f"{label} {target.name}", result)
        return result

    def _keep_log(self, what: str, result: CriuResult) -> None:
        errors = [line for line in result.log.splitlines() if "Error" in line or "Warn" in line]
        self.raw.append({"at": what, "rc": result.rc, "criu": errors[-25:], "tail": result.log.splitlines()[-6:]})

    def gone(self, target: Process, seconds: float = 20) -> None:
        """Wait for its end and reap it, so that its PID is free."""
        target.wait_death(seconds)
        target.reap()
        end = time.monotonic() + seconds
        while os.path.exists(f"/proc/{target.pid}") and time.monotonic() < end:
            target.reap()
            time.sleep(0.02)

    def group(self, controller: Optional[cgroup.Controller]) -> cgroup.Group:
        if controller is None:
            raise NotApplicable("no control group controller")
        made = cgroup.Group(controller, f"{self.mark}-{len(self.groups)}")
        self.groups.append(made)
        return made

    def tmpfs(self, name: str, mib: int) -> Path:
        point = self.work / name
        point.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(point)], stderr=subprocess.PIPE, check=False
        )
        if done.returncode != 0:
            raise NotApplicable("mount is not permitted")
        self.undo.append(lambda: void(subprocess.run(["umount", "-l", str(point)], check=False)))
        return point

    def restore_tid(self, target: Process) -> int:
        reply = self.reader.start(Request("tid", target.pid)).wait(self.size.patience)
        if reply is None or not isinstance(reply.value, int):
            raise RuntimeError(f"no restore thread for {target.name}: {reply}")
        return reply.value

    def park(self, target: Workload, do: str = "hold, checkpoint, park") -> None:
        """`target` is locked; it is left parked and suspended."""
        tid = self.restore_tid(target)
        patience = self.size.patience_for(target.mib)
        child = Child(lambda: hold.suspend(target.pid, tid, self.starter("checkpoint", target), patience))
        self._held(child, target, do, tid)

    def unpark(self, target: Workload, do: str = "hold, restore, unlock, let go") -> None:
        seen = proc.threads_of(target.pid)
        tid = getattr(target, "restore_tid", 0)
        if tid not in seen:
            raise RuntimeError(f"{target.name}: its restore thread {tid} is not among {seen}")
        steps = [self.starter(op, target) for op in ("restore", "unlock")]
        child = Child(lambda: hold.resume(target.pid, tid, steps, self.size.patience_for(target.mib)))
        self._held(child, target, do, tid)

    def held_calls(self, target: Workload, tid: int, ops: List[str]) -> None:
        """Stop the process, let only its restore thread run, make these calls, let it go."""
        child = Child(
            lambda: hold.alone(
                target.pid,
                tid,
                [self.starter(op, target) for op in ops],
                self.size.patience,
            )
        )
        self.step = f"held calls on {target.name}"
        if not child.wait(self.size.patience * (len(ops) + 1)):
            child.kill()
            self.note("held calls", NO_ANSWER)
            return
        for index, answer in enumerate(child.value):
            op = ops[index]
            if answer is None:
                self.note(f"held: {op} {target.name}", NO_ANSWER)
            else:
                reply = Reply(answer["result"], answer["ok"], answer["value"])
                self.note(f"held: {op} {target.name}", self.result_of(op, target, reply))

    def held_reread(self, target: Workload, tid: int) -> None:
        """What is the state of a stopped process whose holder died? Its restore thread alone is let run for that."""
        patience = self.size.patience_for(target.mib)
        step = [self.starter("state", target)]
        child = Child(lambda: hold.finish(target.pid, tid, step, patience + 60))
        if not child.wait(patience + 60):
            child.kill()
            self.note("held: state", NO_ANSWER)
            return
        answer = child.value[0]
        self.note("held: state", state=NO_ANSWER if answer is None else str(answer["value"]))

    def _held(self, child: Child, target: Workload, do: str, tid: int) -> None:
        self.step = f"{do} {target.name}"
        target.__dict__["restore_tid"] = tid
        if not child.wait(self.size.patience_for(target.mib) + 20):
            child.kill()
            self.note(f"{do} {target.name}", NO_ANSWER)
            return
        self.note(f"{do} {target.name}", [self.clean(result) for result in child.value])

    @contextlib.contextmanager
    def traced(self, target: Process) -> Iterator[None]:
        """Somebody else has seized every thread of it, and lets it run."""
        child = Child(lambda: hold.watch(target.pid, 120))
        end = time.monotonic() + 10
        while proc.snapshot(target.pid).tracer != child.pid and time.monotonic() < end:
            time.sleep(0.02)
        self.note("traced by somebody else", proc.snapshot(target.pid).tracer == child.pid)
        try:
            yield
        finally:
            child.kill()

    def identity_map(self) -> DeviceMap:
        return tuple((gpu[0], gpu[0]) for gpu in self.host.gpus)

    def swap_map(self) -> DeviceMap:
        first, second = self.host.gpus[0][0], self.host.gpus[1][0]
        return ((first, second), (second, first), *((gpu[0], gpu[0]) for gpu in self.host.gpus[2:]))

    def map_words(self, device_map: DeviceMap) -> str:
        return ",".join(f"{self.names.of_gpu(old)}={self.names.of_gpu(new)}" for old, new in device_map)

    # -- the end

    def close(self) -> List[str]:
        """Nothing of the case is left; what could not be removed is said."""
        complaints: List[str] = []
        for process in self.processes:
            if isinstance(process, Workload) and process.stderr():
                self.raw.append({"at": f"stderr of {process.name}", "text": process.stderr()})
        for group in self.groups:
            with contextlib.suppress(OSError, RuntimeError):
                if group.controller.name == "freezer":
                    group.freeze(False)
        for process in self.processes:
            process.signal(signal.SIGCONT)
        self._wait_loose(1.0)
        pids = {process.pid for process in self.processes} | set(proc.marked(MARK, self.mark))
        pids -= {os.getpid()} | {pending.pid for pending in self.loose}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait_loose(3.0)
        for pending in self.loose:
            with contextlib.suppress(ProcessLookupError):
                pending.kill()
        complaints += sweep(self.mark, 20)
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
        shutil.rmtree(self.work, ignore_errors=True)
        return complaints

    def _wait_loose(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for pending in self.loose:
            with contextlib.suppress(RuntimeError):
                pending.wait(max(0.0, end - time.monotonic()))


def void(_dummy: object) -> None:
    """For callbacks whose value nobody wants."""


def reap_all() -> None:
    while True:
        try:
            pid, _dummy = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def sweep(mark: str, seconds: float) -> List[str]:
    """SIGKILL whatever carries the mark, but the caller, until it is gone."""
    end = time.monotonic() + seconds
    while True:
        left = [
            pid for pid in proc.marked(MARK, mark) if pid != os.getpid() and proc.state_of(pid) not in ("Z", "X", "")
        ]
        for pid in left:
            for number in (signal.SIGCONT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        reap_all()
        if not left:
            return []
        if time.monotonic() > end:
            return [f"PID {pid} ({proc.state_of(pid)}) is still there" for pid in left]
        time.sleep(0.05)
