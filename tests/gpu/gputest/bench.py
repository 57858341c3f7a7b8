# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long the collection takes to suspend and resume: see bench/README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from conform.backend import Request, libcuda_call
from conform.onecase import become_subreaper

from . import main as harness
from .bench_report import page
from .machine import Growing, settings
from .spec import Spec
from .subject import Subject
from .trial import MARK, Stop, Trial

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/suspend", description="Needs root and one GPU or more.")
    parser.add_argument("parts", nargs="*", choices=["many", "one", []], metavar="many|one", help="default: both")
    parser.add_argument("--prepared", type=Path, metavar="DIR", help="what tests/gpu/prepare made: wheels and workload")
    parser.add_argument("--workload", default="gpusim-workload", help="default: that of --prepared, else on PATH")
    parser.add_argument("--cli", default="cuda-checkpoint", help="default: in --prepared, else on PATH")
    parser.add_argument("--libcuda", default="libcuda.so.1")
    parser.add_argument("--nvml", default="libnvidia-ml.so.1")
    parser.add_argument("--python", default=sys.executable, help="Ansible runs on it (default: this one)")
    parser.add_argument("--profile", choices=("gpu", "sim"), help="only for how long is waited")
    parser.add_argument("--processes", type=int, default=8, help="of `many`, spread over the GPUs (8)")
    parser.add_argument("--mib", type=int, default=8192, help="device memory of each of them (8192)")
    parser.add_argument("--rounds", type=int, default=2, help="of each way but the loop (2)")
    parser.add_argument("--loops", type=int, default=1, help="of cuda-checkpoint --toggle (1)")
    parser.add_argument("--one-mib", type=int, default=32768, help="device memory of `one` (32768)")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs of `one`, after a warm-up (5)")
    parser.add_argument("--pause", type=float, default=2, metavar="SECONDS", help="between suspend and resume (2)")
    parser.add_argument("--grow", type=int, default=0, metavar="GIB", help="host memory to use once before anything")
    parser.add_argument("--record", type=Path, default=Path("bench-suspend.json"), help="kept all the time")
    parser.add_argument("--report", type=Path, metavar="FILE", help="a page of Markdown made from the record")
    return parser


def say(text: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:6.1f}s] {text}", flush=True)


_BEGAN = time.monotonic()


@contextlib.contextmanager
def huge_pages(wanted: str) -> Iterator[str]:
    """The setting of the machine for a moment; yields what it is then. "" leaves it alone."""
    before = HUGE.read_text().partition("[")[2].partition("]")[0]
    if not wanted or wanted == before:
        yield before
        return
    try:
        HUGE.write_text(wanted)
    except OSError as error:
        yield f"{before} ({wanted} could not be set: {error.strerror})"
        return
    try:
        yield wanted
    finally:
        HUGE.write_text(before)


class Bench:
    def __init__(self, arguments: argparse.Namespace, spec: Spec, home: Path, mark: str) -> None:
        self.arguments = arguments
        self.spec = spec
        self.trial = Trial("bench", spec, home / "work", home / "trial.json", mark)
        (home / "work").mkdir()
        self.record: Dict[str, Any] = {"meta": {}, "many": {}, "one": {}}

    def save(self) -> None:
        harness.write(self.arguments.record, json.dumps(self.record, indent=1, default=str))
        if self.arguments.report:
            harness.write(self.arguments.report, page(self.record))

    # -- the ways

    def raw(self, ops: Sequence[str], subjects: Sequence[Subject]) -> float:
        """libcuda in this process, one thread for each process under test; a step begins when the one before is over
        everywhere. Seconds from the first call to the last answer."""
        answers: List[Any] = []

        def one(op: str, pid: int) -> None:
            answers.append((pid, op, libcuda_call(self.spec.libcuda, Request(op, pid))[0]))

        began = time.monotonic()
        for op in ops:
            threads = [threading.Thread(target=one, args=(op, subject.pid)) for subject in subjects]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        took = time.monotonic() - began
        wrong = [answer for answer in answers if answer[2] != 0]
        if wrong:
            raise Stop(f"raw calls failed: {wrong}")
        return took

    def pause(self) -> None:
        """Between suspend and resume, for every way alike: a GPU that has just been at work answers faster."""
        time.sleep(self.arguments.pause)

    def backed(self, subjects: Sequence[Subject]) -> float:
        """Which part of the memory of suspended processes lies in huge pages."""
        found = {"Rss": 0, "AnonHugePages": 0}
        for one in subjects:
            for line in Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, value = line.split()[:2]
                if name[:-1] in found:
                    found[name[:-1]] += int(value)
        return round(found["AnonHugePages"] / max(1, found["Rss"]), 3)

    def raw_round(self, subjects: Sequence[Subject], wanted: str) -> Dict[str, Any]:
        with huge_pages(wanted) as pages:
            suspend = self.raw(("lock", "checkpoint"), subjects)
            in_huge = self.backed(subjects)
            self.pause()
            resume = self.raw(("restore", "unlock"), subjects)
        return {"suspend": suspend, "resume": resume, "huge pages": pages, "in huge pages": in_huge}

    def loop_round(self, subjects: Sequence[Subject]) -> Dict[str, Any]:
        found: Dict[str, Any] = {}
        for name in ("suspend", "resume"):
            if name == "resume":
                self.pause()
            began = time.monotonic()
            for one in subjects:
                subprocess.run([self.spec.cli, "--toggle", "--pid", str(one.pid)], stdin=subprocess.DEVNULL, check=True)
            found[name] = time.monotonic() - began
        return found

    def module_round(self, subjects: Sequence[Subject], pages: str) -> Dict[str, Any]:
        """One task to suspend, one to resume, each in an ansible-playbook of its own."""
        found: Dict[str, Any] = {"huge_pages": pages}
        seconds = 120 + 30 * sum(one.mib for one in subjects) / 1024
        for name, state in (("suspend", "checkpointed"), ("resume", "running")):
            wanted = self.trial.task(state, subjects, huge_pages=pages)
            if name == "resume":
                found["in huge pages"] = self.backed(subjects)
                self.pause()
            done = self.trial.play(f"{name}, {pages}", [wanted], seconds=seconds)
            result = done.results[0]
            self.trial.reached(name, result, state, subjects, changed=True)
            if len(done.module_seconds) != 1:
                raise Stop(f"{name}: the module's process was not timed: {done.module_seconds}")
            found[name] = done.module_seconds[0]
            found[f"{name} playbook"] = done.seconds
            found[f"{name} own"] = result.result["seconds"]
            found[f"{name} steps"] = [one.get("seconds") for one in result.processes]
            found[f"{name} huge pages"] = result.result.get("huge_pages")
        return found

    # -- the parts

    def many(self) -> None:
        count, gpus = self.arguments.processes, len(self.spec.gpus)
        subjects: List[Subject] = []
        for gpu in range(gpus):
            names = [(f"plain{number}", "plain") for number in range(count) if number % gpus == gpu]
            if names:
                subjects += self.trial.start(names, mib=self.arguments.mib, gpu=gpu)
        out: Dict[str, Any] = {"processes": count, "mib": self.arguments.mib, "gpus": gpus, "rounds": {}}
        self.record["many"] = out
        ways: Dict[str, Callable[[], Dict[str, Any]]] = {
            "raw, huge pages": lambda: self.raw_round(subjects, "always"),
            "raw": lambda: self.raw_round(subjects, ""),
            "module, huge_pages: auto": lambda: self.module_round(subjects, "auto"),
            "module, huge_pages: keep": lambda: self.module_round(subjects, "keep"),
        }
        say(f"warm-up: {_round(self.raw_round(subjects, 'always'))}")
        for number in range(self.arguments.loops):
            self._keep(out, "cuda-checkpoint --toggle, one after another", self.loop_round(subjects), number)
        for number in range(self.arguments.rounds):
            for name, way in ways.items():
                self._keep(out, name, way(), number)
        self._end(out, subjects)

    def one(self) -> None:
        subjects = self.trial.start([("one", "plain")], mib=self.arguments.one_mib)
        out: Dict[str, Any] = {"mib": self.arguments.one_mib, "pairs": self.arguments.pairs, "rounds": {}}
        self.record["one"] = out
        say(f"warm-up, raw: {_round(self.raw_round(subjects, 'always'))}")
        say(f"warm-up, module: {_round(self.module_round(subjects, 'auto'))}")
        for number in range(self.arguments.pairs):
            self._keep(out, "module, huge_pages: auto", self.module_round(subjects, "auto"), number)
            self._keep(out, "raw, huge pages", self.raw_round(subjects, "always"), number)
        self._end(out, subjects)

    def _keep(self, out: Dict[str, Any], name: str, found: Dict[str, Any], number: int) -> None:
        out["rounds"].setdefault(name, []).append(found)
        say(f"{name}, round {number + 1}: {_round(found)}")
        self.save()

    def _end(self, out: Dict[str, Any], subjects: Sequence[Subject]) -> None:
        """Nothing was lost in any of it; the memory is free for the next part."""
        whole = self.trial.whole(subjects)
        self.trial.nothing_left(subjects)
        out["checksums equal"] = [one["equal"] for one in self.trial.record["sums"][-len(subjects) :]]
        out["whole"] = whole
        for one in subjects:
            one.signal(signal.SIGKILL)
        for one in subjects:
            one.wait_death(30)
            one.load.reap()
        self.save()
        say(f"every process is whole: {whole}")


def _round(found: Dict[str, Any]) -> str:
    names = ("suspend own", "suspend", "suspend playbook", "resume own", "resume", "resume playbook")
    return ", ".join(f"{name} {found[name]:.2f} s" for name in names if name in found)


def _interrupted(_number: int, _frame: Optional[FrameType]) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = _parser().parse_args()
    if os.geteuid() != 0:
        print("suspend: needs root", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _interrupted)
    become_subreaper()
    home = Path(tempfile.mkdtemp(prefix="gputest-bench-"))
    mark = f"gputest-bench-{os.getpid()}"
    os.environ[MARK] = mark
    os.environ["ANSIBLE_PIPELINING"] = "True"
    bench: Optional[Bench] = None
    try:
        before = settings()
        growing = Growing(arguments.grow, home / "grown")
        spec = harness.make_spec(arguments, home)
        growing.wait()
        bench = Bench(arguments, spec, home, mark)
        bench.record["meta"] = {**harness.describe(spec), "memory": growing.to_json(), "pause": arguments.pause}
        say(f"{', '.join(bench.record['meta']['gpus'])}; driver {bench.record['meta']['driver']}")
        for name in arguments.parts or ["many", "one"]:
            getattr(bench, name)()
        bench.record["meta"]["settings as before"] = settings() == before
        bench.record["meta"]["seconds"] = round(time.monotonic() - _BEGAN, 1)
        bench.save()
        print(page(bench.record))
        return 0 if not bench.trial.failures else 1
    except (Stop, RuntimeError) as error:
        print(f"suspend: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("suspend: stopped; everything it had started is ended", file=sys.stderr)
        return 130
    finally:
        if bench is not None:
            for item in bench.trial.failures:
                print(f"not as expected: {item}", file=sys.stderr)
            for complaint in bench.trial.close():
                print(f"LEFT BEHIND {complaint}", file=sys.stderr)
            bench.save()
        shutil.rmtree(home, ignore_errors=True)
