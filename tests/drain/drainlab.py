# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks of the collection over hosts with workloads, ended at a point of one's choice, and what they wrote down."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.system.hosts import ROOT, Fleet
from tests.system.lab import Job, Lab
from tests.system.playing import Result, environment

HERE = Path(__file__).parent
MARK = "GPUFLEET_DRAIN_MARK"
# A host that is gone is seen after this, and not after the hours that TCP takes.
KEEPALIVE = "-C -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=3 -o ServerAliveCountMax=2"
KEEPALIVE += " -o ConnectTimeout=5"
RUNNING, SUSPENDED, GONE = "running", "suspended", "gone"
# For a machine with much else to do; what takes so long is hung.
LONGEST = 600
_numbers = itertools.count(1)
T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """Before a task starts on a host ("start"), or when its result has come and nothing has made use of it ("done").

    arguments: literal ones of the task, such as its `phase`. hold: the playbook stops there; without, it goes on.
    """

    action: str
    moment: str
    host: str = "h1"
    arguments: Mapping[str, str] = field(default_factory=dict)
    hold: bool = True

    def __str__(self) -> str:
        told = " ".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"{self.moment} of {self.action} {told}".rstrip()


def on_each(labs: Sequence[Lab], action: Callable[[Lab], T]) -> list[T]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(action, labs))


class Runs:
    """A run directory on the controller, with the files that tasks of a drain are read from."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs = directory / "runs"

    def tasks(self, name: str, *tasks: dict[str, Any]) -> str:
        """A task file; its path."""
        path = self.directory / f"{name}.yml"
        path.write_text(json.dumps(list(tasks)))
        return str(path)

    def only(self) -> Path:
        """The directory of the one run."""
        found = [path for path in self.runs.glob("*") if (path / "run.json").exists()]
        assert len(found) == 1, found
        return found[0]

    @property
    def run_id(self) -> str:
        return self.only().name

    def run(self) -> dict[str, Any]:
        return dict(json.loads((self.only() / "run.json").read_text()))

    def host(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.only() / "hosts" / f"{name}.json").read_text()))

    def report(self) -> dict[str, Any]:
        return dict(json.loads((self.only() / "report.json").read_text()))

    def page(self) -> str:
        return (self.only() / "report.html").read_text()

    def outcomes(self) -> dict[str, str]:
        """Outcome of each host that has a record."""
        return {host["host"]: host["outcome"] for host in self.report()["hosts"]}


class Drain:
    """One ansible-playbook of the collection.

    host_vars: variables by host, as an inventory would have them. collections: where the collection is installed.
    controller: name of the machine that it believes to run on; this one's without it. callbacks: more that are enabled.
    settings: more of its environment.
    """

    def __init__(
        self,
        fleet: Fleet,
        playbook: str,
        runs: Runs,
        *arguments: str,
        limit: str = "all",
        variables: Mapping[str, object] | None = None,
        host_vars: Mapping[str, Mapping[str, object]] | None = None,
        point: Point | None = None,
        collections: Path | None = None,
        controller: str = "",
        callbacks: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.runs = runs
        self.point = point
        self.directory = Path(tempfile.mkdtemp(dir=runs.directory, prefix=f"{playbook}-"))
        self.log = self.directory / "log"
        self.capture = self.directory / "results"
        self.capture.touch()
        self.reached = self.directory / "reached"
        self.mark = f"{os.getpid()}.{next(_numbers)}"
        own = self.directory / "host_vars.yml"
        own.write_text(json.dumps({"all": {"hosts": dict(host_vars or {})}}))
        told = {"gpu_drain_run_directory": str(runs.runs), **(variables or {})}
        more = {**(settings or {}), MARK: self.mark, "CAPTURE_FILE": str(self.capture), "ANSIBLE_SSH_ARGS": KEEPALIVE}
        if collections is not None:
            more["ANSIBLE_COLLECTIONS_PATH"] = str(collections)
        enabled = ["capture", *callbacks]
        if point is not None:
            enabled.append("killpoint")
            more["KILL_POINT"] = json.dumps(
                {
                    "moment": point.moment,
                    "host": point.host,
                    "action": point.action,
                    "arguments": dict(point.arguments),
                    "hold": point.hold,
                }
            )
            more["KILL_REACHED"] = str(self.reached)
        more["ANSIBLE_CALLBACKS_ENABLED"] = ",".join(enabled)
        more["ANSIBLE_CALLBACK_PLUGINS"] = f"{ROOT / 'tests/system/callback_plugins'}:{HERE / 'callback_plugins'}"
        # Each of them is the same process after it.
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', controller] if controller else []
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *named,
                    str(Path(sys.executable).with_name("ansible-playbook")),
                    *("-i", str(fleet.inventory), "-i", str(own), "--limit", limit),
                    *("--extra-vars", json.dumps(told)),
                    *arguments,
                    f"gpufleet.checkpoint.{playbook}",
                ],
                env=environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text()

    def wait(self, seconds: float = LONGEST) -> int:
        """Its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"still at it after {seconds:.0f} s: {self.text()}") from None

    def ok(self, seconds: float = LONGEST) -> Drain:
        assert self.wait(seconds) == 0, self.text()
        return self

    def fails(self, *words: str, rc: int = 2, seconds: float = LONGEST) -> Drain:
        """It ends with this exit status, and a person reads all these words."""
        assert self.wait(seconds) == rc, self.text()
        return self.says(*words)

    def says(self, *words: str) -> Drain:
        told = " ".join(self.text().split())
        missing = [word for word in words if word not in told]
        assert not missing, f"{missing} not in: {self.text()}"
        return self

    def results(self) -> list[Result]:
        return [Result(json.loads(line)) for line in self.capture.read_text().splitlines()]

    def touched(self) -> set[str]:
        """Hosts on which a module of the collection ran that may change something."""
        modules = ("claimed", "suspending", "suspended", "restoring", "restored", "released", "undoing", "undone")
        return {result.host for result in self.results() if result.data.get("phase") in modules and result.changed}

    def recap(self) -> dict[str, dict[str, int]]:
        """Counts of each host, from the last lines that Ansible prints."""
        lines = self.text().rpartition("PLAY RECAP")[2].splitlines()[1:]
        found = {}
        for line in lines:
            name, colon, counts = line.partition(":")
            if colon and "ok=" in counts:
                found[name.strip()] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", counts)}
        return found

    def come(self, seconds: float = LONGEST) -> Drain:
        """Until it is at its point."""
        end = time.monotonic() + seconds
        while not self.reached.exists():
            assert self.process.poll() is None, f"it never came to the {self.point}: {self.text()}"
            assert time.monotonic() < end, f"not at the {self.point} within {seconds:.0f} s: {self.text()}"
            time.sleep(0.02)
        return self

    def interrupt(self) -> None:
        """As a terminal does on Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.go()
        assert self.wait() == 99, self.text()

    def go(self) -> None:
        """On from the point that it is held at."""
        Path(f"{self.reached}.go").touch()

    def kill(self) -> None:
        """ansible-playbook alone: what it has begun, here and on the hosts, goes on."""
        self.process.kill()
        self.process.wait(30)

    def kill_all(self) -> None:
        """Every process of it on this machine, as if the controller lost its power."""
        wanted = f"{MARK}={self.mark}".encode()
        while found := [pid for pid in _processes() if wanted in _environment_of(pid)]:
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self.process.poll() is None:
                self.process.wait(30)
            time.sleep(0.02)


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _environment_of(pid: int) -> bytes:
    """Empty for a process that has ended, also while nobody has asked for its status."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@contextmanager
def watched(labs: Sequence[Lab]) -> Iterator[Sequence[Lab]]:
    """At the end each workload lives, counts and has its memory, no host is held by a run, and nothing is left."""
    try:
        yield labs
        problems = [problem for found in on_each(labs, problems_of) for problem in found]
    finally:
        on_each(labs, _clear)
    assert not problems, "\n".join(problems)


def problems_of(lab: Lab) -> list[str]:
    found = [f"{lab.host.name}: {problem}" for problem in lab.problems()]
    rows = drains(lab, "closed IS NULL")
    return found + [f"{lab.host.name}: run {row['run_id']} holds it, {row['phase']}" for row in rows]


def drains(lab: Lab, where: str = "1") -> list[dict[str, Any]]:
    """Rows of the host's journal; none where no run ever was."""
    if not lab.ask("journal", "SELECT name FROM sqlite_master WHERE name = 'drains'"):
        return []
    return list(lab.ask("journal", f"SELECT * FROM drains WHERE {where} ORDER BY id"))


def _clear(lab: Lab) -> None:
    """What a failed test has left must not fail the next one as well."""
    lab.host.sh("pkill -9 -x gpufleet-hold; rm -rf /var/lib/gpufleet; true")
    lab.end(*lab.jobs)
    lab.before = lab.ask("leftovers")


def states(lab: Lab) -> dict[str, str]:
    """Of each job, by its name, from /proc."""
    seen = lab.ask("look", {job.name: job.pid for job in lab.jobs})

    def state_of(now: Mapping[str, Any]) -> str:
        if now["state"] in ("", "Z", "X"):
            return GONE
        return SUSPENDED if now["threads"] and set(now["threads"]) <= set("Tt") and not now["devices"] else RUNNING

    return {name: state_of(now) for name, now in seen.items()}


def all_are(lab: Lab, state: str, jobs: Sequence[Job] = ()) -> bool:
    """Whether there are jobs, and all of them are in this state."""
    wanted = {job.name for job in jobs or lab.jobs}
    found = {name: now for name, now in states(lab).items() if name in wanted}
    return bool(found) and set(found.values()) == {state}


@contextmanager
def runs() -> Iterator[Runs]:
    directory = Path(tempfile.mkdtemp(prefix="gpufleet-runs-"))
    try:
        yield Runs(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
