# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A gpusim-workload (or a child of one): started, watched, asked for its checksum, ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional

from . import proc

MIB = 1 << 20


class NotReady(RuntimeError):
    """The workload did not come up: nothing can be observed on it."""


class Process:
    """A process of the case by its name in the observations."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid

    @property
    def life(self) -> str:
        return proc.snapshot(self.pid).life

    def death(self) -> str:
        """ "alive", "exit N", "signal N"; "gone" where the status went to somebody else. Leaves the zombie."""
        try:
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            life = self.life
            return life if life == "alive" else "gone"
        if info is None:
            return "alive"
        if info.si_code == os.CLD_EXITED:
            return f"exit {info.si_status}"
        return f"signal {info.si_status}"

    def wait_death(self, seconds: float) -> str:
        end = time.monotonic() + seconds
        while True:
            how = self.death()
            if how != "alive" or time.monotonic() > end:
                return how
            time.sleep(0.02)

    def reap(self) -> None:
        try:
            os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            pass

    def signal(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass


class Workload(Process):
    """`out` is FILE of the protocol; `mib` what it holds on the GPU."""

    def __init__(self, name: str, pid: int, out: Path, mib: int, gpu: int = 0) -> None:
        super().__init__(name, pid)
        self.out = out
        self.mib = mib
        self.gpu = gpu
        self.rss = 0
        self.sum = ""

    @property
    def bytes(self) -> int:
        return self.mib * MIB

    def beside(self, suffix: str) -> Path:
        return self.out.with_name(self.out.name + suffix)

    def counter(self) -> Optional[int]:
        try:
            return int(self.out.read_text().strip() or "0")
        except (OSError, ValueError):
            return None

    def stderr(self) -> str:
        try:
            return self.beside(".stderr").read_text(errors="replace")[-2000:]
        except OSError:
            return ""

    def wait_ready(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (self.counter() or 0) < 1:
            how = self.death()
            if how != "alive":
                raise NotReady(f"{self.name} ended before it was ready: {how}; stderr: {self.stderr()!r}")
            if time.monotonic() > end:
                raise NotReady(
                    f"{self.name} (PID {self.pid}) was not ready in {seconds:g} s; stderr: {self.stderr()!r}"
                )
            time.sleep(0.02)
        self.rss = proc.snapshot(self.pid).rss_anon

    def moves(self, window: float) -> bool:
        """Does the counter go on within the window? What a kernel in flight still writes is waited for first."""
        time.sleep(0.12)
        first = self.counter()
        end = time.monotonic() + window
        while time.monotonic() < end:
            time.sleep(0.03)
            now = self.counter()
            if now is not None and first is not None and now > first:
                return True
            first = now if first is None else first
        return False

    def checksum(self, seconds: float) -> str:
        """Over its whole device memory; "" when it gave none in time."""
        answer, request = self.beside(".sum"), self.beside(".verify")
        try:
            answer.unlink()
        except OSError:
            pass
        request.touch()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if answer.exists() and not request.exists():
                return answer.read_text().strip()
            if self.death() != "alive":
                break
            time.sleep(0.02)
        try:
            request.unlink()
        except OSError:
            pass
        return ""


def limit_data(count: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (count, count))


def start(
    program: str,
    name: str,
    out: Path,
    *,
    kind: str = "plain",
    mib: int,
    gpu: int = 0,
    options: Optional[List[str]] = None,
    env: Optional[Dict[str, str]] = None,
    prepare: Optional[Callable[[], None]] = None,
    uid: Optional[int] = None,
    wrap: Optional[List[str]] = None,
) -> Workload:
    """In a session of its own, standard descriptors on /dev/null and a regular file, so that CRIU can take it."""
    argv = [*(wrap or []), program, "--vram", str(mib), "--out", str(out), "--gpu", str(gpu), "--kind", kind]
    argv += options or []

    def before() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if prepare:
            prepare()
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)

    with open(out.with_name(out.name + ".stderr"), "wb") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, **(env or {})},
            cwd="/",
            start_new_session=True,
            preexec_fn=before,
        )
    process.returncode = 0  # its status is read with waitid, and reaped at the end of the case
    return Workload(name, process.pid, out, mib, gpu)
