# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of tests/conformance/run."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any, Dict, List, Optional

from . import cgroup
from . import host as hosts
from .compare import compare
from .onecase import become_subreaper
from .options import PROFILES, Options
from .record import Recording, dumps, read, write
from .registry import Case, load, scope, select
from .runner import Runner, remove_groups


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run", description="Run the conformance cases against the CUDA driver of this host, real or simulated."
    )
    parser.add_argument("--list", action="store_true", help="list the cases and end")
    parser.add_argument("--case", action="append", default=[], metavar="GLOB", help="only these cases; may be repeated")
    parser.add_argument("--backend", choices=("libcuda", "cli", "both"), default="both")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the recording there")
    parser.add_argument("--raw", type=Path, metavar="FILE", help="write everything seen, uncompared, there")
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="compare with this recording; exit 1 on a difference"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the outcome of the comparison there, as JSON"
    )
    parser.add_argument("--workload", default="gpusim-workload", metavar="PATH")
    parser.add_argument("--criu", default="criu", metavar="PATH")
    parser.add_argument("--libcuda", default="libcuda.so.1", metavar="PATH")
    parser.add_argument("--nvml", default="libnvidia-ml.so.1", metavar="PATH")
    parser.add_argument("--cli", default="cuda-checkpoint", metavar="PATH")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="the Python that has PyTorch or JAX")
    parser.add_argument("--gpus", default="auto", help="auto, or how many GPUs the cases may count on")
    parser.add_argument("--all", action="store_true", help="with several GPUs also the cases that need only one")
    parser.add_argument("--update", action="store_true", help="keep what --record FILE has of other cases")
    parser.add_argument("--profile", choices=sorted(PROFILES), help="sizes and patience (default: by the GPU's memory)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="lanes of sequences at a time")
    parser.add_argument(
        "--sequences", type=int, metavar="N", help="random sequences per backend (default: 0, or as recorded)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--no-cases", action="store_true", help="only the sequences")
    parser.add_argument("--deadline", type=float, default=3600, metavar="SECONDS", help="for the whole run")
    parser.add_argument(
        "--patience", type=float, metavar="SECONDS", help="for a call that should answer (by the profile)"
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="scratch directory (default: a temporary one)")
    parser.add_argument(
        "--allow-sysctl", action="store_true", help="also cases that set a sysctl of the machine for a moment"
    )
    parser.add_argument("--fail-fast", action="store_true", help="start nothing more after the first case that breaks")
    return parser


def _list(cases: List[Case]) -> None:
    for one in cases:
        words = [",".join(one.backends), *one.requires]
        if one.exclusive:
            words.append("alone")
        if one.real_only:
            words.append(f"real only: {one.real_only}")
        print(f"{one.name:40} {' '.join(words)}")


def _interrupted(_number: int, _frame: Optional[FrameType]) -> None:
    raise KeyboardInterrupt


def main(argv: Optional[List[str]] = None) -> int:
    arguments = _parser().parse_args(argv)
    cases = select(load(), arguments.case)
    if arguments.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        _list(cases)
        return 0
    if arguments.case and not cases:
        print(f"run: no case matches {' '.join(arguments.case)}", file=sys.stderr)
        return 2
    recorded = read(arguments.compare) if arguments.compare else None
    for name in ("workload", "cli", "criu"):
        found = shutil.which(getattr(arguments, name))
        if found:
            setattr(arguments, name, os.path.abspath(found))
        elif name == "workload":
            print(f"run: {arguments.workload}: not found; build it and name it with --workload", file=sys.stderr)
            return 2
    signal.signal(signal.SIGTERM, _interrupted)
    become_subreaper()
    scratch = Path(tempfile.mkdtemp(prefix="gpufleet-conform-", dir=arguments.work))
    os.chmod(scratch, 0o755)
    try:
        return _run(arguments, cases, recorded, scratch)
    except KeyboardInterrupt:
        print("run: stopped; everything it had started is ended", file=sys.stderr)
        return 130
    finally:
        cgroup.unmount_below(scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def _run(arguments: argparse.Namespace, cases: List[Case], recorded: Optional[Recording], scratch: Path) -> int:
    started = time.monotonic()
    options = Options(
        arguments.profile or "h200",
        arguments.workload,
        arguments.criu,
        arguments.libcuda,
        arguments.cli,
        arguments.nvml,
        arguments.python,
        arguments.allow_sysctl,
        arguments.patience,
    )
    options = Options(**{**options.to_json(), **_copies(options, scratch)})
    host = hosts.probe(options, scratch)
    if arguments.profile is None:
        small = max(total for _dummy, _dummy, total in host.gpus) < 65536
        options = Options(**{**options.to_json(), "profile": "sim" if small else "h200"})
    if arguments.gpus != "auto":
        host = hosts.limit_gpus(host, int(arguments.gpus))
    backends = ["libcuda", "cli"] if arguments.backend == "both" else [arguments.backend]
    if not arguments.all and not arguments.case:
        cases = scope(cases, len(host.gpus))
    recording = _start_recording(arguments, hosts.meta(host, options))
    print(
        f"{len(host.gpus)} GPU(s), driver {host.driver}, profile {options.profile}; "
        + "; ".join(f"no {key}: {why}" for key, why in sorted(host.lacking.items())),
        flush=True,
    )
    runner = Runner(
        options,
        host,
        scratch,
        arguments.jobs,
        started + arguments.deadline,
        arguments.record,
        arguments.raw,
        arguments.fail_fast,
        recording,
    )
    try:
        if not arguments.no_cases:
            runner.run(runner.plan(cases, backends))
        count, seed, indices = _sequences(arguments, recorded)
        if count and not runner.stopping:
            runner.jobs = arguments.workers
            for name in backends:
                recording.sequences.pop(name, None)
                wanted = _sequences_of(recorded, name, indices)
                runner.run(runner.plan_lanes([name], seed, wanted, count, arguments.workers))
    finally:
        complaints = remove_groups(host, f"gpufleet-conform-{os.getpid()}-")
        runner.save()
    return _report(arguments, cases, runner, recorded, complaints + runner.complaints, time.monotonic() - started)


def _start_recording(arguments: argparse.Namespace, meta: Dict[str, Any]) -> Recording:
    """Empty, or with --update what was recorded before on a host that is the same."""
    if not (arguments.update and arguments.record and arguments.record.exists()):
        return Recording(meta=meta)
    old = read(arguments.record)
    for key in ("driver", "gpus", "profile"):
        if old.meta.get(key) != meta[key]:
            raise ValueError(f"{arguments.record}: recorded with {key} {old.meta.get(key)}, this host has {meta[key]}")
    old.meta = meta
    return old


def _copies(options: Options, scratch: Path) -> Dict[str, str]:
    """Of what an unprivileged user must be able to run, whatever the directories above it allow."""
    found = {}
    for name in ("workload", "cli"):
        source = Path(getattr(options, name))
        if source.is_file():
            target = scratch / source.name
            shutil.copyfile(source, target)
            target.chmod(0o755)
            found[name] = str(target)
    return found


def _sequences(arguments: argparse.Namespace, recorded: Optional[Recording]) -> tuple[int, int, Optional[List[int]]]:
    """How many and which; those of the recording unless said otherwise."""
    if arguments.sequences is not None:
        return arguments.sequences, arguments.seed, list(range(arguments.sequences))
    if recorded and recorded.sequences and not arguments.case:
        part = next(iter(recorded.sequences.values()))
        return part["count"], part["seed"], None
    return 0, arguments.seed, []


def _sequences_of(recorded: Optional[Recording], backend: str, indices: Optional[List[int]]) -> List[int]:
    if indices is not None:
        return indices
    assert recorded is not None
    return sorted(int(index) for index in recorded.sequences.get(backend, {"lines": {}})["lines"])


def _report(
    arguments: argparse.Namespace,
    cases: List[Case],
    runner: Runner,
    recorded: Optional[Recording],
    complaints: List[str],
    seconds: float,
) -> int:
    for complaint in complaints:
        print(f"LEFT BEHIND {complaint}")
    if runner.errors:
        print(f"{len(runner.errors)} broke: " + ", ".join(runner.errors))
    if arguments.record is None and recorded is None:
        print(dumps(runner.recording), end="")
    ok = not runner.errors and not complaints
    if recorded is not None:
        backends = ("libcuda", "cli") if arguments.backend == "both" else (arguments.backend,)
        names = None if not (arguments.case or arguments.no_cases) else [one.name for one in cases]
        if arguments.no_cases:
            names = []
        report = compare(
            recorded,
            runner.recording,
            names=names,
            backends=backends,
            sequences=not arguments.case and arguments.sequences is None,
        )
        print(report.text())
        if not report.ok and recorded.meta.get("recorder") != runner.recording.meta["recorder"]:
            print("the cases have changed since that was recorded: one that itself changed must be recorded again")
        if arguments.report:
            write(arguments.report, report.json())
        ok = ok and report.ok
    missed = f", {runner.unreached} cases and sequences were not reached" if runner.unreached else ""
    print(f"{'ok' if ok else 'FAILED'} in {seconds:.0f} s{missed}", flush=True)
    return 0 if ok else 1
