# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The callback in a real ansible-playbook, the oldest that is supported and the newest, over hosts whose Python answers
what it likes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.checkpoint.plugins.callback import progress
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._progress import gauge
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._progress.course import Course

ROOT = Path(__file__).resolve().parents[4]
ANSIBLES = {"newest": Path(sys.executable).parent, "oldest": ROOT / "build/oldest/bin"}
NAME = "gpufleet.checkpoint.progress"
EACH = {"GPUFLEET_PROGRESS_INTERVAL": "0"}
HOSTILE = "\x1b[2J[bold red]{{ lookup('pipe', 'false') }}\r\n"
LOOK = {
    "capabilities": {"suspend": {"required": True}},
    "estimate": {"device_bytes": 3 << 30, "total_seconds": {"suspend": 2.0}},
    "processes": [{"executable": HOSTILE}, {}],
}


class Play:
    """Hosts whose Python gives these answers, one after another."""

    def __init__(self, directory: Path, ansible: Path) -> None:
        self.directory = directory
        self._ansible = ansible

    def run(
        self,
        answers: Mapping[str, Sequence[dict[str, Any]]],
        *arguments: str,
        callback: bool = True,
        terminal: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> tuple[int, str, str]:
        """Exit status, standard output and standard error."""
        hosts = {}
        for number, (host, told) in enumerate(answers.items()):
            place = self.directory / str(number)
            place.mkdir(exist_ok=True)
            (place / "count").write_text("")
            for index, answer in enumerate(told):
                (place / f"answer{index}").write_text(json.dumps({"changed": False, **answer}))
            python = place / "python"
            python.write_text(f"#!/bin/sh\nn=$(wc -l < {place}/count)\necho >> {place}/count\ncat {place}/answer$n\n")
            python.chmod(0o755)
            hosts[host] = {"ansible_connection": "local", "ansible_python_interpreter": str(python)}
        (self.directory / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        tasks = [
            {"gpufleet.checkpoint.gpu_drain": {"phase": "claimed"}},
            {"gpufleet.checkpoint.gpu_preflight": {}},
            {"gpufleet.checkpoint.gpu_drain": {"phase": "suspended"}},
            {"gpufleet.checkpoint.gpu_drain": {"phase": "released"}},
        ]
        play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
        (self.directory / "play.yml").write_text(json.dumps([play]))
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "GPUFLEET_"))},
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/tree"),
            "ANSIBLE_HOME": str(self.directory / "home"),
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_NOCOLOR": "true",
            "ANSIBLE_FORKS": "1",
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm",
            **({"ANSIBLE_CALLBACKS_ENABLED": NAME} if callback else {}),
            **(settings or {}),
        }
        command = [
            *(str(self._ansible / "ansible-playbook"), "-i", str(self.directory / "inventory.json")),
            *(*arguments, str(self.directory / "play.yml")),
        ]
        if terminal:
            return self._on_a_terminal(command, environment)
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def _on_a_terminal(self, command: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
        ours, theirs = pty.openpty()
        with (self.directory / "output").open("wb+") as output:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=theirs)
            os.close(theirs)
            told = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # how Linux says that the other side has closed it
                    break
                told += part
            os.close(ours)
            rc = process.wait(120)
            output.seek(0)
            return rc, output.read().decode(), told.decode()


@pytest.fixture(params=sorted(ANSIBLES))
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    return Play(tmp_path, ANSIBLES[request.param])


def phases(*told: str, **more: Any) -> list[dict[str, Any]]:
    """Answers to the four tasks."""
    first, *rest = [{"phase": phase, **more} for phase in told]
    return [first, {**LOOK, **more}, *rest]


def test_what_others_print_stays_as_it_is(play: Play) -> None:
    answers = {"h1": phases("claimed", "suspended", "released"), "h2": phases("claimed", "suspended", "released")}
    rc, before, _errors = play.run(answers, callback=False)
    assert rc == 0, before
    rc, told, errors = play.run(answers, settings=EACH)
    assert rc == 0 and told == before
    lines = [line for line in errors.splitlines() if line]
    assert all(line.startswith("progress: ") for line in lines), errors
    assert lines[0].startswith("progress: h1: claimed | 0/1 host done (1 claimed)")
    suspended = [line for line in lines if ": h2: suspended" in line]
    assert len(suspended) == 1
    assert "h2: suspended (2 processes, 3.0 GiB) | 0/2 hosts done (2 suspended); 6.0 GiB suspended" in suspended[0]
    assert lines[-1] == "progress: over | 2/2 hosts done; 0 B suspended, 6.0 GiB back, of 6.0 GiB"


def test_a_host_that_answers_what_it_likes(play: Play) -> None:
    name = "h1\x1bc\x07"
    hostile: list[dict[str, Any]] = [
        {"phase": HOSTILE, "processes": HOSTILE},
        {"estimate": HOSTILE, "processes": {"a": HOSTILE}, "capabilities": [HOSTILE]},
        {"phase": "suspended", "processes": [HOSTILE, {"device_bytes": HOSTILE}], "msg": HOSTILE},
        {"phase": "released", "processes": [{"device_bytes": 1e400}], "failed": True, "msg": HOSTILE},
    ]
    rc, _told, errors = play.run({name: hostile, "h2": phases("claimed", "suspended", "released")}, "-vvv")
    assert rc == 2
    ours = [line for line in errors.splitlines() if line.startswith("progress: ")]
    assert ours and all(line.isprintable() for line in ours) and "bold" not in "".join(ours)
    assert "1/2 hosts done (1 failed)" in ours[-1]
    assert "no more of it" not in errors


def test_a_bar_on_a_terminal(play: Play) -> None:
    pytest.importorskip("rich")
    rich = "build/oldest" not in str(play._ansible)
    answers = {"h1": phases("claimed", "suspended", "released")}
    rc, before, _errors = play.run(answers, callback=False)
    rc, told, errors = play.run(answers, terminal=True, settings=EACH)
    assert rc == 0 and told == before
    assert "h1: suspended (2 processes, 3.0 GiB)" in errors
    # The environment of the oldest one has no rich.
    assert ("\u2588" * 20 in errors) is rich
    assert errors.count("\r\n") == 4, "a line was wrapped or drawn over"
    coloured = {**EACH, "ANSIBLE_NOCOLOR": "false", "ANSIBLE_FORCE_COLOR": "true"}
    assert ("\x1b[32m" in play.run(answers, terminal=True, settings=coloured)[2]) is rich


def test_a_name_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    made = Course()
    made.reached("h[red]1", {"phase": "claimed"})
    gauge.show(made, "h[red]1 :smile: " + "x" * 300)
    assert capsys.readouterr().err.endswith(" h[red]1 :smile: " + "x" * 300 + "\n")


def test_rich_where_it_is_not_there_is_plain(tmp_path: Path) -> None:
    answers = {"h1": phases("claimed", "suspended", "released")}
    rc, _told, errors = Play(tmp_path, ANSIBLES["oldest"]).run(answers, settings={"GPUFLEET_PROGRESS_STYLE": "rich"})
    assert rc == 0
    assert "the Python package rich is not there" in errors and "progress: h1: claimed" in errors


def test_no_more_often_than_asked_for(tmp_path: Path) -> None:
    play = Play(tmp_path, ANSIBLES["newest"])
    answers = {f"h{number}": phases("claimed", "suspended", "released") for number in range(1, 4)}
    rc, _told, errors = play.run(answers, settings={"GPUFLEET_PROGRESS_INTERVAL": "600"})
    lines = [line for line in errors.splitlines() if line.startswith("progress: ")]
    assert rc == 0 and len(lines) == 2 and lines[1].startswith("progress: over | 3/3 hosts done")


def test_check_mode_is_no_progress(tmp_path: Path) -> None:
    play = Play(tmp_path, ANSIBLES["newest"])
    rc, _told, errors = play.run({"h1": phases("claimed", "suspended", "released")}, "--check")
    assert rc == 0 and "progress:" not in errors


@pytest.mark.parametrize("content", ["", "[1]", '{"hosts": [1]}', None], ids=repr)
def test_a_plan_that_can_not_be_read_is_a_warning(content: str | None, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    if content is not None:
        plan.write_text(content)
    answers = {"h1": phases("claimed", "suspended", "released")}
    settings = {"GPUFLEET_PROGRESS_PLAN_FILE": str(plan)}
    rc, _told, errors = Play(tmp_path, ANSIBLES["newest"]).run(answers, settings=settings)
    assert rc == 0
    assert "plan.json can't be read as a plan" in " ".join(errors.split()) and "over | 1/1 host done" in errors


def test_what_is_wrong_in_it_fails_nothing(play: Play) -> None:
    answers = {"h1": phases("claimed", "suspended", "released")}
    broken = play.directory / "tree/ansible_collections/gpufleet/checkpoint"
    broken.mkdir(parents=True)
    for name in ("galaxy.yml", "meta", "roles", "playbooks"):
        (broken / name).symlink_to(ROOT / name)
    (broken / "plugins").mkdir()
    for entry in (ROOT / "plugins").iterdir():
        if entry.name != "plugin_utils":
            (broken / "plugins" / entry.name).symlink_to(entry)
    (broken / "plugins/plugin_utils").mkdir()
    (broken / "plugins/plugin_utils/_run").symlink_to(ROOT / "plugins/plugin_utils/_run")
    utils = broken / "plugins/plugin_utils/_progress"
    utils.mkdir()
    for entry in (ROOT / "plugins/plugin_utils/_progress").glob("*.py"):
        text = entry.read_text()
        if entry.name == "lines.py":
            text = text.replace("counts = course.counts()", "counts = course.nothing()")
        (utils / entry.name).write_text(text)
    rc, _told, errors = play.run(answers, settings={"ANSIBLE_COLLECTIONS_PATH": str(play.directory / "tree")})
    assert rc == 0
    told = " ".join(errors.split())
    assert told.count("no more of it in this run: AttributeError") == 1 and "Traceback" not in told
    assert "progress: " not in errors.replace("checkpoint.progress: ", "")


def test_the_example_of_the_documentation(play: Play) -> None:
    config = play.directory / "ansible.cfg"
    config.write_text(yaml.safe_load(progress.EXAMPLES)["ansible.cfg"])
    answers = {"h1": phases("claimed", "suspended", "released"), "h2": phases("claimed", "suspended", "released")}
    rc, _told, errors = play.run(answers, callback=False, settings={"ANSIBLE_CONFIG": str(config)})
    lines = [line for line in errors.splitlines() if line.startswith("progress: ")]
    assert rc == 0 and len(lines) == 2, errors
    assert "/srv/maintenance/plan.json can't be read" in " ".join(errors.split())
