# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often a host is gone to: at most four times to suspend it and four times to restore it, whatever is on it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.drain.drainlab import SUSPENDED, Runs, all_are
from tests.system.hosts import ROOT, Fleet
from tests.system.lab import Lab, Workload
from tests.system.playing import environment

PROCESSES = {"h1": 1, "h2": 4, "h3": 8}
MOST = 4
#: Writes down each remote command that Ansible has ssh run, and then is the ssh that the inventory names.
WRAPPER = """#!/bin/bash
for word; do
    case $word in 10.*|h[0-9]*) printf '%s\\n' "$word" >>{log} ;; esac
done
exec {ssh} "$@"
"""


class Trips:
    """Of one playbook: remote executions by host, as the callback counts them and as ssh was started."""

    def __init__(self, fleet: Fleet, directory: Path, playbook: str, hosts: Sequence[str], **variables: object) -> None:
        directory.mkdir()
        tasks, log, wrapper = directory / "tasks", directory / "ssh.log", directory / "ssh"
        tasks.touch()
        log.touch()
        wrapper.write_text(WRAPPER.format(log=shlex.quote(str(log)), ssh=shlex.quote(str(fleet.directory / "ssh"))))
        wrapper.chmod(0o755)
        told = {**variables, "ansible_ssh_executable": str(wrapper)}
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                *("-i", str(fleet.inventory), "--limit", ",".join(hosts), "--extra-vars", json.dumps(told)),
                f"gpufleet.checkpoint.{playbook}" if "/" not in playbook else playbook,
            ],
            env=environment(
                ANSIBLE_CALLBACKS_ENABLED="roundtrips",
                ANSIBLE_CALLBACK_PLUGINS=str(ROOT / "tests/drain/callback_plugins"),
                ROUNDTRIPS_FILE=str(tasks),
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in tasks.read_text().splitlines()]
        self.by_task = {name: self._sum(name) for name in hosts}
        addresses = _addresses(fleet)
        started = log.read_text().splitlines()
        self.by_ssh = {name: sum(one in (name, addresses[name]) for one in started) for name in hosts}

    def _sum(self, host: str, role: str = "") -> int:
        return sum(line["times"] for line in self.lines if line["host"] == host and role in line["role"])

    def of_role(self, role: str) -> dict[str, int]:
        return {host: self._sum(host, role) for host in self.by_task}

    def told(self) -> str:
        return "\n".join(f"{line['host']} {line['times']} {line['role']} {line['task']}" for line in self.lines)


def _addresses(fleet: Fleet) -> dict[str, str]:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(fleet.inventory), "--list"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {name: told["ansible_host"] for name, told in json.loads(done.stdout)["_meta"]["hostvars"].items()}


def start(labs: Sequence[Lab]) -> None:
    for lab in labs:
        lab.start(*[Workload(wrap=("nice", "-n", "19"))] * PROCESSES[lab.host.name])


@pytest.mark.parametrize("mode", ["memory", "disk"])
def test_suspend_and_restore(mode: str, three: Sequence[Lab], tmp_path: Path) -> None:
    start(three)
    fleet, names = three[0].host.fleet, list(PROCESSES)
    suspended = Trips(fleet, tmp_path / "suspend", "suspend", names, gpu_suspend_mode=mode)
    if mode == "memory":
        assert all(all_are(lab, SUSPENDED) for lab in three)
    restored = Trips(fleet, tmp_path / "restore", "restore", names)
    for trips in (suspended, restored):
        assert set(trips.by_task.values()) <= set(range(1, MOST + 1)), trips.told()
        assert len(set(trips.by_task.values())) == 1, f"it depends on the number of processes: {trips.told()}"
        assert trips.by_ssh == trips.by_task, trips.told()


def test_a_drain_suspends_and_restores_no_other_way(three: Sequence[Lab], runs: Runs, tmp_path: Path) -> None:
    start(three)
    trips = Trips(
        three[0].host.fleet,
        tmp_path / "drain",
        "drain",
        list(PROCESSES),
        gpu_drain_run_directory=str(runs.runs),
        gpu_drain_serial=3,
        gpu_drain_maintenance_seconds=1,
    )
    for role in ("gpu_suspend", "gpu_restore"):
        told = trips.of_role(role)
        assert set(told.values()) <= set(range(1, MOST + 1)) and len(set(told.values())) == 1, trips.told()
    assert len(set(trips.by_task.values())) == 1, trips.told()
    assert trips.by_ssh == trips.by_task, trips.told()


def test_what_is_counted(three: Sequence[Lab], tmp_path: Path) -> None:
    """Facts, every item, every retry; not what stays on the controller."""
    playbook = tmp_path / "play.yml"
    count = "n=$(cat /run/trips 2>/dev/null || echo 0); echo $((n + 1)) >/run/trips; [ $n = 2 ]"
    tasks = [
        {"name": "items", "ansible.builtin.command": "true", "loop": [1, 2, 3], "when": "item != 2"},
        {"name": "say", "ansible.builtin.debug": {"msg": "here"}},
        {
            "name": "again",
            "ansible.builtin.raw": count,
            "register": "told",
            "until": "told.rc == 0",
            "retries": 5,
            "delay": 0,
        },
        {"name": "skip", "ansible.builtin.command": "true", "when": False},
        {"name": "forget", "ansible.builtin.raw": "rm /run/trips"},
    ]
    playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": True, "tasks": tasks}]))
    trips = Trips(three[0].host.fleet, tmp_path / "trips", str(playbook), ["h1"])
    assert trips.by_task == {"h1": 1 + 2 + 3 + 1}, trips.told()
    assert trips.by_ssh == trips.by_task
