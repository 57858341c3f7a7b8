# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A CUDA process under test: started, watched, asked for its checksum. Built on the conformance suite's workloads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from conform import proc, workload

from . import locks
from .spec import Spec

SCRIPTS = Path(__file__).resolve().parents[2] / "conformance" / "workloads"
FRAMEWORKS = ("torch", "jax", "cupy")
# What stands in for a framework where there is none: a process that fails in the same way.
STAND_INS = {"torch": "plain", "cupy": "plain", "jax": "polling"}
MIB = 1 << 20


class SubjectError(RuntimeError):
    """It did not come up, or gave no checksum: nothing can be shown with it."""


@dataclass(frozen=True)
class Look:
    """One reading of /proc. cpu: ticks that all its threads have used. devices: names in /dev, open or mapped. at: of
    each thread, where in its program it is: what /proc/PID/task/TID/syscall says while it does not run."""

    life: str
    states: Tuple[str, ...]
    tracers: Tuple[int, ...]
    threads: int
    cpu: int
    rss_anon: int
    devices: Tuple[str, ...]
    at: Tuple[Tuple[int, str], ...]

    @property
    def stopped(self) -> bool:
        return bool(self.states) and all(state in "TtZX" for state in self.states)

    @property
    def parked(self) -> bool:
        return self.life == "alive" and self.stopped and not self.devices

    @property
    def frozen(self) -> bool:
        """A thread that the freezer of version 2 holds reads S, not T."""
        return self.life == "alive" and all(state in "TtZXS" for state in self.states) and not self.devices

    def short(self) -> Dict[str, Any]:
        states = {state: self.states.count(state) for state in sorted(set(self.states))}
        return {
            "life": self.life,
            "states": states,
            "tracers": sorted(set(self.tracers)),
            "cpu_ticks": self.cpu,
            "rss_anon": self.rss_anon,
            "devices": list(self.devices),
        }


def look(pid: int) -> Look:
    seen = proc.snapshot(pid)
    states: List[str] = []
    tracers: List[int] = []
    for tid in proc.threads_of(pid):
        status = proc.parse_status(_read(f"/proc/{pid}/task/{tid}/status"))
        if status.get("State"):
            states.append(status["State"][:1])
            tracers.append(int(status.get("TracerPid", "0")))
    names = [*seen.descriptors, *(one.path for one in seen.mappings)]
    return Look(
        life=str(seen.life),
        states=tuple(states),
        tracers=tuple(tracers),
        threads=len(states),
        cpu=cpu_ticks(pid),
        rss_anon=int(seen.rss_anon),
        devices=tuple(proc.device_names(names)),
        at=tuple((tid, _read(f"/proc/{pid}/task/{tid}/syscall").strip()) for tid in proc.threads_of(pid)),
    )


def cpu_ticks(pid: int) -> int:
    words = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(words[11]) + int(words[12]) if len(words) > 12 else 0


def start_ticks(pid: int) -> int:
    words = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(words[19]) if len(words) > 19 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def framework_environment(gpu: int) -> Dict[str, str]:
    """That GPU only, and nothing of the tests' own on its path."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    tests = str(SCRIPTS.parents[1])
    left = [one for one in env.pop("PYTHONPATH", "").split(":") if one and not one.startswith(tests)]
    return {**env, **({"PYTHONPATH": ":".join(left)} if left else {})}


class Subject:
    """`kind`: of gpusim-workload, or a framework. `sum`: as it was before anything was done."""

    def __init__(self, load: Any, kind: str) -> None:
        self.load = load
        self.kind = kind
        self.sum = ""

    @property
    def name(self) -> str:
        return str(self.load.name)

    @property
    def pid(self) -> int:
        return int(self.load.pid)

    @property
    def mib(self) -> int:
        return int(self.load.mib)

    def counter(self) -> Optional[int]:
        value = self.load.counter()
        return None if value is None else int(value)

    def moves(self, window: float = 15.0) -> bool:
        return bool(self.load.moves(window))

    def death(self) -> str:
        return str(self.load.death())

    def wait_death(self, seconds: float) -> str:
        return str(self.load.wait_death(seconds))

    def stderr(self) -> str:
        return str(self.load.stderr())

    def look(self) -> Look:
        return look(self.pid)

    def signal(self, number: int) -> None:
        self.load.signal(number)

    def checksum(self, seconds: float) -> str:
        return str(self.load.checksum(seconds))


def command(spec: Spec, work: Path, name: str, kind: str, mib: int) -> List[str]:
    """For whoever starts it in another way than start()."""
    if kind in FRAMEWORKS and not spec.stand_ins:
        return [spec.python, str(SCRIPTS / f"{kind}_worker.py"), str(work / name), str(mib)]
    return [spec.workload, "--vram", str(mib), "--out", str(work / name), "--kind", STAND_INS.get(kind, kind)]


def start(
    spec: Spec,
    work: Path,
    name: str,
    kind: str,
    mib: int,
    gpu: int = 0,
    options: Optional[List[str]] = None,
    env: Optional[Dict[str, str]] = None,
    wrap: Optional[List[str]] = None,
    session: bool = True,
) -> Subject:
    """Not ready yet: the caller waits."""
    if kind in FRAMEWORKS and not spec.stand_ins:
        argv = [*(wrap or []), spec.python, str(SCRIPTS / f"{kind}_worker.py"), str(work / name), str(mib)]
        with open(work / f"{name}.stderr", "wb") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**framework_environment(gpu), **(env or {})},
                cwd="/",
                start_new_session=session,
            )
        process.returncode = 0  # its status is read with waitid
        return Subject(workload.Workload(name, process.pid, work / name, mib, gpu), kind)
    load = workload.start(
        spec.workload,
        name,
        work / name,
        kind=STAND_INS.get(kind, kind),
        mib=mib,
        gpu=gpu,
        options=options,
        env=env,
        wrap=wrap,
    )
    return Subject(load, kind)


def start_many(
    spec: Spec, work: Path, wanted: List[Tuple[str, str]], mib: int, gpu: int = 0, **how: Any
) -> List[Subject]:
    """`wanted`: (name, kind). Frameworks take a processor while they start, so only so many start at once."""
    home = Path(spec.home)

    def bring_up(name: str, kind: str) -> Subject:
        with contextlib.ExitStack() as stack:
            if kind in FRAMEWORKS and not spec.stand_ins:
                stack.enter_context(locks.slot(home, spec.slots))
            one = start(spec, work, name, kind, mib, gpu, **how)
            one.load.wait_ready(spec.sizes.ready)
            return one

    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
        return list(pool.map(lambda one: bring_up(*one), wanted))
