# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long criu_image takes to bring process trees to disk and back: see bench/README.md."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Dict, List, Optional, Sequence

from conform.onecase import become_subreaper

from . import main as harness
from . import plays
from .bench_image_report import COLD, LOOP, MODULE, PLUGIN, SIZES, TASKS, WAYS, before_sync, page
from .images import Reaper, seen
from .machine import Growing, meminfo, settings
from .spec import Spec
from .subject import Subject
from .trial import MARK, Stop, Trial

MIB = 1 << 20
_BEGAN = time.monotonic()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/image", description="Needs root, CRIU and one GPU or more.")
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)}; default: all that can be had")
    parser.add_argument(
        "--prepared", type=Path, metavar="DIR", help="what tests/gpu/prepare made: wheels, workload, CRIU"
    )
    parser.add_argument("--workload", default="gpusim-workload", help="default: that of --prepared, else on PATH")
    parser.add_argument("--cli", default="cuda-checkpoint", help="default: in --prepared, else on PATH")
    parser.add_argument("--criu", default="criu", help="default: in --prepared, else on PATH; its lib/ is used")
    parser.add_argument("--cuda-plugin", type=Path, metavar="DIR", help=f"that holds cuda_plugin.so, for {PLUGIN}")
    parser.add_argument("--libcuda", default="libcuda.so.1")
    parser.add_argument("--nvml", default="libnvidia-ml.so.1")
    parser.add_argument("--python", default=sys.executable, help="Ansible runs on it (default: this one)")
    parser.add_argument("--profile", choices=("gpu", "sim"), help="only for how long is waited")
    parser.add_argument("--trees", type=int, default=4, help="spread over the GPUs (4)")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="the first N alone (all)")
    parser.add_argument("--mib", type=int, default=8192, help="device memory of each (8192)")
    parser.add_argument("--rounds", type=int, default=2, help="of the module, page cache warm; of the others one (2)")
    parser.add_argument("--home", default="/var/tmp", metavar="DIR", help="on the disk that is measured (/var/tmp)")
    parser.add_argument("--deadline", type=float, default=3600, metavar="SECONDS", help="no way is begun after it")
    parser.add_argument("--image-allow", action="append", default=[], metavar="NAME", help="of criu_image, everywhere")
    parser.add_argument("--grow", type=int, default=0, metavar="GIB", help="host memory to use once before anything")
    parser.add_argument("--record", type=Path, default=Path("bench-image.json"), help="kept all the time")
    parser.add_argument("--report", type=Path, metavar="FILE", help="a page of Markdown made from the record")
    return parser


def say(text: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:6.1f}s] {text}", flush=True)


def clock(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return round(time.monotonic() - began, 3)


def write_speed(home: Path, mib: int, writers: int) -> float:
    """MiB/s to the disk and onto it, by so many at once: what no dump can beat."""
    block = os.urandom(16 * MIB)
    each = max(1, mib // writers // 16)

    def one(number: int) -> None:
        path = home / f"speed{number}"
        with open(path, "wb", buffering=0) as stream:
            for _block in range(each):
                stream.write(block)
            os.fsync(stream.fileno())

    def all_of_them() -> None:
        with concurrent.futures.ThreadPoolExecutor(writers) as pool:
            list(pool.map(one, range(writers)))

    seconds = clock(all_of_them)
    for number in range(writers):
        (home / f"speed{number}").unlink()
    return round(each * 16 * writers / seconds, 1)


def evict(directory: Path) -> Dict[str, int]:
    """The page cache without these files. Returns its MiB before and after, to show that it worked."""
    os.sync()
    before = meminfo("Cached")
    for path in directory.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
    return {"before": before // MIB, "after": meminfo("Cached") // MIB}


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


class Bench:
    def __init__(self, arguments: argparse.Namespace, spec: Spec, home: Path, mark: str) -> None:
        self.arguments = arguments
        self.spec = spec
        self.images = home / "images"
        self.empty = home / "no-plugins"
        self.empty.mkdir()
        self.gpus = min(arguments.gpus or len(spec.gpus), len(spec.gpus))
        self.subjects: List[Subject] = []
        (home / "work").mkdir()
        self.trial = Trial("bench-image", spec, home / "work", home / "trial.json", mark)
        self.record: Dict[str, Any] = {
            "meta": {},
            "trees": arguments.trees,
            "mib": arguments.mib,
            "gpus": self.gpus,
            "rounds": {},
        }

    def save(self) -> None:
        harness.write(self.arguments.record, json.dumps(self.record, indent=1, default=str))
        if self.arguments.report:
            harness.write(self.arguments.report, page(self.record))

    def start(self) -> None:
        count, gpus = self.arguments.trees, self.gpus
        for gpu in range(gpus):
            names = [(f"plain{number}", "plain") for number in range(count) if number % gpus == gpu]
            if names:
                self.subjects += self.trial.start(names, mib=self.arguments.mib, gpu=gpu)

    # -- the ways

    def way(self, name: str) -> Dict[str, Any]:
        """There and back in one way; the images are gone afterwards."""
        cold = name.endswith(COLD)
        bare = name[: -len(COLD)] if cold else name
        os.sync()
        there, back = {
            LOOP: (self.loop_there, self.loop_back),
            PLUGIN: (self.plugin_there, self.plugin_back),
            MODULE: (self.module_there, self.module_back),
            SIZES: (self.module_there, lambda: self.module_back(verify="sizes")),
            TASKS: (self.tasks_there, self.tasks_back),
        }[bare]
        with Reaper([one.pid for one in self.subjects]):
            found: Dict[str, Any] = {"there": there()}
            self._all_gone()
        found["bytes"] = size(self.images)
        if cold:
            found["page cache, MiB"] = evict(self.images)
        found["back"] = back()
        self._all_there(name)
        shutil.rmtree(self.images)
        return found

    def _all_gone(self) -> None:
        end = time.monotonic() + 10
        while seen([one.pid for one in self.subjects]):
            if time.monotonic() > end:
                raise Stop(f"still there after the dump: {seen([one.pid for one in self.subjects])}")
            time.sleep(0.01)

    def _all_there(self, name: str) -> None:
        stood = [one.name for one in self.subjects if not one.moves(self.trial.sizes.patience)]
        if stood:
            raise Stop(f"{name}: {', '.join(stood)} did not go on")

    def _call(self, argv: Sequence[str], log: Optional[Path] = None) -> None:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", check=False
        )
        if done.returncode != 0:
            told = log.read_text(errors="replace")[-600:] if log is not None and log.exists() else ""
            raise Stop(f"{' '.join(argv)}: rc {done.returncode}: {done.stdout.decode(errors='replace')[-300:]} {told}")

    def _criu(self, action: str, one: Subject, plugins: Path) -> None:
        directory = self.images / one.name
        directory.mkdir(parents=True, exist_ok=True)
        argv = [self.spec.criu, action, "-D", str(directory), "-o", f"{action}.log", "--libdir", str(plugins)]
        argv += ["--timeout", "600"] if action == "dump" else []
        argv += ["-t", str(one.pid)] if action == "dump" else ["--restore-detached"]
        self._call(argv, directory / f"{action}.log")

    def _cuda(self, action: str, one: Subject) -> None:
        self._call([self.spec.cli, "--action", action, "--pid", str(one.pid)])

    def _each(self, work: Callable[[Subject], None]) -> float:
        def all_of_them() -> None:
            for one in self.subjects:
                work(one)

        return clock(all_of_them)

    def loop_there(self) -> Dict[str, Any]:
        """cuda-checkpoint --action, criu dump: one process after another."""

        def one_there(one: Subject) -> None:
            self._cuda("lock", one)
            self._cuda("checkpoint", one)
            self._criu("dump", one, self.empty)

        return {"before the sync": self._each(one_there), "sync": clock(os.sync)}

    def loop_back(self) -> Dict[str, Any]:
        def one_back(one: Subject) -> None:
            self._criu("restore", one, self.empty)
            self._cuda("restore", one)
            self._cuda("unlock", one)

        return {"all": self._each(one_back)}

    def plugin_there(self) -> Dict[str, Any]:
        """CRIU with its own cuda plugin: one process after another."""
        seconds = self._each(lambda one: self._criu("dump", one, self.arguments.cuda_plugin))
        return {"before the sync": seconds, "sync": clock(os.sync)}

    def plugin_back(self) -> Dict[str, Any]:
        return {"all": self._each(lambda one: self._criu("restore", one, self.arguments.cuda_plugin))}

    def module_there(self) -> Dict[str, Any]:
        """One task for all."""
        pids = [one.pid for one in self.subjects]
        return self._there([self._present(pids=pids, store=str(self.images), parallel=len(pids))])

    def module_back(self, verify: str = "full") -> Dict[str, Any]:
        which = {"store": str(self.images), "parallel": len(self.subjects), "verify": verify}
        return self._back([plays.image_task("restored", self.spec, **which)])

    def tasks_there(self) -> Dict[str, Any]:
        """One task for each, in one playbook."""
        return self._there([self._present(pid=one.pid, path=self._path(one)) for one in self.subjects])

    def tasks_back(self) -> Dict[str, Any]:
        return self._back([plays.image_task("restored", self.spec, path=self._path(one)) for one in self.subjects])

    def _path(self, one: Subject) -> str:
        return str(self.images / one.name)

    def _present(self, **which: Any) -> Dict[str, Any]:
        return plays.image_task("present", self.spec, leave_running=False, **which)

    def _there(self, tasks: List[Dict[str, Any]]) -> Dict[str, Any]:
        found = self._play("present", tasks)
        took = zip(found["own"], found.pop("images"), strict=True)
        found["before the sync"] = round(sum(before_sync(own, images) for own, images in took), 3)
        return found

    def _back(self, tasks: List[Dict[str, Any]]) -> Dict[str, Any]:
        found = self._play("restored", tasks)
        found["verify"] = max(image["seconds"].get("verify", 0.0) for images in found.pop("images") for image in images)
        return found

    def _play(self, what: str, tasks: List[Dict[str, Any]]) -> Dict[str, Any]:
        seconds = 120 + 20 * sum(one.mib for one in self.subjects) / 1024
        done = self.trial.play(what, tasks, seconds=seconds)
        for result in done.results:
            self.trial.must(result.status == "ok" and result.changed, f"{what}: ok and changed", msg=result.message)
        images = [result.images for result in done.results]
        own = [float(result.result["seconds"]) for result in done.results]
        return {
            "all": round(sum(own), 3),
            "own": own,
            "process": round(sum(done.module_seconds), 3),
            "playbook": done.seconds,
            "steps": [image["seconds"] for some in images for image in some],
            "images": images,
        }

    def _disk(self) -> None:
        """Before and after: the better one counts."""
        speed = write_speed(Path(self.spec.home), min(4096, 4 * self.arguments.mib), 4)
        self.record["disk, MiB/s"] = max(speed, self.record.get("disk, MiB/s", 0.0))
        say(f"disk: {speed} MiB/s written and synced by four")

    def run(self, names: Sequence[str]) -> None:
        self._disk()
        self.start()
        for name in names:
            for number in range(self.arguments.rounds if name == MODULE else 1):
                if time.monotonic() - _BEGAN > self.arguments.deadline:
                    self.record.setdefault("left out", []).append(name)
                    continue
                found = self.way(name)
                self.record["rounds"].setdefault(name, []).append(found)
                there, back = found["there"], found["back"]
                say(f"{name}, round {number + 1}: there {_words(there)}; back {_words(back)}")
                self.save()
        self._disk()
        whole = self.trial.whole(self.subjects)
        self.trial.nothing_left(self.subjects)
        self.record["checksums equal"] = [one["equal"] for one in self.trial.record["sums"][-len(self.subjects) :]]
        self.record["whole"] = whole
        say(f"every process is whole: {whole}")


def _words(found: Dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.2f} s" for name, value in found.items() if isinstance(value, float))


def _interrupted(_number: int, _frame: Optional[FrameType]) -> None:
    raise KeyboardInterrupt


def chosen(arguments: argparse.Namespace, spec: Spec) -> List[str]:
    """The ways of this run in their order. Raises RuntimeError."""
    unknown = [name for name in arguments.ways if name not in WAYS]
    if unknown:
        raise RuntimeError(f"{unknown[0]} is none of {', '.join(WAYS)}")
    if not spec.criu:
        raise RuntimeError(f"{arguments.criu}: not found; tests/gpu/carry-criu makes one that can be carried")
    lacking = {LOOP: not spec.cli, PLUGIN: arguments.cuda_plugin is None}
    found = [name for name in WAYS if name in (arguments.ways or WAYS)]
    return [name for name in found if not lacking.get(name.replace(COLD, ""), False)]


def main() -> int:
    arguments = _parser().parse_args()
    if os.geteuid() != 0:
        print("image: needs root", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _interrupted)
    become_subreaper()
    home = Path(tempfile.mkdtemp(prefix="gputest-bench-", dir=arguments.home))
    os.chmod(home, 0o755)
    mark = f"gputest-bench-{os.getpid()}"
    os.environ[MARK] = mark
    bench: Optional[Bench] = None
    try:
        before = settings()
        growing = Growing(arguments.grow, home / "grown")
        spec = harness.make_spec(arguments, home)
        names = chosen(arguments, spec)
        growing.wait()
        bench = Bench(arguments, spec, home, mark)
        bench.record["meta"] = {**harness.describe(spec), "memory": growing.to_json()}
        say(f"{', '.join(bench.record['meta']['gpus'])}; driver {bench.record['meta']['driver']}; {', '.join(names)}")
        bench.run(names)
        bench.record["meta"]["settings as before"] = settings() == before
        bench.record["meta"]["seconds"] = round(time.monotonic() - _BEGAN, 1)
        bench.save()
        print(page(bench.record))
        return 0 if not bench.trial.failures else 1
    except (Stop, RuntimeError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("image: stopped; everything it had started is ended", file=sys.stderr)
        return 130
    finally:
        if bench is not None:
            for item in bench.trial.failures:
                print(f"not as expected: {item}", file=sys.stderr)
            for complaint in bench.trial.close():
                print(f"LEFT BEHIND {complaint}", file=sys.stderr)
            bench.save()
        shutil.rmtree(home, ignore_errors=True)
