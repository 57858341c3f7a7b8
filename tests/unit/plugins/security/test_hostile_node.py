# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks over a host whose Python answers what it likes to every module: what reaches the controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
#: The newest ansible-core that the gates have, and the oldest that is supported: they mark what is no template in
#: different ways.
ANSIBLES = {"newest": Path(sys.executable).parent, "oldest": ROOT / "build/oldest/bin"}
RUN_ID = "20261130T080000-7f3a9c"


class Node:
    """A host whose Python gives the same answer to every module. marked: somebody executed something elsewhere."""

    def __init__(self, directory: Path, ansible: Path) -> None:
        self.directory = directory
        self.mark = directory / "mark"
        self._ansible = ansible
        self._python = directory / "python"

    @property
    def marked(self) -> bool:
        return self.mark.exists()

    @property
    def template(self) -> str:
        return "{{ lookup('ansible.builtin.pipe', 'touch " + str(self.mark) + "') }}"

    def play(self, name: str, answer: Mapping[str, Any], **variables: Any) -> str:
        (self.directory / "answer").write_text(json.dumps({"changed": False, **answer}))
        self._python.write_text(f"#!/bin/sh\ncat {self.directory}/answer\n")
        self._python.chmod(0o755)
        inventory = {
            "all": {
                "hosts": {
                    "node": {"ansible_connection": "local", "ansible_python_interpreter": str(self._python)},
                    "scheduler": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
                },
                "vars": {
                    "ansible_become": False,
                    "gpu_drain_run_directory": str(self.directory / "runs"),
                    "gpu_drain_maintenance_seconds": 1,
                    **variables,
                },
            }
        }
        (self.directory / "inventory.json").write_text(json.dumps(inventory))
        done = subprocess.run(
            [
                *(str(self._ansible / "ansible-playbook"), "-i", str(self.directory / "inventory.json")),
                *("-e", "gpu_drain_hosts=node", f"gpufleet.checkpoint.{name}"),
            ],
            cwd=self.directory,
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
                "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/tree"),
                "ANSIBLE_HOME": str(self.directory / "home"),
                "ANSIBLE_LOCALHOST_WARNING": "false",
                "ANSIBLE_NOCOLOR": "true",
                "XDG_STATE_HOME": str(self.directory / "state"),
                "LC_ALL": "C.UTF-8",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
            check=False,
        )
        return done.stdout.decode(errors="surrogateescape")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, ANSIBLES["newest"])


@pytest.fixture(params=ANSIBLES)
def each(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path, ANSIBLES[request.param])


def row(phase: str, **fields: Any) -> dict[str, Any]:
    """As gpu_drain and gpu_drain_info return it of a host that a run has."""
    return {
        "run_id": RUN_ID,
        "runs": [RUN_ID],
        "kind": "drain",
        "phase": phase,
        "attempt": 1,
        "mode": "memory",
        "controller": "",
        "opened": 1796025600.0,
        "since": 1796025700.0,
        "closed": None,
        "message": "",
        "note": "",
        "boot_id": "",
        "timeline": [],
        "processes": [],
        "images": [],
        "lost": [],
        "scheduler": {},
        "packages": {},
        "declares": [],
        "store": "",
        "pids": [],
        "holders": [],
        **fields,
    }


def test_nothing_that_a_host_returns_is_a_template_or_a_path_or_a_command_to_the_terminal(each: Node) -> None:
    told = row("restoring", message=f"{each.template}\x1b]0;taken\x07", controller=each.template)
    output = each.play("status", {"drain": told, "cuda": []})
    assert "node restoring" in output and "\x1b" not in output and "\x07" not in output
    outside = row("restoring", run_id=str(each.directory / "outside"), runs=[str(each.directory / "outside")])
    output = each.play("status", {"drain": outside, "cuda": []})
    assert "is no name of a run" in output and not (each.directory / "outside").exists()
    texts = dict.fromkeys(("message", "controller", "note", "boot_id", "store"), each.template)
    todo = ["restore", "after_restore", "release"]
    told = row("restoring", **texts, todo=todo, processes=[{"pid": 1, "executable": each.template}])
    output = each.play("recover", {"drain": told, "cuda": [], **told, "msg": each.template})
    assert "gpu_drain : Let the host go" in output, output
    assert not each.marked


def test_no_fact_of_a_host_chooses_what_is_run_for_it_elsewhere(node: Node) -> None:
    command = ["touch", str(node.mark)]
    facts = {
        "gpu_drain_scheduler": "command",
        "gpu_drain_scheduler_delegate": "scheduler",
        "gpu_drain_scheduler_drain_command": command,
        "gpu_drain_scheduler_release_command": command,
    }
    told = row("claimed", todo=["scheduler", "suspend"])
    output = node.play("drain", {**told, "drain": told, "cuda": [], "ansible_facts": facts})
    assert "has returned facts by the names of this collection's variables: gpu_drain_scheduler," in output, output
    assert not node.marked


def test_a_host_is_released_under_its_own_name_only(node: Node) -> None:
    commands = {
        "gpu_drain_scheduler": "command",
        "gpu_drain_scheduler_delegate": "scheduler",
        "gpu_drain_scheduler_drain_command": ["true"],
        "gpu_drain_scheduler_release_command": ["touch", str(node.mark)],
    }
    for stamp in (
        {"kind": "command", "node": "another", "ours": True},
        {"kind": "../../../../../tmp/x", "node": "node"},
    ):
        told = row("restored", todo=["release"], scheduler=stamp)
        output = node.play("recover", {"drain": told, "cuda": [], **told}, **commands)
        assert "A host is released under its own name only" in output, output
        assert not node.marked
    told = row("restored", todo=["release"], scheduler={"kind": "command", "node": "node", "ours": True})
    node.play("recover", {"drain": told, "cuda": [], **told}, **commands)
    assert node.marked
