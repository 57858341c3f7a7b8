# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs cases, each in a process of its own, several at a time where they do not disturb each other."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from . import cgroup
from . import host as hosts
from .context import MARK, sweep
from .host import Host
from .options import Options
from .record import Recording, dumps, write
from .registry import Case

_HERE = Path(__file__).resolve().parent.parent


@dataclass
class Job:
    """A case on a backend, or a lane of sequences."""

    title: str
    module: str
    spec: Dict[str, Any]
    seconds: float
    exclusive: bool = False
    case: Optional[Case] = None
    process: Optional[subprocess.Popen[bytes]] = None
    started: float = 0.0
    mark: str = ""
    asked: bool = False


@dataclass
class Runner:
    options: Options
    host: Host
    scratch: Path
    jobs: int
    deadline: float
    record_to: Optional[Path]
    raw_to: Optional[Path]
    fail_fast: bool
    recording: Recording = field(default_factory=Recording)
    raw: Dict[str, Any] = field(default_factory=dict)
    errors: List[str] = field(default_factory=list)
    complaints: List[str] = field(default_factory=list)
    serial: int = 0
    done: int = 0
    total: int = 0
    stopping: bool = False
    unreached: int = 0

    def plan(self, cases: List[Case], backends: List[str]) -> List[Job]:
        """The jobs, those that need the host for themselves first, then those that mostly wait; what the host cannot
        show is recorded as such at once."""
        planned: List[Job] = []
        for one in cases:
            for name in backends:
                if name not in one.backends:
                    continue
                needs = [*one.requires, *(["cli"] if name == "cli" else [])]
                reasons = [reason for reason in map(self.host.lacks, needs) if reason]
                if reasons:
                    self.recording.put(one.name, name, f"not applicable: {reasons[0]}", one.real_only)
                    continue
                self.serial += 1
                base = self.scratch / f"{self.serial:03d}-{name}-{one.name.replace('/', '-')}"
                spec = {
                    "runner": os.getpid(),
                    "case": one.name,
                    "backend": name,
                    "options": self.options.to_json(),
                    "host": hosts.to_json(self.host),
                    "work": str(base),
                    "result": str(base) + ".json",
                }
                planned.append(Job(f"{name} {one.name}", "conform.onecase", spec, one.seconds, one.exclusive, one))
        return sorted(planned, key=lambda job: (not job.exclusive, not (job.case and job.case.slow)))

    def plan_lanes(self, backends: List[str], seed: int, indices: List[int], count: int, workers: int) -> List[Job]:
        planned = []
        for name in backends:
            if name == "cli" and self.host.lacks("cli"):
                continue
            for lane in range(min(workers, len(indices))):
                self.serial += 1
                base = self.scratch / f"{self.serial:03d}-{name}-lane{lane}"
                spec = {
                    "runner": os.getpid(),
                    "backend": name,
                    "seed": seed,
                    "count": count,
                    "indices": indices[lane::workers],
                    "options": self.options.to_json(),
                    "host": hosts.to_json(self.host),
                    "work": str(base),
                    "result": str(base) + ".lines",
                }
                planned.append(Job(f"{name} sequences, lane {lane}", "conform.lane", spec, 3600))
        return planned

    # -- one job

    def _start(self, job: Job) -> None:
        job.mark = f"gpufleet-conform-{os.getpid()}-{Path(job.spec['work']).name[:3]}"
        spec = Path(job.spec["result"] + ".spec")
        spec.write_text(json.dumps(job.spec))
        log = open(job.spec["result"] + ".log", "wb")
        with log:
            job.process = subprocess.Popen(
                [sys.executable, "-m", job.module, str(spec)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=str(_HERE),
                env={**os.environ, MARK: job.mark, "PYTHONPATH": str(_HERE), "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )
        job.started = time.monotonic()

    def _finish(self, job: Job) -> None:
        assert job.process is not None
        seconds = time.monotonic() - job.started
        self.complaints += [f"{job.title}: {text}" for text in sweep(job.mark, 20)]
        if job.case is None:
            self._finish_lane(job, seconds)
        else:
            self._finish_case(job, job.case, seconds)
        shutil.rmtree(job.spec["work"], ignore_errors=True)
        self.save()

    def _log(self, job: Job) -> str:
        try:
            return Path(job.spec["result"] + ".log").read_text(errors="replace")[-3000:]
        except OSError:
            return ""

    def _finish_case(self, job: Job, case: Case, seconds: float) -> None:
        backend = str(job.spec["backend"])
        try:
            answer = json.loads(Path(job.spec["result"]).read_text())
        except (OSError, ValueError):
            code = job.process.returncode if job.process else None
            answer = {"status": "error", "reason": f"its process ended with {code}; {self._log(job)!r}"}
        self.done += 1
        status = str(answer["status"])
        if status == "ok":
            self.recording.put(case.name, backend, answer["observations"], case.real_only)
        else:
            self.recording.put(case.name, backend, f"{status}: {answer.get('reason', '')}", case.real_only)
        self.raw[job.title] = answer
        self.complaints += [f"{job.title}: {text}" for text in answer.get("left_behind", [])]
        word = {"ok": "ok", "not applicable": "n/a"}.get(status, "ERROR")
        self._say(f"{word:5} {seconds:5.1f}s {job.title}" + ("" if status == "ok" else f": {answer.get('reason', '')}"))
        if status == "error":
            self.errors.append(job.title)
            for line in str(answer.get("traceback", "")).splitlines()[-6:]:
                print(f"          {line}", flush=True)
            for name, text in answer.get("stderr", {}).items():
                if text:
                    print(f"          stderr of {name}: {text[-400:]!r}", flush=True)
            self.stopping = self.stopping or self.fail_fast

    def _lane_lines(self, job: Job) -> List[Tuple[int, str]]:
        try:
            text = Path(job.spec["result"]).read_text()
        except OSError:
            return []
        return [tuple(json.loads(line)) for line in text.splitlines() if line.endswith("]")]

    def _finish_lane(self, job: Job, seconds: float) -> None:
        self.done += 1
        lines = self._lane_lines(job)
        for index, line in lines:
            self.recording.put_sequence(job.spec["backend"], job.spec["seed"], job.spec["count"], index, line)
            if line.startswith("error"):
                self.errors.append(f"{job.spec['backend']} sequence {index}")
        wanted = len(job.spec["indices"])
        self.unreached += wanted - len(lines)
        word = "ok" if len(lines) == wanted else "SHORT"
        self._say(f"{word:5} {seconds:5.1f}s {job.title}: {len(lines)} of {wanted}")
        if len(lines) != wanted:
            log = self._log(job)
            if log:
                print(f"          {log[-1500:]}", flush=True)

    def _say(self, text: str) -> None:
        print(f"[{self.done:3}/{self.total}] {text}", flush=True)

    # -- all of them

    def run(self, planned: List[Job]) -> None:
        self.total = len(planned)
        waiting, running = list(planned), []  # type: Tuple[List[Job], List[Job]]
        try:
            while waiting or running:
                late = time.monotonic() > self.deadline
                if waiting and not late and not self.stopping:
                    self._fill(waiting, running)
                self._watch(running, late or self.stopping)
                if (late or self.stopping) and not running:
                    break
                time.sleep(0.02)
        finally:
            self._end(running)
        why = "the budget of the whole run was used up" if not self.stopping else "an earlier case failed"
        for job in waiting:
            self.unreached += 1 if job.case is not None else len(job.spec["indices"])
            if job.case is not None:
                self.recording.put(job.case.name, job.spec["backend"], f"not run: {why}", job.case.real_only)
            self._say(f"NOT RUN       {job.title}: {why}")
        self.save()

    def _fill(self, waiting: List[Job], running: List[Job]) -> None:
        while waiting and len(running) < self.jobs:
            if any(job.exclusive for job in running):
                return
            index = 0
            if waiting[0].exclusive and running:
                return
            job = waiting.pop(index)
            self._start(job)
            running.append(job)

    def _watch(self, running: List[Job], late: bool) -> None:
        now = time.monotonic()
        for job in list(running):
            assert job.process is not None
            if job.process.poll() is not None:
                running.remove(job)
                self._finish(job)
                continue
            over = now - job.started > job.seconds or (late and now > self.deadline + 5)
            if over and not job.asked:
                job.asked = True
                job.process.send_signal(signal.SIGTERM)
            if job.asked and now - job.started > job.seconds + 40:
                self._kill(job)
            elif job.asked and late and now > self.deadline + 45:
                self._kill(job)

    def _kill(self, job: Job) -> None:
        assert job.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGKILL)

    def _end(self, running: List[Job]) -> None:
        """Only where the run itself is being stopped: nothing stays."""
        for job in running:
            if job.process is not None:
                job.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 30
        for job in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if job.process is not None:
                    job.process.wait(max(0.0, end - time.monotonic()))
        for job in running:
            if job.process is not None:
                self._kill(job)
                job.process.wait()
                sweep(job.mark, 20)

    def save(self) -> None:
        if self.record_to is not None:
            write(self.record_to, dumps(self.recording))
        if self.raw_to is not None:
            write(self.raw_to, json.dumps(self.raw, indent=1))


def remove_groups(host: Host, mark: str) -> List[str]:
    """Control groups of cases whose process was killed before it could remove them."""
    complaints = []
    for controller in (host.memory, host.freezer):
        if controller is None:
            continue
        for path in controller.root.glob(f"{mark}*"):
            freeze = path / "cgroup.freeze"
            with contextlib.suppress(OSError):
                if freeze.exists():
                    freeze.write_text("0")
            try:
                path.rmdir()
            except OSError as error:
                complaints.append(f"control group {path}: {error}")
        cgroup.release(controller)
    return complaints
