# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's modules, through ansible-playbook with a local connection, or as a bare process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from .spec import Spec

MODULE = "gpufleet.checkpoint.cuda_checkpoint"
INFO = "gpufleet.checkpoint.cuda_checkpoint_info"
IMAGE = "gpufleet.checkpoint.criu_image"
IMAGE_INFO = "gpufleet.checkpoint.criu_image_info"
TIMED = ("cuda_checkpoint", "criu_image")
HERE = Path(__file__).resolve().parent.parent
_ANSIBLE = "import sys; from ansible.cli.playbook import main; sys.exit(main(sys.argv))"
# Wall time of the module's own process: Ansible starts this in place of the interpreter. With pipelining the module
# comes by standard input, and has no name.
_TIMED = """#!/bin/sh
began=$(date +%s%N)
"$GPUTEST_INTERPRETER" "$@"
status=$?
echo "$began $(date +%s%N) $1" >>"$GPUTEST_TIMES"
exit $status
"""


class NoAnswerError(RuntimeError):
    """A playbook or module did not come to its end in time."""


@dataclass(frozen=True)
class TaskResult:
    """status: ok | failed | skipped | unreachable; "lost" when the module answered nothing. Times: unix seconds."""

    task: str
    status: str
    began: Optional[float]
    ended: Optional[float]
    result: Dict[str, Any]

    @property
    def failed(self) -> bool:
        return self.status != "ok"

    @property
    def changed(self) -> bool:
        return bool(self.result.get("changed", False))

    @property
    def message(self) -> str:
        return str(self.result.get("msg", ""))

    @property
    def processes(self) -> List[Dict[str, Any]]:
        return list(self.result.get("processes") or [])

    @property
    def images(self) -> List[Dict[str, Any]]:
        return list(self.result.get("images") or [])

    def process(self, pid: int) -> Dict[str, Any]:
        return next((one for one in self.processes if one.get("pid") == pid), {})

    def to_json(self) -> Dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Play:
    """seconds: of the whole ansible-playbook. module_seconds: of the module's process, per task."""

    rc: int
    seconds: float
    module_seconds: List[float]
    results: List[TaskResult]
    out: str


def task(state: str, pids: List[Any], journal: str, **arguments: Any) -> Dict[str, Any]:
    return {MODULE: {"state": state, "pids": pids, "journal": journal, **arguments}}


def image_task(state: str, spec: Spec, **arguments: Any) -> Dict[str, Any]:
    given = {"state": state, "journal": spec.journal, "criu_executable": spec.criu, **arguments}
    return {IMAGE: {**given, "allow": list(spec.image_allow)} if spec.image_allow and state != "absent" else given}


def environment(spec: Spec, work: Path) -> Dict[str, str]:
    path = [spec.site, os.environ.get("PYTHONPATH", "")]
    (work / "tmp").mkdir(exist_ok=True)
    return {
        # Compiled code is kept, as it is where Ansible and the modules are installed.
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": ":".join(one for one in path if one),
        "LC_ALL": "C.UTF-8",
        "HOME": os.environ.get("HOME", "/root"),
        "ANSIBLE_CONFIG": str(HERE / "ansible.cfg"),
        "TMPDIR": str(work / "tmp"),  # what is killed can't remove its temporary files
        "ANSIBLE_HOME": str(work / "ansible"),
        "ANSIBLE_REMOTE_TMP": str(work / "ansible" / "remote"),
        "ANSIBLE_COLLECTIONS_PATH": spec.collections,
        "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback_plugins"),
        "ANSIBLE_CALLBACKS_ENABLED": "gpurecord",
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_INVENTORY_UNPARSED_WARNING": "False",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
    }


def command(spec: Spec, playbook: Path, interpreter: str, check: bool) -> List[str]:
    argv = [spec.python, "-c", _ANSIBLE, "-i", "localhost,", "-c", "local", "--diff"]
    return [*argv, *(["--check"] if check else []), "-e", f"ansible_python_interpreter={interpreter}", str(playbook)]


def write_playbook(path: Path, tasks: List[Dict[str, Any]]) -> None:
    play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks}
    path.write_text(json.dumps([play], indent=1))


class Started:
    """An ansible-playbook on its way."""

    def __init__(
        self, spec: Spec, work: Path, number: int, tasks: List[Dict[str, Any]], check: bool, mark: str
    ) -> None:
        self.mark = mark
        self.began = time.monotonic()
        self._base = work / f"play{number}"
        self._tasks = tasks
        playbook = self._base.with_suffix(".yml")
        write_playbook(playbook, tasks)
        timed = work / "timed-python"
        if not timed.exists():
            timed.write_text(_TIMED)
            timed.chmod(0o755)
        self._log = self._base.with_suffix(".log")
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                command(spec, playbook, str(timed), check),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=str(work),
                env={
                    **environment(spec, work),
                    "GPUTEST_RESULTS": str(self._base.with_suffix(".jsonl")),
                    "GPUTEST_TIMES": str(self._base.with_suffix(".times")),
                    "GPUTEST_INTERPRETER": spec.python,
                    "GPUTEST_PLAY": mark,
                },
                start_new_session=True,
            )

    def wait(self, seconds: float) -> Play:
        """Raises NoAnswerError; then nothing was killed."""
        try:
            rc = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise NoAnswerError(f"ansible-playbook had not ended after {seconds:g} s: {self.output()[-800:]}") from None
        took = time.monotonic() - self.began
        results = [TaskResult(**json.loads(line)) for line in _lines(self._base.with_suffix(".jsonl"))]
        times = [line.split(" ", 2) for line in _lines(self._base.with_suffix(".times"))]
        modules = [
            (int(end) - int(begin)) / 1e9 for begin, end, what in times if not what or any(one in what for one in TIMED)
        ]
        return Play(rc, round(took, 3), modules, results, self.output())

    def output(self) -> str:
        try:
            return self._log.read_text(errors="replace")
        except OSError:
            return ""


def _lines(path: Path) -> List[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


class Bare:
    """The module as a process of its own, without Ansible around it: quick, and its PID is known."""

    def __init__(self, spec: Spec, work: Path, number: int, arguments: Dict[str, Any], check: bool, mark: str) -> None:
        self.began = time.monotonic()
        self._out, self._err = work / f"bare{number}.out", work / f"bare{number}.err"
        given = work / f"bare{number}.json"
        given.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": {"_ansible_check_mode": check, **arguments}}))
        env = {**environment(spec, work), "GPUTEST_PLAY": mark}
        env["PYTHONPATH"] = f"{spec.collections}:{env['PYTHONPATH']}"
        name = "ansible_collections.gpufleet.checkpoint.plugins.modules.cuda_checkpoint"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                [spec.python, "-m", name, str(given)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=str(work),
                env=env,
                start_new_session=True,
            )

    def wait(self, seconds: float) -> TaskResult:
        try:
            rc = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise NoAnswerError(f"the module had not ended after {seconds:g} s: {self.error()}") from None
        took = time.monotonic() - self.began
        text = self._out.read_text(errors="replace")
        try:
            result = dict(json.loads(text))
        except ValueError:
            result = {"msg": f"the module ended with {rc} and without an answer: {text[-500:]} {self.error()}"}
            return TaskResult("bare", "lost", None, None, {**result, "rc": rc, "seconds": took})
        result.pop("invocation", None)
        return TaskResult("bare", "failed" if result.get("failed") or rc else "ok", None, None, result)

    def error(self) -> str:
        try:
            return self._err.read_text(errors="replace")[-800:]
        except OSError:
            return ""


def processes_of(mark: str) -> Dict[int, str]:
    """PID and name of whatever runs on behalf of one play, the workers of the module included."""
    found = {}
    wanted = f"GPUTEST_PLAY={mark}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                if wanted not in stream.read().split(b"\0"):
                    continue
            found[int(name)] = Path(f"/proc/{name}/comm").read_text().strip()
        except OSError:
            continue
    return found


def kill_play(mark: str, worker: str = "gpufleet-hold") -> List[str]:
    """SIGKILL to everything of it but the workers; the names of what was killed."""
    killed = []
    for pid, name in processes_of(mark).items():
        if name == worker:
            continue
        try:
            os.kill(pid, signal.SIGKILL)
            killed.append(name)
        except ProcessLookupError:
            continue
    return killed


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
