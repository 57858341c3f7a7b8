# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""More than one controller: slices of a run that share its budget, and one that takes over what another one left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import words
from tests.drain.drainlab import RUNNING, SUSPENDED, Drain, Point, Runs, all_are, drains, on_each, watched
from tests.system.lab import Lab, Workload

MAINTENANCE = {"name": "Do nothing", "ansible.builtin.command": {"argv": ["true"]}, "changed_when": False}


def held(host: str = "h1") -> Point:
    return Point("gpu_drain", "done", host, arguments={"phase": "maintenance"})


def let_go(drain: Drain) -> Drain:
    """On from its point."""
    Path(f"{drain.reached}.go").touch()
    return drain


def test_slices_count_their_failures_together(large_fleet: list[Lab], runs: Runs) -> None:
    """h1 of the first slice fails while h3 of the second is in its maintenance: h3 is finished, and h4 untouched."""
    with watched(large_fleet[:4]) as labs:
        on_each(labs, lambda lab: lab.start(Workload(vram=16)))
        h1, h2, h3, h4 = labs
        variables = {
            "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
            "gpu_drain_serial": [1, 1],
            "gpu_drain_run_directory_shared": True,
            "gpu_drain_run_id": "sliced",
            "gpu_drain_slices": 2,
        }

        def slice(number: int, point: Point | None = None) -> Drain:
            return Drain(
                h1.host.fleet,
                "drain",
                runs,
                limit=("h1,h2", "h3,h4")[number - 1],
                variables={**variables, "gpu_drain_slice": number},
                point=point,
                controller=f"control{number}",
            )

        blocking = h1.one("managed", sum=False)
        first, second = slice(1), slice(2, held("h3"))
        second.come()
        first.fails(f"PID {blocking.pid}")
        assert all_are(h3, SUSPENDED)
        let_go(second).fails("Run sliced stops before batch 2", "1 of 4 hosts failed", "h1: undone")
        assert runs.outcomes() == {"h1": "undone", "h2": "untouched", "h3": "finished", "h4": "untouched"}
        assert drains(h2) == drains(h4) == []
        assert {one["controller"]["host"] for one in runs.run()["attempts"]} == {"control1", "control2"}
        h1.end(blocking)
        again = [slice(1), slice(2)]
        for drain in again:
            drain.ok()
        assert set(runs.outcomes().values()) == {"finished"}
        assert {(one["slice"], tuple(one["hosts"])) for one in runs.run()["attempts"][2:]} == {
            (1, ("h1", "h2")),
            (2, ("h4",)),
        }


def test_slices_that_can_not_count_together_are_refused(three: Sequence[Lab], runs: Runs) -> None:
    (lab, *_others) = three
    lab.start(Workload(vram=16))
    variables: Mapping[str, object] = {
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
        "gpu_drain_slices": 2,
        "gpu_drain_slice": 2,
    }
    for more, why in (
        ({}, "gpu_drain_run_directory_shared is not true"),
        ({"gpu_drain_run_directory_shared": True}, "there is no gpu_drain_run_id"),
        ({"gpu_drain_run_directory_shared": True, "gpu_drain_run_id": "x", "gpu_drain_slice": 3}, "it is 3 of 2"),
    ):
        Drain(lab.host.fleet, "drain", runs, limit="h1", variables={**variables, **more}).fails(why)
    assert not runs.runs.exists()
    assert drains(lab) == []
    assert all_are(lab, RUNNING)


def test_another_controller_takes_over_what_a_dead_one_left(three: Sequence[Lab], runs: Runs, tmp_path: Path) -> None:
    """It is told whose the host is, and gets it only by the name of that run; the work is finished, not begun anew."""
    (lab, *_others) = three
    lab.start(*[Workload(vram=16)] * 2)
    fleet, elsewhere = lab.host.fleet, Runs(tmp_path)
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}
    first = Drain(fleet, "drain", runs, limit="h1", variables=variables, point=held(), controller="control1").come()
    first.kill_all()
    dead = runs.run_id

    def from_control2(playbook: str, own: Runs, **more: object) -> Drain:
        return Drain(fleet, playbook, own, limit="h1", variables={**variables, **more}, controller="control2")

    for own in (elsewhere, runs):
        from_control2("drain", own).fails(dead, "control1", f"gpu_drain_take_over: {dead}")
    from_control2("recover", elsewhere).ok().says("h1: report", "control1", f"gpu_drain_take_over: {dead}")
    from_control2("status", runs).ok().says("h1 maintenance", "root@control1, elsewhere", "gpu_drain_take_over")
    assert all_are(lab, SUSPENDED)
    taken = from_control2("drain", elsewhere, gpu_drain_take_over=dead).ok()
    assert not [result for result in taken.results() if result.data.get("state") == "checkpointed"]
    assert all_are(lab, RUNNING)
    (row,) = drains(lab)
    assert (row["phase"], row["controller"].split()[0]) == ("released", "control2")
    assert row["run_id"] != dead and dead in row["runs"]


def test_another_controller_goes_on_with_a_run_in_a_common_directory(
    three: Sequence[Lab], runs: Runs, tmp_path: Path
) -> None:
    """The run keeps its name; so it does where status has made its record anew from the host."""
    (lab, *_others) = three
    lab.start(Workload(vram=16))
    fleet = lab.host.fleet
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}

    def drain(controller: str, own: Runs, point: Point | None = None, **more: object) -> Drain:
        told = {**variables, **more}
        return Drain(fleet, "drain", own, limit="h1", variables=told, point=point, controller=controller)

    drain("control1", runs, held()).come().kill_all()
    dead = runs.run_id
    drain("control2", runs).fails("begun on another controller, control1", f"gpu_drain_take_over: {dead}")
    drain("control2", runs, held(), gpu_drain_take_over=dead).come().kill_all()
    assert [one["controller"]["host"] for one in runs.run()["attempts"]] == ["control1", "control2"]
    elsewhere = Runs(tmp_path)
    drain("control3", elsewhere).fails(f"it belongs to the drain of run {dead} (attempt 2, by root on control2")
    Drain(fleet, "status", elsewhere, limit="h1", controller="control3").ok().says("root@control2, elsewhere")
    drain("control3", elsewhere, gpu_drain_take_over=dead).ok()
    (row,) = drains(lab)
    assert (row["run_id"], row["phase"], row["controller"].split()[0]) == (dead, "released", "control3")
    assert all_are(lab, RUNNING)


def test_who_is_taken_over_alive_does_nothing_more(three: Sequence[Lab], runs: Runs, tmp_path: Path) -> None:
    """Somebody was wrong about the death of the first controller: from the claim on it is kept from the host."""
    (lab, *_others) = three
    lab.start(Workload(vram=16))
    fleet, elsewhere = lab.host.fleet, Runs(tmp_path)
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}
    first = Drain(fleet, "drain", runs, limit="h1", variables=variables, point=held(), controller="control1").come()
    second = Drain(
        fleet,
        "drain",
        elsewhere,
        limit="h1",
        variables={**variables, "gpu_drain_take_over": runs.run_id},
        point=held(),
        controller="control2",
    ).come()
    let_go(first).fails(
        "h1, restoring:", "it belongs to the drain of run", f"which took it over from run {runs.run_id}"
    )
    assert all_are(lab, SUSPENDED)
    let_go(second).ok()
    assert all_are(lab, RUNNING)


def test_a_driver_change_that_is_declared_late(three: Sequence[Lab], runs: Runs) -> None:
    """The processes are suspended already: it is refused before the maintenance, and the run goes on without it."""
    (lab, *_others) = three
    job = lab.one(vram=16)
    flag = runs.directory / "driver"
    touch = {"argv": ["touch", str(flag)]}
    change = {"name": "Change the driver", "ansible.builtin.command": touch, "delegate_to": "localhost"}
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", {**change, "become": False})}
    point = Point("gpu_drain", "done", arguments={"phase": "suspended"})
    Drain(lab.host.fleet, "drain", runs, limit="h1", variables=variables, point=point).come().kill_all()
    reboot = {**variables, "gpu_drain_declares": ["reboot"]}
    Drain(lab.host.fleet, "drain", runs, limit="h1", variables=reboot).fails(
        "reboot for h1, and gpu_drain_mode is memory"
    )
    # With the mode that a reboot needs, it is the journal that knows better.
    disk = {"gpu_drain_mode": "disk", "gpu_drain_run_id": runs.run_id}
    for declare, more in (("driver_change", {}), ("reboot", disk)):
        late = {**variables, "gpu_drain_declares": [declare], **more}
        Drain(lab.host.fleet, "drain", runs, limit="h1", variables=late).fails(
            f"gpu_drain_declares: it has {declare}, and run {runs.run_id} has suspended PID {job.pid} in memory",
            "Finish this run without it",
        )
        assert all_are(lab, SUSPENDED)
        assert not flag.exists()
        Drain(lab.host.fleet, "plan", runs, limit="h1", variables=late).ok().says("suspended")
    named = {**variables, "gpu_drain_run_id": runs.run_id}
    Drain(lab.host.fleet, "drain", runs, limit="h1", variables=named).ok()
    assert flag.exists()
    assert all_are(lab, RUNNING)


def test_who_suspended_a_host_by_itself_is_told(three: Sequence[Lab], runs: Runs) -> None:
    """By status, from any controller, and to whoever wants the host; another controller may bring it back."""
    (lab, *_others) = three
    lab.start(*[Workload(vram=16)] * 2)
    fleet = lab.host.fleet
    variables = {"gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE)}
    Drain(fleet, "suspend", runs, limit="h1", controller="control1").ok()
    (row,) = drains(lab)
    assert row["controller"].split()[:2] == ["control1", "root"]
    status = Drain(fleet, "status", runs, limit="h1", controller="control2").ok()
    status.says(f"h1 suspended since {clock(lab)}, run {row['run_id']} (attempt 1, root@control1)", "2 suspended")
    Drain(fleet, "drain", runs, limit="h1", variables=variables, controller="control2").fails(
        f"it belongs to the suspend of run {row['run_id']} (attempt 1, by root on control1, process "
    )
    point = Point("gpu_drain", "done", arguments={"phase": "restoring"})
    Drain(fleet, "restore", runs, limit="h1", controller="control2", point=point).come().kill_all()
    Drain(fleet, "restore", runs, limit="h1", controller="control1").fails(
        "by root on control2", f"gpu_restore_take_over: {row['run_id']}"
    )
    Drain(fleet, "restore", runs, limit="h1", controller="control2").ok()
    assert all_are(lab, RUNNING)


def clock(lab: Lab) -> str:
    """When h1 was suspended, as status has it."""
    query = "SELECT max(at) AS at FROM drain_phases WHERE phase = 'suspended'"
    (found,) = lab.ask("journal", query)
    return words.clock(float(found["at"]))
