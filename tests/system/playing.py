# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook over a fleet, with the collection of this checkout, and the result of each task."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.system.hosts import ROOT, Fleet

Task = dict[str, Any]
SHELL = "$ "


def cuda(state: str, pids: object = None, *, check: bool = False, diff: bool = False, **options: Any) -> Task:
    """A task with cuda_checkpoint that may fail."""
    arguments = {"state": state, **({} if pids is None else {"pids": pids}), **options}
    return {
        "name": f"{state}{' (check)' if check else ''}",
        "gpufleet.checkpoint.cuda_checkpoint": arguments,
        "ignore_errors": True,
        "check_mode": check,
        "diff": diff,
    }


def info(pids: object = None, **options: Any) -> Task:
    arguments = {**({} if pids is None else {"pids": pids}), **options}
    return {"name": "info", "gpufleet.checkpoint.cuda_checkpoint_info": arguments, "ignore_errors": True}


def shell(script: str) -> Task:
    """On the host, without Python, in between."""
    return {
        "name": f"{SHELL}{script[:60]}",
        "ansible.builtin.raw": f"sh -c {shlex.quote(script)}",
        "ignore_errors": True,
        "check_mode": False,
    }


class Result:
    """What one task returned on one host."""

    def __init__(self, line: dict[str, Any]) -> None:
        self.host: str = line["host"]
        self.task: str = line["task"]
        self.outcome: str = line["outcome"]
        self.data: dict[str, Any] = line["result"]
        told = str(self.data.get("module_stderr", "")) + str(self.data.get("exception", ""))
        assert "Traceback" not in told, f"{self.task}: {told}"

    def __repr__(self) -> str:
        """What is worth reading when a test fails; a whole result fills the screen."""
        shown = (
            "pid",
            "before",
            "after",
            "changed",
            "parked",
            "plan",
            "error",
            "state",
            "guard",
            "seconds",
            "warnings",
        )
        lines = [f"{self.host} {self.task}: {self.outcome}, changed {self.data.get('changed')}: {self.msg}"]
        for process in self.data.get("processes", []):
            told = {key: process[key] for key in shown if key in process}
            lines.append(f"  {told}")
        for finding in self.data.get("findings", []):
            lines.append(f"  {finding['severity']} {finding['id']} of {finding['pid']}: {finding['evidence']}")
        return "\n".join(lines)

    @property
    def failed(self) -> bool:
        return self.outcome == "failed"

    @property
    def changed(self) -> bool:
        return bool(self.data["changed"])

    @property
    def msg(self) -> str:
        return str(self.data.get("msg", ""))

    @property
    def processes(self) -> dict[int, dict[str, Any]]:
        return {process["pid"]: process for process in self.data["processes"]}

    def each(self, key: str) -> list[Any]:
        """This value of every process, in the order of their PIDs."""
        return [process[key] for _pid, process in sorted(self.processes.items())]

    def ok(self, changed: bool | None = None) -> Result:
        """It succeeded, and with `changed` so."""
        assert self.outcome == "ok", repr(self)
        assert changed is None or self.changed is changed, repr(self)
        return self

    def refused(self, *words: str) -> Result:
        """It failed, changed nothing, and its message has all these words."""
        assert self.outcome == "failed", repr(self)
        assert not self.data.get("changed", False), repr(self)
        return self.says(*words)

    def says(self, *words: str) -> Result:
        missing = [word for word in words if word not in self.msg]
        assert not missing, f"{missing} not in: {self!r}"
        return self


class Play:
    """A playbook that runs; `wait` gives the results. tasks: of one play, or the text of a whole playbook."""

    def __init__(
        self, fleet: Fleet, tasks: list[Task] | str, hosts: str = "all", arguments: tuple[str, ...] = ()
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(dir=fleet.directory, prefix="play-"))
        self.capture = self.directory / "results"
        self.capture.touch()
        play = {"hosts": hosts, "gather_facts": False, "ignore_unreachable": True, "tasks": tasks}
        (self.directory / "play.yml").write_text(tasks if isinstance(tasks, str) else json.dumps([play]))
        self.log = self.directory / "log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("ansible-playbook")),
                    *("-i", str(fleet.inventory), str(self.directory / "play.yml"), *arguments),
                ],
                env=environment(CAPTURE_FILE=str(self.capture)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def results(self) -> list[Result]:
        return [Result(json.loads(line)) for line in self.capture.read_text().splitlines()]

    def wait(self, seconds: float = 240) -> list[Result]:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"ansible-playbook is still at it after {seconds:.0f} s: {self.log.read_text()}"
            ) from None
        results = self.results()
        assert results, self.log.read_text()
        return results

    def text(self) -> str:
        """What a person sees of it, once it has ended well."""
        assert self.process.wait(240) == 0, self.log.read_text()
        return self.log.read_text()

    def kill(self) -> None:
        """As if the controller lost its power: every process of it at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def environment(**more: str) -> dict[str, str]:
    here = Path(__file__).parent
    own = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    return {
        **own,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/tree"),
        "ANSIBLE_CONFIG": str(ROOT / "tests/demo/ansible.cfg"),
        "ANSIBLE_HOME": str(ROOT / "build/cache/ansible"),
        "ANSIBLE_CALLBACK_PLUGINS": str(here / "callback_plugins"),
        "ANSIBLE_CALLBACKS_ENABLED": "capture",
        "ANSIBLE_FORKS": "16",
        "ANSIBLE_NOCOLOR": "1",
        **more,
    }


def play(fleet: Fleet, *tasks: Task, hosts: str = "all", seconds: float = 240, every: bool = False) -> list[Result]:
    """Results of all tasks but those of `shell`, in their order; `every`: of those, too."""
    results = Play(fleet, list(tasks), hosts).wait(seconds)
    lost = [result for result in results if result.outcome == "unreachable"]
    assert not lost, lost
    return [result for result in results if every or not result.task.startswith(SHELL)]
