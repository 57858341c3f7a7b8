# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What fails is told under the phase in which it failed, with its time: by the run, by status, and by the report."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.drain.drainlab import RUNNING, SUSPENDED, Drain, Point, Runs, all_are, drains
from tests.system.lab import Lab, Workload

MAINTENANCE = {"name": "Do nothing", "ansible.builtin.command": {"argv": ["true"]}, "changed_when": False}
HELD = Point("gpu_drain", "done", arguments={"phase": "maintenance"})


def failures(runs: Runs) -> list[tuple[str, bool]]:
    """The phases of h1 in the report, and whether something failed in each. What failed has its time and its words."""
    (host,) = [one for one in runs.report()["hosts"] if one["host"] == "h1"]
    timeline: list[dict[str, Any]] = [entry for entry in host["timeline"] if entry["what"] != "preflight"]
    for entry in timeline:
        if entry["failed"]:
            assert entry["began"] <= entry["failed_at"] <= (entry["ended"] or entry["failed_at"])
            assert entry["text"]
    return [(entry["what"], entry["failed"]) for entry in timeline]


def test_a_failure_inside_the_suspend(three: Sequence[Lab], runs: Runs) -> None:
    (lab, *_others) = three
    lab.start(Workload(vram=16))
    blocking = lab.one("managed", sum=False)
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}
    Drain(lab.host.fleet, "drain", runs, "--check", limit="h1", variables=variables).fails(
        "h1, suspending: Look at what speaks against it"
    )
    drain = Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables)
    drain.fails("h1, suspending: Look at what speaks against it", f"PID {blocking.pid}")
    assert all_are(lab, RUNNING)
    told = [("claimed", False), ("suspending", True), ("undoing", False), ("undone", False)]
    assert failures(runs) == told
    # From the host alone: another controller knows it, too.
    shutil.rmtree(runs.only() / "hosts")
    status = Drain(lab.host.fleet, "status", runs, limit="h1").ok()
    status.says("h1 no drain", "undone at", "failed in suspending at", "Look at what speaks against it")
    assert failures(runs) == told
    assert runs.outcomes() == {"h1": "undone"}
    lab.end(blocking)
    Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables).ok()
    assert runs.outcomes() == {"h1": "finished"}


def test_a_failure_inside_the_restore(three: Sequence[Lab], runs: Runs) -> None:
    """Somebody has taken the memory of the GPU meanwhile."""
    (lab, *_others) = three
    suspended = lab.start(*[Workload(vram=256)] * 2)
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}
    drain = Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables, point=HELD).come()
    greedy = lab.one(vram=800)
    Path(f"{drain.reached}.go").touch()
    drain.fails("h1, restoring: Resume the processes")
    assert all_are(lab, SUSPENDED, suspended)
    told = [(phase, False) for phase in ("claimed", "suspending", "suspended", "maintenance")]
    assert failures(runs) == [*told, ("restoring", True)]
    shutil.rmtree(runs.only() / "hosts")
    Drain(lab.host.fleet, "status", runs, limit="h1").ok().says("h1 restoring since", "failed in restoring at")
    assert failures(runs) == [*told, ("restoring", True)]
    assert runs.outcomes() == {"h1": "failed"}
    lab.end(greedy)
    Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables).ok()
    assert all_are(lab, RUNNING)


def test_a_failure_of_the_undoing(three: Sequence[Lab], runs: Runs, tmp_path: Path) -> None:
    """It is told beside the failure that was to be undone, and the same command finishes the undoing."""
    (lab, *_others) = three
    lab.start(Workload(vram=16))
    flag = tmp_path / "broken"
    flag.touch()
    check = {"argv": ["sh", "-c", f"[ ! -e {flag} ]"]}
    hook = {"name": "Look", "ansible.builtin.command": check, "delegate_to": "localhost", "become": False}
    variables = {
        "gpu_drain_before_suspend_tasks": runs.tasks("before", {"ansible.builtin.command": {"argv": ["true"]}}),
        "gpu_drain_after_restore_tasks": runs.tasks("after", {**hook, "changed_when": False}),
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
        "gpu_drain_declares": ["driver_change"],
        "gpu_drain_run_id": "one",
    }
    drain = Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables)
    drain.fails("h1, not claimed: Claim the host", "driver_change")
    variables["gpu_drain_declares"] = []
    blocking = lab.one("managed", sum=False)
    drain = Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables)
    drain.fails("h1, suspending:", f"PID {blocking.pid}", "It could not be undone either: Look: ")
    assert all_are(lab, RUNNING)
    status = Drain(lab.host.fleet, "status", runs, limit="h1").ok()
    status.says("h1 undoing since", "failed in suspending at", "failed in undoing at", "non-zero return code")
    flag.unlink()
    lab.end(blocking)
    Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables).ok()
    assert runs.outcomes() == {"h1": "finished"}


def test_a_drain_that_was_refused_is_in_nobodys_way(three: Sequence[Lab], runs: Runs) -> None:
    """By its settings: nothing is written down. By the canary: its page says so, and no command is asked about it."""
    (lab, *_others) = three
    lab.start(Workload(vram=16))
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}

    def drain(**more: object) -> Drain:
        return Drain(lab.host.fleet, "drain", runs, limit="h1,h2", variables={**variables, **more})

    drain(gpu_drain_declares=["reboot"]).fails("it has reboot for h1, and gpu_drain_mode is memory")
    drain(gpu_drain_verify="some").fails("gpu_drain_verify", "some")
    assert not runs.runs.exists()
    refused = drain(gpu_drain_declares=["driver_change"], gpu_drain_run_id="new")
    refused.fails("h1, not claimed: Claim the host").says(f"-e gpu_drain_run_id={runs.run_id}")
    assert runs.report()["state"] == "stopped"
    first = runs.run_id
    drain(gpu_drain_store="/var/lib/lab/elsewhere").ok()
    (second,) = [path.name for path in runs.runs.glob("*") if path.name != first]
    again = drain(gpu_drain_store="/var/lib/lab/elsewhere", gpu_drain_run_id=second).ok()
    assert "Could not match supplied host pattern" not in again.text()
    assert not drains(lab, "closed IS NULL")


def test_one_that_ended_on_the_way_is_known_before_the_rest_is_let_go(three: Sequence[Lab], runs: Runs) -> None:
    """Its controller died in the suspend, and a process while it was parked: there is nothing to bring back of it."""
    (lab, *_others) = three
    ended, other = lab.start(*[Workload(vram=16)] * 2)
    ended.may_be_gone = "it is killed here"
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}
    suspended = Point("cuda_checkpoint", "done", arguments={"state": "checkpointed"})
    drain = Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables, point=suspended).come()
    drain.kill_all()
    lab.host.run("kill", "-9", str(ended.pid))
    lab.wait_for("its end", lambda: lab.look(ended)[ended.pid]["state"] in ("", "Z"))
    told = f"lost is PID {ended.pid}"
    Drain(lab.host.fleet, "recover", runs, limit="h1", variables=variables).fails(told, "gpu_drain_accept_loss: true")
    assert all_are(lab, RUNNING, [other])
    known = {**variables, "gpu_drain_accept_loss": True}
    Drain(lab.host.fleet, "recover", runs, limit="h1", variables=known).ok()
    assert not drains(lab, "closed IS NULL")
