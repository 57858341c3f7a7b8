# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts workloads in the states that are to be recorded, and takes everything away again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Callable, Dict, List, Optional, Type

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _process, _snapshot
from tests.conformance.conform import cgroup, hold, workload
from tests.conformance.conform.child import Child
from tests.conformance.conform.workload import Process, Workload

SCRIPTS = Path(__file__).resolve().parent.parent / "conformance" / "workloads"


class Unfit(RuntimeError):
    """This host can't show it."""


class Bench:
    """One recording's processes. `held`: what a suspended one had on the GPUs."""

    def __init__(self, work: Path, program: str, cli: str, python: str, ready: float) -> None:
        self.work = work
        self.program = program
        self.cli = cli
        self.python = python
        self.ready = ready
        self.held: Dict[int, Dict[str, Optional[int]]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Bench":
        self.work.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._stack.close()
        shutil.rmtree(self.work, ignore_errors=True)

    # Processes

    def start(
        self,
        kind: str = "plain",
        mib: int = 128,
        gpu: int = 0,
        options: Optional[List[str]] = None,
        env: Optional[Dict[str, str]] = None,
        name: str = "w",
        group: Optional[cgroup.Group] = None,
        uid: Optional[int] = None,
        prepare: Optional[Callable[[], None]] = None,
        wrap: Optional[List[str]] = None,
    ) -> Workload:
        """prepare: runs in the process before its program starts; what it opens is inherited. wrap: what starts it."""
        one = workload.start(
            self.program,
            name,
            self.work / name,
            kind=kind,
            mib=mib,
            gpu=gpu,
            options=options,
            env=env,
            prepare=_both(prepare, None if group is None else group.join),
            uid=uid,
            wrap=wrap,
        )
        self._ends(one, gently=kind == "mps")
        one.wait_ready(self.ready)
        return one

    def script(self, script: str, mib: int = 256, module: str = "", env: Optional[Dict[str, str]] = None) -> Workload:
        """A worker of tests/conformance/workloads."""
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        if subprocess.run([self.python, "-c", probe], stderr=subprocess.DEVNULL, check=False).returncode:
            raise Unfit(f"{self.python} has no {module}")
        out = self.work / "w"
        with open(self.work / "w.stderr", "wb") as log:
            process = subprocess.Popen(
                [self.python, str(SCRIPTS / script), str(out), str(mib)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
                cwd="/",
                start_new_session=True,
            )
        process.returncode = 0  # reaped by its PID
        one = Workload("w", process.pid, out, mib)
        self._ends(one)
        one.wait_ready(180)
        return one

    def part(self, of: Workload, suffix: str, device: bool = True) -> Workload:
        """A further process of a workload. It is ended first: a rank of NCCL does not end with its parent."""
        out = of.beside(suffix)
        pidfile = out.with_name(out.name + ".pid")
        end = time.monotonic() + self.ready
        while not (pidfile.exists() and pidfile.read_text().strip()):
            if time.monotonic() > end:
                raise RuntimeError(f"no {pidfile.name} in {self.ready:g} s; stderr: {of.stderr()!r}")
            time.sleep(0.02)
        one = Workload(suffix, int(pidfile.read_text()), out, of.mib if device else 0)
        self._ends(one)
        one.wait_ready(self.ready)
        return one

    def plain(self, argv: List[str], zombie: bool = False) -> Process:
        """No CUDA."""
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        process.returncode = 0
        one = Process("other", process.pid)
        self._ends(one)
        end = time.monotonic() + 10
        while zombie and one.life != "zombie" and time.monotonic() < end:
            time.sleep(0.01)
        return one

    def _ends(self, one: Process, gently: bool = False) -> None:
        """gently: a client of MPS that is killed may take the server with it."""

        def end() -> None:
            if gently:
                one.signal(signal.SIGTERM)
                one.wait_death(10)
            one.signal(signal.SIGKILL)
            one.wait_death(20)
            one.reap()

        self._stack.callback(end)

    # States

    def suspend(self, one: Workload) -> None:
        """Only for kinds that survive it without being held."""
        self.held[one.pid] = _snapshot.read_snapshot([one.pid]).device_bytes(one.pid)
        self._toggle(one.pid)
        if not _looks_suspended(one.pid):
            raise RuntimeError(f"PID {one.pid} still holds a device after cuda-checkpoint --toggle")

    def _toggle(self, pid: int) -> None:
        argv = [self.cli, "--toggle", "--pid", str(pid)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")

    def stop(self, one: Process) -> None:
        one.signal(signal.SIGSTOP)
        _wait(lambda: _process.task_state(one.pid, one.pid) == "T", "it did not stop")

    def trace(self, one: Process) -> None:
        child = Child(lambda: hold.watch(one.pid, 120))

        def end() -> None:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)

        self._stack.callback(end)
        _wait(lambda: bool((_process.read_process(one.pid) or _absent()).tracer_pid), "it is not traced")

    def at_the_end(self, end: Callable[[], object]) -> None:
        """Before what was started until now is ended."""
        self._stack.callback(end)

    def group(self, controller: str, name: str = "") -> cgroup.Group:
        """Gone again after its processes."""
        where = cgroup.find(controller, self.work)
        if where is None:
            raise Unfit(f"no control group with {controller} can be made here")
        self._stack.callback(cgroup.release, where)
        group = cgroup.Group(where, name or f"gpufleet-recorder-{os.getpid()}-{controller}")
        self._stack.callback(group.remove)
        return group

    def freeze(self, group: cgroup.Group) -> None:
        group.freeze(True)
        self._stack.callback(group.freeze, False)

    def mps(self) -> Workload:
        """A client with a daemon of its own."""
        if shutil.which("nvidia-cuda-mps-control") is None:
            raise Unfit("no nvidia-cuda-mps-control")
        for name in ("mps", "mps-log"):
            (self.work / name).mkdir(mode=0o777)
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.work / "mps"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.work / "mps-log"),
        }

        def quit_daemon() -> None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    ["nvidia-cuda-mps-control"],
                    input=b"quit\n",
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **env},
                    timeout=20,
                    check=False,
                )

        self._stack.callback(quit_daemon)
        return self.start("mps", env=env)


def _both(first: Optional[Callable[[], None]], second: Optional[Callable[[], None]]) -> Optional[Callable[[], None]]:
    def run() -> None:
        for one in (first, second):
            if one is not None:
                one()

    return run if first is not None or second is not None else None


def limit_data(pid: int, count: int) -> None:
    """RLIMIT_DATA of a running process."""
    import resource

    resource.prlimit(pid, resource.RLIMIT_DATA, (count, count))


def nccl_is_there() -> None:
    try:
        ctypes.CDLL(os.environ.get("GPUSIM_NCCL", "libnccl.so.2"), mode=os.RTLD_LAZY)
    except OSError as error:
        raise Unfit(str(error)) from None


def _looks_suspended(pid: int) -> bool:
    seen = _process.read_process(pid)
    return seen is not None and bool(seen.looks_suspended)


def _absent() -> _process.ProcessSnapshot:
    raise RuntimeError("the process ended")


def _wait(reached: Callable[[], bool], otherwise: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise RuntimeError(otherwise)
        time.sleep(0.01)
