# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with workloads that are watched: afterwards each one lives, counts and has its memory, or the test fails."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.system.hosts import ROOT, Host, fleet
from tests.system.playing import Result, Task, play

INSIDE = Path(__file__).parent / "inside"
LAB = "/usr/local/lib/lab.py"


@dataclass
class Job:
    """A process of a workload. `may_be_gone`: why it need not live at the end."""

    name: str
    pid: int
    sum: str
    may_be_gone: str = ""


@dataclass(frozen=True)
class Workload:
    """What to start.

    rate: MiB/s of its checkpoint copies, 0 for as fast as it goes. sum: whether its memory is summed at the start,
    for which it has to answer soon. siblings: processes that it starts, by the end of their names.
    """

    kind: str = "plain"
    vram: int = 16
    gpu: int = 0
    user: str = ""
    options: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    data_limit: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    wrap: tuple[str, ...] = ()
    rate: int = 0
    sum: bool = True
    siblings: tuple[str, ...] = ()


class Lab:
    """One host with its jobs."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.jobs: list[Job] = []
        self._started = 0
        # On a disk: what a workload has open in memory would speak against an image of it.
        host.sh("mkdir -p /var/lib/lab && chmod 1777 /var/lib/lab; [ -e /run/lab ] || ln -s /var/lib/lab /run/lab")
        host.put(LAB, (INSIDE / "lab.py").read_text())
        self.before = self.ask("leftovers")

    def ask(self, command: str, argument: object = None) -> Any:
        done = self.host.ssh("python3", LAB, command, stdin=json.dumps(argument))
        assert done.returncode == 0, f"lab {command}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    def start(self, *workloads: Workload) -> list[Job]:
        """All of them at once; their processes in the same order, siblings behind the first of each."""
        asked = []
        for workload in workloads:
            self._started += 1
            name = f"{workload.kind}.{self._started}"
            options = ["--kind", workload.kind, "--vram", str(workload.vram), "--gpu", str(workload.gpu)]
            asked.append(
                {
                    "name": name,
                    "names": [name, *(f"{name}.{sibling}" for sibling in workload.siblings)],
                    "options": [*options, *workload.options],
                    "user": workload.user,
                    "cgroups": workload.cgroups,
                    "data_limit": workload.data_limit,
                    "environment": workload.environment,
                    "wrap": workload.wrap,
                    "rate": workload.rate,
                    "sum": workload.sum,
                }
            )
        answer = self.ask("start", asked)
        jobs = [Job(name, pid, answer["sums"].get(name, "")) for name, pid in answer["pids"].items()]
        self.jobs += jobs
        return jobs

    def one(self, kind: str = "plain", **options: Any) -> Job:
        return self.start(Workload(kind, **options))[0]

    def background(self, *command: str) -> str:
        """Starts a program in a session of its own; the first line that it says."""
        self._started += 1
        log = f"/run/lab/background.{self._started}"
        self.host.run(
            "sh", "-c", 'log=$1; shift; mkdir -p /run/lab; setsid -f "$@" </dev/null >"$log" 2>&1', "-", log, *command
        )
        return self.host.sh(f"until [ -s {log} ]; do sleep 0.02; done; head -n 1 {log}")

    def use_up_low_pids(self) -> None:
        """Of what starts from now on, no number is one that the next boot gives out anew at once."""
        self.host.sh("i=0; while [ $i -lt 1500 ]; do /bin/true; i=$((i+1)); done")

    def booted(self) -> None:
        """The host was down: what lay in memory is made anew."""
        self.host.disconnect()
        self.host.put(LAB, (INSIDE / "lab.py").read_text())
        self.host.sh("[ -e /run/lab ] || ln -s /var/lib/lab /run/lab")

    def play(self, *tasks: Task, seconds: float = 240, every: bool = False) -> list[Result]:
        """Results of the modules; `every`: of what the shell did in between as well."""
        return play(self.host.fleet, *tasks, hosts=self.host.name, seconds=seconds, every=every)

    def look(self, *jobs: Job) -> dict[int, dict[str, Any]]:
        """What /proc says, by PID."""
        seen = self.ask("look", {job.name: job.pid for job in jobs})
        return {job.pid: seen[job.name] for job in jobs}

    def wait_for(self, what: str, met: Callable[[], object], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not met():
            assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
            time.sleep(0.05)

    def wait_until_gone(self, what: str, query: str) -> None:
        """Until the journal gives no row for it."""
        self.wait_for(f"end of {what}", lambda: not self.ask("journal", query))

    def is_parked(self, *jobs: Job) -> bool:
        """Stopped, every thread, and without a GPU."""
        return all(
            set(seen["threads"]) <= set("Tt") and seen["threads"] and not seen["devices"]
            for seen in self.look(*jobs).values()
        )

    def stands_still(self, *jobs: Job, seconds: float = 0.3) -> bool:
        """No CPU time and no count meanwhile."""
        before = self.look(*jobs)
        time.sleep(seconds)
        after = self.look(*jobs)
        return all(before[pid][key] == after[pid][key] for pid in before for key in ("ticks", "counter", "start"))

    def end(self, *jobs: Job) -> None:
        """They are no longer wanted."""
        left = self.ask("end", {job.name: job.pid for job in jobs})
        self.jobs = [job for job in self.jobs if job not in jobs]
        assert not left, f"do not end: {left}"

    def problems(self) -> list[str]:
        """Every way in which a job is not as it was, and what a run has left behind."""
        seen = self.ask("check", {job.name: job.pid for job in self.jobs})
        found = []
        for job in self.jobs:
            now = seen[job.name]
            if job.may_be_gone and now["state"] in ("", "Z", "X"):
                continue
            told = {
                "is gone": now["state"] in ("", "Z", "X"),
                f"is stopped ({now['state']}, threads {now['threads']})": bool(set(now["threads"]) & set("Tt")),
                f"is traced by {now['tracer']}": bool(now["tracer"]),
                "does not count": not now["counts"],
                f"has other memory: {now['sum']}, not {job.sum}": bool(job.sum) and now["sum"] != job.sum,
            }
            found += [f"{job.name} (PID {job.pid}) {problem}" for problem, holds in told.items() if holds]
        return found + self.leftovers()

    def leftovers(self) -> list[str]:
        left = self.ask("leftovers")
        found = [f"{key}: {left[key]}" for key in ("holders", "stopped", "traced", "live") if left[key]]
        found += [f"{count} rows in {table}" for table, count in left["rows"].items() if count]
        for key in ("huge_pages", "groups", "remote"):
            if left[key] != self.before[key]:
                found.append(f"{key}: {left[key]}, before {self.before[key]}")
        return found

    @contextmanager
    def watched(self) -> Iterator[Lab]:
        """All is well at the end, and no job is left for the next one."""
        try:
            yield self
            problems = self.problems()
        finally:
            # What is left must not fail the next test as well.
            self.host.sh("pkill -9 -x gpufleet-hold; true")
            self.end(*self.jobs)
        if problems:
            self.before = self.ask("leftovers")
        assert not problems, "\n".join(problems)


def build_simulator(directory: Path) -> Path:
    subprocess.run([str(ROOT / "tests/sim/build"), str(directory)], stdin=subprocess.DEVNULL, check=True)
    return directory


@contextmanager
def labs(simulator: Path, *options: str, hosts: int = 1, init: str = "none") -> Iterator[list[Lab]]:
    """A fleet of these hosts."""
    with fleet("--hosts", str(hosts), "--init", init, "--sim", str(simulator), *options) as one:
        every = [Host(one, f"h{number}") for number in range(1, hosts + 1)]
        try:
            yield [Lab(host) for host in every]
        finally:
            for host in every:
                host.disconnect()
