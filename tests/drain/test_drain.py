# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks over hosts with workloads: what they do when nothing goes wrong, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record, words
from tests.drain.drainlab import RUNNING, SUSPENDED, Drain, Point, Runs, all_are, drains, on_each, states
from tests.system.hosts import ROOT
from tests.system.lab import Lab, Workload

STATES = "for p in $(pgrep -x gpusim-workload); do cut -d' ' -f3 /proc/$p/stat; done > /var/lib/lab/seen; true"
MAINTENANCE = {"name": "Look at them", "ansible.builtin.command": {"argv": ["sh", "-c", STATES]}, "changed_when": False}
HELD = Point("gpu_drain", "done", arguments={"phase": "maintenance"})


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact, installed as an operator would."""
    directory = tmp_path_factory.mktemp("installed")
    subprocess.run([str(ROOT / "tests/gates/build"), str(directory)], check=True, stdin=subprocess.DEVNULL)
    (artifact,) = directory.glob("*.tar.gz")
    galaxy = [str(Path(sys.executable).with_name("ansible-galaxy")), "collection", "install", "--offline"]
    subprocess.run([*galaxy, "-p", str(directory), str(artifact)], check=True, stdin=subprocess.DEVNULL)
    return directory


def started(labs: Sequence[Lab], count: int = 2) -> None:
    on_each(labs, lambda lab: lab.start(*[Workload(vram=16)] * count))


def names(labs: Sequence[Lab]) -> str:
    return ",".join(lab.host.name for lab in labs)


def seen(lab: Lab) -> list[str]:
    """States of the workloads in the maintenance: "t" for one that is stopped, also while its guard traces it."""
    return lab.host.sh("cat /var/lib/lab/seen").lower().split()


def judge_progress(told: str, planned_bytes: int) -> None:
    """Of three hosts in two batches."""
    lines = [line for line in told.splitlines() if line.startswith("progress: ")]
    assert "batch 1 begins" in lines[0] and "0/3 hosts done" in lines[0] and "ETA unknown: at least" in lines[0]
    assert f"of {words.size(planned_bytes)}" in lines[0], "the plan was not read"
    first = [line for line in lines if "h1: suspended (2 processes" in line]
    assert len(first) == 1 and "1 suspended, 2 untouched" in first[0] and " 0 B back" in first[0]
    # Not before: how long a maintenance takes is in no estimate.
    known = ["in about" in line for line in lines if "ETA" in line]
    assert known == sorted(known) and any(known) and "batch 1 is over" in lines[known.index(True)]
    assert "over | batch 2/2; 3/3 hosts done" in lines[-1] and "0 B suspended" in lines[-1]
    for name in ("h1", "h2", "h3"):
        seen = [line.split(": ")[2].split(" ")[0] for line in lines if line.startswith(f"progress: {name}: ")]
        assert seen == [*record.PHASES[: record.PHASES.index("released") + 1]]


def test_plan_and_drain_in_memory(three: Sequence[Lab], runs: Runs, installed: Path) -> None:
    """From the installed artifact: a plan, then a run in two batches with every hook, and its progress."""
    started(three)
    fleet = three[0].host.fleet
    plan_file = runs.directory / "plan.json"
    progress = {"GPUFLEET_PROGRESS_INTERVAL": "0", "GPUFLEET_PROGRESS_PLAN_FILE": str(plan_file)}
    plan = Drain(
        fleet,
        "plan",
        runs,
        limit=names(three),
        variables={"gpu_drain_plan_file": str(plan_file)},
        collections=installed,
        callbacks=["gpufleet.checkpoint.progress"],
    ).ok()
    plan.says("h1", "h2", "h3")
    assert "progress:" not in plan.text()
    assert not runs.runs.exists()
    order = {
        hook: runs.tasks(hook, {"ansible.builtin.shell": f"echo {hook} >> /var/lib/lab/hooks", "changed_when": True})
        for hook in ("before_suspend", "after_restore", "health")
    }
    on_each(three, lambda lab: lab.host.sh("rm -f /var/lib/lab/hooks"))
    variables = {
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
        **{f"gpu_drain_{hook}_tasks": path for hook, path in order.items()},
        "gpu_drain_health_command": ["pgrep", "gpusim-workload"],
        "gpu_drain_serial": [1, 2],
    }
    drain = Drain(
        fleet,
        "drain",
        runs,
        limit=names(three),
        variables=variables,
        collections=installed,
        callbacks=["gpufleet.checkpoint.progress"],
        settings=progress,
    ).ok()
    drain.says("report.html")
    judge_progress(drain.text(), json.loads(plan_file.read_text())["totals"]["bytes"])
    for lab in three:
        assert seen(lab) == ["t", "t"]
        assert lab.host.sh("cat /var/lib/lab/hooks").split() == ["before_suspend", "after_restore", "health"]
    assert runs.outcomes() == {"h1": "finished", "h2": "finished", "h3": "finished"}
    run = runs.run()
    assert len(run["attempts"]) == 1
    page = runs.page()
    assert all(name in page for name in ("h1", "h2", "h3", runs.run_id))


def test_the_host_of_an_alert(three: Sequence[Lab], runs: Runs) -> None:
    """First its plan alone; drained once that is asked for; and only that host."""
    started(three, 1)
    fleet = three[0].host.fleet
    hold = runs.directory / "hold"
    on_each(three, lambda lab: lab.host.sh("rm -f /var/lib/lab/seen"))
    variables = {
        "gpu_alert_name": "GpuXid",
        "gpu_alert_allowed": ["GpuXid"],
        "gpu_alert_host": "h2:9100",
        "gpu_alert_hold": str(hold),
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
    }
    plan = Drain(fleet, "drain_on_alert", runs, limit="all,localhost", variables=variables).ok()
    assert set(plan.recap()) == {"localhost", "h2"} and not runs.runs.exists()
    variables["gpu_alert_action"] = "drain"
    Drain(fleet, "drain_on_alert", runs, limit="all,localhost", variables=variables).ok()
    assert runs.outcomes() == {"h2": "finished"} and not hold.is_symlink()
    assert [lab.host.sh("ls /var/lib/lab").split().count("seen") for lab in three] == [0, 1, 0]


def test_a_hook_that_fails_is_undone(three: Sequence[Lab], runs: Runs) -> None:
    (lab, *_others) = three
    started([lab])
    broken = runs.tasks("broken", {"name": "Leave the pool", "ansible.builtin.command": {"argv": ["false"]}})
    variables = {
        "gpu_drain_before_suspend_tasks": broken,
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
    }
    drain = Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables).fails("Leave the pool")
    assert drain.recap()["h1"]["failed"] == 1
    assert runs.outcomes() == {"h1": "undone"}
    assert drains(lab, "closed IS NULL") == []
    assert all_are(lab, RUNNING)
    runs.tasks("broken", {"name": "Leave the pool", "ansible.builtin.command": {"argv": ["true"]}})
    Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables).ok()
    assert runs.outcomes() == {"h1": "finished"}


def test_a_maintenance_that_fails_leaves_the_host_suspended(three: Sequence[Lab], runs: Runs) -> None:
    (lab, *_others) = three
    started([lab])
    path = runs.tasks("maintenance", {"name": "Change the fan", "ansible.builtin.command": {"argv": ["false"]}})
    variables = {"gpu_drain_maintenance_tasks": path}
    Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables).fails(
        "Change the fan", "the same command again with -e gpu_drain_run_id=", "it repeats the maintenance"
    )
    assert all_are(lab, SUSPENDED)
    assert runs.outcomes() == {"h1": "failed"}
    status = Drain(lab.host.fleet, "status", runs, limit="h1").ok()
    status.says("h1 maintenance", runs.run_id, "2 suspended")
    assert all_are(lab, SUSPENDED)
    runs.tasks("maintenance", MAINTENANCE)
    Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables).ok()
    assert seen(lab) == ["t", "t"]


def test_suspend_and_restore_without_a_drain(three: Sequence[Lab], runs: Runs) -> None:
    labs = three[:2]
    started(labs)
    fleet, limit = labs[0].host.fleet, names(labs)
    Drain(fleet, "suspend", runs, limit=limit).ok()
    assert all(all_are(lab, SUSPENDED) for lab in labs)
    Drain(
        fleet, "drain", runs, limit=limit, variables={"gpu_drain_maintenance_tasks": runs.tasks("m", MAINTENANCE)}
    ).fails("belongs to", "take_over")
    again = Drain(fleet, "suspend", runs, limit=limit).ok()
    assert again.touched() == set()
    Drain(fleet, "status", runs, limit=limit).ok().says("h1 suspended", "h2 suspended")
    Drain(fleet, "restore", runs, limit=limit).ok()
    assert all(all_are(lab, RUNNING) for lab in labs)
    assert Drain(fleet, "restore", runs, limit=limit).ok().touched() == set()


def test_two_runs(three: Sequence[Lab], runs: Runs, tmp_path: Path) -> None:
    """One that is alive keeps its host. Once it is dead, only who names it gets the host, and finishes its work."""
    (lab, *_others) = three
    started([lab])
    fleet = lab.host.fleet
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}
    first = Drain(fleet, "drain", runs, limit="h1", variables=variables, point=HELD).come()
    Drain(fleet, "drain", runs, limit="h1", variables=variables).fails(str(first.process.pid), runs.run_id)
    elsewhere = Runs(tmp_path)
    Drain(fleet, "drain", elsewhere, limit="h1", variables=variables).fails(runs.run_id, "take_over")
    assert all_are(lab, SUSPENDED)
    first.kill_all()
    Drain(fleet, "drain", elsewhere, limit="h1", variables=variables).fails(runs.run_id, "take_over")
    assert all_are(lab, SUSPENDED)
    named = {**variables, "gpu_drain_take_over": runs.run_id}
    Drain(fleet, "drain", elsewhere, limit="h1", variables=named).ok()
    assert all_are(lab, RUNNING)


def test_a_run_is_resumed_by_its_id_without_its_directory(three: Sequence[Lab], runs: Runs, tmp_path: Path) -> None:
    (lab, *_others) = three
    started([lab])
    fleet = lab.host.fleet
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}
    Drain(fleet, "drain", runs, limit="h1", variables=variables, point=HELD).come().kill_all()
    lost, elsewhere = runs.run_id, Runs(tmp_path)
    named = {**variables, "gpu_drain_run_id": lost, "gpu_drain_take_over": lost}
    Drain(fleet, "drain", elsewhere, limit="h1", variables=named).ok()
    assert elsewhere.run_id == lost


def test_status_after_an_abort(three: Sequence[Lab], runs: Runs) -> None:
    """The report is there after everything of the controller died, and is made anew from the hosts alone."""
    started(three)
    fleet, limit = three[0].host.fleet, names(three)
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE), "gpu_drain_serial": [2]}
    Drain(fleet, "drain", runs, limit=limit, variables=variables, point=HELD).come().kill_all()
    assert runs.run_id in runs.page()
    run_id = runs.run_id
    shutil.rmtree(runs.runs / run_id / "hosts")
    for kind in ("json", "html"):
        (runs.runs / run_id / f"report.{kind}").unlink()
    Drain(fleet, "status", runs, limit=limit).ok().says("h1 maintenance", "h2 maintenance", "h3 no drain", "dead")
    phases = {host["host"]: host["phase"] for host in runs.report()["hosts"]}
    assert phases["h1"] == phases["h2"] == "maintenance"
    assert run_id in runs.page()
    assert all_are(three[0], SUSPENDED) and all_are(three[2], RUNNING)
    Drain(fleet, "drain", runs, limit=limit, variables=variables).ok()
    assert runs.outcomes() == dict.fromkeys(("h1", "h2", "h3"), "finished")


@pytest.mark.parametrize(
    ("phase", "left"), [("suspending", RUNNING), ("suspended", SUSPENDED), ("restoring", RUNNING)], ids=str
)
def test_recover(phase: str, left: str, three: Sequence[Lab], runs: Runs) -> None:
    """It undoes what was not suspended yet, finishes what was on its way back, and asks about what lies between."""
    (lab, *_others) = three
    started([lab])
    fleet = lab.host.fleet
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}
    point = Point("gpu_drain", "done", arguments={"phase": phase})
    Drain(fleet, "drain", runs, limit="h1", variables=variables, point=point).come().kill_all()
    recovered = Drain(fleet, "recover", runs, limit="h1").ok()
    assert all_are(lab, left)
    if left == SUSPENDED:
        recovered.says("gpu_drain_maintenance_done")
        Drain(fleet, "recover", runs, limit="h1", variables={"gpu_drain_maintenance_done": True}).ok()
    assert states(lab) and all_are(lab, RUNNING)
    assert Drain(fleet, "recover", runs, limit="h1").ok().touched() == set()


def fleet_task(name: str, *arguments: str) -> dict[str, Any]:
    """What a person does at the host itself, and not over the network."""
    return {
        "name": name,
        "ansible.builtin.command": {"argv": [str(ROOT / "tests/fleet/fleet"), *arguments]},
        "changed_when": True,
        "delegate_to": "localhost",
        "become": False,
    }


def test_pids_that_are_in_use_after_a_reboot(three: Sequence[Lab], runs: Runs) -> None:
    """On h1 by the connection of this very run, which Ansible keeps: it comes over another one. On h2 by somebody else,
    and the tree comes back in a PID namespace of its own."""
    labs = three[:2]
    on_each(labs, lambda lab: lab.host.sh("i=0; while [ $i -lt 300 ]; do (:); i=$((i+1)); done"))
    on_each(labs, lambda lab: lab.one(vram=16))
    taken = {lab.host.name: lab.jobs[0].pid for lab in labs}
    fleet = three[0].host.fleet
    next_pid = "until [ $(sh -c 'echo $$') -ge $(({{ taken }} - 1)) ]; do :; done"
    somebody = next_pid + "; {{ (inventory_hostname == 'h2') | ternary('sleep 600 </dev/null >/dev/null 2>&1 &', '') }}"
    steps: list[dict[str, Any]] = [
        fleet_task("Boot it", "reboot", "{{ inventory_hostname }}"),
        {"name": "Forget the connection of before", "ansible.builtin.meta": "reset_connection"},
        fleet_task("Give that PID to whoever comes next", "console", "{{ inventory_hostname }}", "sh", "-c", somebody),
        {"name": "Come", "ansible.builtin.command": {"argv": ["ps", "-o", "comm=", "-p", "{{ taken }}"]}},
    ]
    for step in steps:
        step["environment"] = {"FLEET_DIR": str(fleet.directory)}
    variables = {
        "gpu_drain_mode": "disk",
        "gpu_drain_serial": 2,
        # Nothing is declared: waiting for a host that boots would come over other connections.
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", *steps),
    }
    told: dict[str, dict[str, object]] = {name: {"taken": pid} for name, pid in taken.items()}
    told["h2"]["gpu_drain_pid_namespace"] = "new"
    drain = Drain(fleet, "drain", runs, limit=names(labs), variables=variables, host_vars=told)
    drain.ok()
    came = {result.host: result.data["stdout"] for result in drain.results() if result.data.get("cmd", [""])[0] == "ps"}
    assert came["h1"].startswith("sshd") and came["h2"] == "sleep", "nobody has the PID"
    on_each(labs, lambda lab: lab.booted())
    assert labs[0].host.sh(f"cat /proc/{taken['h1']}/comm").strip() == "gpusim-workload"
    (pid,) = labs[1].host.sh("pgrep -x gpusim-workload").split()
    assert int(pid) != taken["h2"]
    labs[1].jobs[0] = replace(labs[1].jobs[0], pid=int(pid))
