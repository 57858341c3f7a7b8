# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the tests of a selection, each in a process of its own, as many at once as asked for."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Dict, List, Optional

from conform import cgroup, nvml
from conform import host as hosts
from conform.onecase import become_subreaper
from conform.options import Options

from . import machine, memory, registry, report
from .registry import Test
from .spec import Gpu, Spec
from .trial import MARK, sweep

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent


@dataclass
class Running:
    test: Test
    process: "subprocess.Popen[bytes]"
    began: float
    mark: str
    result: Path
    log: Path
    asked: float = 0.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests/gpu/run", description="The collection against the GPUs of this machine. Needs root."
    )
    parser.add_argument("tests", nargs="*", metavar="TEST", help="a part, or a shell pattern over names; default: all")
    parser.add_argument("--list", action="store_true", help="list the tests and stop")
    parser.add_argument("--prepared", type=Path, metavar="DIR", help="what tests/gpu/prepare made: wheels and workload")
    parser.add_argument("--workload", default="gpusim-workload", help="default: that of --prepared, else on PATH")
    parser.add_argument("--cli", default="cuda-checkpoint", help="default: in --prepared, else on PATH")
    parser.add_argument("--libcuda", default="libcuda.so.1")
    parser.add_argument("--nvml", default="libnvidia-ml.so.1")
    parser.add_argument("--python", default=sys.executable, help="has the frameworks; Ansible runs on it (this one)")
    parser.add_argument("--minute", type=float, default=60, metavar="SECONDS", help='how long "a minute" is')
    parser.add_argument("--kill-seconds", type=float, default=150, metavar="SECONDS", help="for each lane of kills")
    parser.add_argument("--criu", default="criu", help="default: in --prepared, else on PATH; its lib/ is used")
    parser.add_argument("--image-mib", type=int, default=0, metavar="MIB", help="of what goes to disk (by the profile)")
    parser.add_argument("--home", default="/var/tmp", metavar="DIR", help="on a disk: images go there (/var/tmp)")
    parser.add_argument("--deadline", type=float, default=3600, metavar="SECONDS", help="for the whole run")
    parser.add_argument("--jobs", type=int, default=12, help="how many tests at once (12)")
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 2, help="how many frameworks start at once")
    parser.add_argument("--image-allow", action="append", default=[], metavar="NAME", help="of criu_image, everywhere")
    parser.add_argument("--grow", type=int, default=0, metavar="GIB", help="host memory to use once before anything")
    parser.add_argument("--profile", choices=("gpu", "sim"), help="sizes; default: by the memory of the GPUs")
    parser.add_argument("--stand-ins", action="store_true", help="simulated workloads in place of the frameworks")
    parser.add_argument("--record", type=Path, default=Path("gpu-record.json"), metavar="FILE", help="kept as it goes")
    parser.add_argument("--report", type=Path, metavar="FILE", help="a page of Markdown made from the record")
    parser.add_argument("--keep", action="store_true", help="keep the directory of the run")
    return parser


def _interrupted(_number: int, _frame: Optional[FrameType]) -> None:
    raise KeyboardInterrupt


def say(began: float, text: str) -> None:
    print(f"[{time.monotonic() - began:6.1f}s] {text}", flush=True)


def main(argv: Optional[List[str]] = None) -> int:
    arguments = _parser().parse_args(argv)
    tests = registry.select(registry.load(), arguments.tests)
    if arguments.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for one in tests:
            print(f"{one.name:34} {one.about}")
        return 0
    if not tests:
        print(f"run: no test matches {' '.join(arguments.tests)}", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("run: needs root", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _interrupted)
    become_subreaper()
    home = Path(tempfile.mkdtemp(prefix="gputest-", dir=arguments.home))
    os.chmod(home, 0o755)
    try:
        return Runner(arguments, tests, home).run()
    except KeyboardInterrupt:
        print("run: stopped; everything it had started is ended", file=sys.stderr)
        return 130
    except RuntimeError as error:
        print(f"run: {error}", file=sys.stderr)
        return 2
    finally:
        cgroup.unmount_below(home)
        if arguments.keep:
            print(f"kept: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)


def _prepared(arguments: argparse.Namespace, name: str, wanted: str) -> Optional[str]:
    """The path of a tool: where --prepared has it, unless another one was named."""
    if arguments.prepared and wanted == name and (arguments.prepared / "bin" / name).exists():
        return str((arguments.prepared / "bin" / name).resolve())
    found = shutil.which(wanted)
    return None if found is None else os.path.abspath(found)


def _workload(arguments: argparse.Namespace, home: Path) -> str:
    """A copy that stays where it is, for whichever user."""
    found = _prepared(arguments, "gpusim-workload", arguments.workload)
    if found is None:
        raise RuntimeError(f"{arguments.workload}: not found; tests/gpu/prepare builds it, or name it with --workload")
    copy = home / "gpusim-workload"
    shutil.copyfile(found, copy)
    copy.chmod(0o755)
    return str(copy)


def _criu(arguments: argparse.Namespace, home: Path) -> str:
    """Its path; of one that was carried with its libraries, a script that names them to it and to nobody else."""
    wanted = arguments.criu
    if arguments.prepared and wanted == "criu" and (arguments.prepared / "criu" / "criu").exists():
        wanted = str(arguments.prepared / "criu" / "criu")
    found = shutil.which(wanted)
    if found is None:
        return ""
    path = Path(os.path.abspath(found))
    libraries = path.parent / "lib"
    if not list(libraries.glob("*.so*")):
        return str(path)
    (home / "criu").mkdir()
    script = home / "criu" / "criu"
    words = ["exec env", f"LD_LIBRARY_PATH={shlex.quote(str(libraries))}", shlex.quote(str(path)), '"$@"']
    script.write_text(f"#!/bin/sh\n{' '.join(words)}\n")
    script.chmod(0o755)
    return str(script)


def make_spec(arguments: argparse.Namespace, home: Path) -> Spec:
    """Looks at the machine, unpacks what was prepared. Raises RuntimeError."""
    workload = _workload(arguments, home)
    cli = _prepared(arguments, "cuda-checkpoint", arguments.cli)
    site = machine.unpack(arguments.prepared / "wheels", home / "site") if arguments.prepared else ""
    collections = machine.install_collection(ROOT, home / "collections")
    criu = _criu(arguments, home) if hasattr(arguments, "criu") else ""
    options = Options(
        "h200", workload, criu, arguments.libcuda, cli or arguments.cli, arguments.nvml, arguments.python, False, None
    )
    (home / "probe").mkdir()
    nccl = machine.find_nccl(arguments.python)
    if nccl:
        os.environ.setdefault("GPUSIM_NCCL", nccl)
    host = hosts.probe(options, home / "probe")
    reading = nvml.read(arguments.nvml)
    gpus = tuple(Gpu(gpu.uuid, gpu.name, gpu.total >> 20) for gpu in reading.gpus)
    profile = arguments.profile or ("gpu" if min(gpu.mib for gpu in gpus) > 65536 else "sim")
    (home / "journal").mkdir(mode=0o700)
    if site:
        sys.path.append(site)
        importlib.invalidate_caches()
    return Spec(
        profile=profile,
        workload=workload,
        cli=cli or "",
        libcuda=arguments.libcuda,
        nvml=arguments.nvml,
        python=arguments.python,
        site=site,
        collections=collections,
        journal=str(home / "journal" / "checkpoint.db"),
        home=str(home),
        minute=getattr(arguments, "minute", 60.0),
        slots=getattr(arguments, "slots", 2),
        kill_seconds=getattr(arguments, "kill_seconds", 0.0),
        stand_ins=getattr(arguments, "stand_ins", False),
        gpus=gpus,
        host=hosts.to_json(host),
        criu=criu,
        image_mib=getattr(arguments, "image_mib", 0),
        image_allow=tuple(getattr(arguments, "image_allow", ())),
    )


def describe(spec: Spec) -> Dict[str, Any]:
    """The versions that belong to a record."""
    versions = machine.versions(spec.python, spec.site)
    if spec.host["criu_version"]:
        versions["criu"] = spec.host["criu_version"]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "driver": spec.host["driver"],
        "cuda": spec.host["cuda"],
        "gpus": [f"{gpu.model} {gpu.mib} MiB" for gpu in spec.gpus],
        "processors": os.cpu_count(),
        "versions": versions,
        "collection": machine.collection_hash(ROOT),
        "commit": machine.commit(ROOT),
        "profile": spec.profile,
        "minute": spec.minute,
        "stand_ins": spec.stand_ins,
        "image_allow": list(spec.image_allow),
        "simulated": "real_gpu" in spec.host["lacking"],
        "settings": machine.settings(),
        "cgroups": {name: (spec.host[name] or {}).get("version") for name in ("memory", "freezer")},
    }


class Runner:
    def __init__(self, arguments: argparse.Namespace, tests: List[Test], home: Path) -> None:
        self.arguments = arguments
        self.tests = tests
        self.home = home
        self.began = time.monotonic()
        self.record: Dict[str, Any] = {"meta": {}, "tests": {}, "after": {}}
        self.running: List[Running] = []
        self._saved = 0.0
        self._serial = 0

    def run(self) -> int:
        growing = machine.Growing(self.arguments.grow, self.home / "grown")
        self.spec = make_spec(self.arguments, self.home)
        self.record["meta"] = describe(self.spec)
        settings = self.record["meta"]["settings"]
        meta = self.record["meta"]
        say(self.began, f"{', '.join(meta['gpus'])}; driver {meta['driver']}; {meta['versions']}")
        waiting = [one for one in self.tests if self._applicable(one)]
        try:
            while waiting or self.running:
                late = time.monotonic() - self.began > self.arguments.deadline
                if waiting and not late and len(self.running) < self.arguments.jobs:
                    self._start(waiting.pop(0))
                self._watch(late)
                self.save()
                growing.poll()
                if late and not self.running:
                    break
                time.sleep(0.1)
        finally:
            self._end()
            self.record["meta"]["memory"] = growing.to_json()
            for one in waiting:
                self.record["tests"][one.name] = {"status": "not run", "reason": "the time for the run was used up"}
                say(self.began, f"NOT RUN {one.name}")
            self._after(settings)
            hosts.release(hosts.from_json(self.spec.host))
            self.record["meta"]["seconds"] = round(time.monotonic() - self.began, 1)
            self.save(now=True)
        return self._verdict()

    def _applicable(self, one: Test) -> bool:
        host = hosts.from_json(self.spec.host)
        needs = list(one.requires)
        if one.framework and not self.spec.stand_ins:
            needs.append(one.framework)
        reasons = [reason for reason in map(host.lacks, needs) if reason]
        if reasons:
            self.record["tests"][one.name] = {"status": "not applicable", "reason": reasons[0], "about": one.about}
            say(self.began, f"n/a     {one.name}: {reasons[0]}")
        return not reasons

    def _start(self, one: Test) -> None:
        self._serial += 1
        base = self.home / f"{self._serial:03d}-{one.name.replace('/', '-')}"
        mark = f"gputest-{os.getpid()}-{self._serial:03d}"
        given = {
            "runner": os.getpid(),
            "test": one.name,
            "spec": self.spec.to_json(),
            "work": str(base),
            "result": str(base) + ".json",
        }
        result = Path(str(base) + ".json")
        spec, log = Path(str(base) + ".spec"), Path(str(base) + ".log")
        spec.write_text(json.dumps(given))
        path = [str(HERE), str(HERE.parent / "conformance"), os.environ.get("PYTHONPATH", "")]
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "gputest.onetest", str(spec)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                env={
                    **os.environ,
                    MARK: mark,
                    "PYTHONPATH": ":".join(one for one in path if one),
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                start_new_session=True,
            )
        self.running.append(Running(one, process, time.monotonic(), mark, result, log))
        say(self.began, f"start   {one.name}")

    def _watch(self, late: bool) -> None:
        now = time.monotonic()
        for one in list(self.running):
            if one.process.poll() is not None:
                self.running.remove(one)
                self._finish(one)
                continue
            if not one.asked and (late or now - one.began > one.test.seconds):
                one.asked = now
                one.process.send_signal(signal.SIGTERM)
            elif one.asked and now - one.asked > 40:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.process.pid, signal.SIGKILL)

    def _collect(self, one: Running) -> Dict[str, Any]:
        try:
            return dict(json.loads(one.result.read_text()))
        except (OSError, ValueError):
            return {"status": "error", "reason": "no record", "about": one.test.about}

    def _finish(self, one: Running) -> None:
        found = self._collect(one)
        if found["status"] == "cut" or found["status"] == "error":
            found["log"] = _tail(one.log)
        if found["status"] == "cut":
            found.update(status="error", reason=f"its process ended with {one.process.returncode}")
        complaints = [*found.get("left_behind", []), *sweep(one.mark, 20)]
        if complaints:
            found["left_behind"] = complaints
            found["status"] = "failed" if found["status"] == "ok" else found["status"]
        self.record["tests"][one.test.name] = found
        word = {"ok": "ok", "not applicable": "n/a"}.get(found["status"], "FAILED")
        reason = f": {found['reason']}" if found.get("reason") else ""
        say(self.began, f"{word:7} {one.test.name} {found.get('seconds', 0)} s{reason}")
        for expectation in [item for item in found.get("expectations", []) if not item["ok"]][:6]:
            print(f"            - {expectation['what']}: {str(expectation.get('seen', ''))[:700]}", flush=True)
        for line in [*found.get("left_behind", []), *str(found.get("traceback", "")).splitlines()[-5:]]:
            print(f"            {line}", flush=True)
        if found.get("log"):
            print(f"            {found['log'][-600:]}", flush=True)
        if not self.arguments.keep:
            shutil.rmtree(self.home / one.result.stem, ignore_errors=True)

    def _end(self) -> None:
        """Only where the run itself is being stopped: nothing stays."""
        for one in self.running:
            one.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 45
        for one in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, end - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
            self._finish(one)
        self.running = []

    def _after(self, settings: Dict[str, str]) -> None:
        """What a run must leave: settings as they were, an empty journal, no worker."""
        left: Dict[str, Any] = {}
        end = time.monotonic() + 5
        while time.monotonic() < end:
            left = {name: value for name, value in machine.settings().items() if settings.get(name) != value}
            if not left:
                break
            time.sleep(0.2)
        after: Dict[str, Any] = {"settings changed": left}
        try:
            found = memory.all_left(self.spec)
            while found["live"] and time.monotonic() < end:  # what was killed gives its memory back before it is gone
                time.sleep(0.2)
                found = memory.all_left(self.spec)
            after.update(found)
        except Exception as error:  # the record has to be written whatever the journal says
            after["journal"] = f"{type(error).__name__}: {error}"
        self.record["after"] = after

    def save(self, now: bool = False) -> None:
        """At most every two seconds."""
        if not now and time.monotonic() - self._saved < 2:
            return
        self._saved = time.monotonic()
        for one in self.running:
            found = self._collect(one)
            self.record["tests"][one.test.name] = {**found, "status": "running"}
        write(self.arguments.record, json.dumps(self.record, indent=1, default=str))
        if self.arguments.report:
            write(self.arguments.report, report.page(self.record))

    def _verdict(self) -> int:
        counts: Dict[str, int] = {}
        for one in self.record["tests"].values():
            counts[one["status"]] = counts.get(one["status"], 0) + 1
        wrong = [name for name, one in self.record["tests"].items() if one["status"] not in ("ok", "not applicable")]
        left = {name: value for name, value in self.record["after"].items() if value}
        for name, value in left.items():
            print(f"LEFT: {name}: {value}", flush=True)
        say(self.began, f"{counts}" + (f"; not ok: {', '.join(wrong)}" if wrong else ""))
        return 1 if wrong or left else 0


def write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.rename(path)


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-3000:]
    except OSError:
        return ""
