# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The other ways: backends, guards, without parking, only locked, chosen by select, onto another GPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, List, Optional, Sequence

from conform import nvml

from .. import plays
from ..registry import test
from ..subject import Subject
from ..trial import Stop, Trial
from .cycle import stay_parked, there
from .park import foreign, still


def jax_and_plain(t: Trial) -> List[Subject]:
    jax = t.spec.stand_ins or "jax" not in t.spec.host["lacking"]
    return t.start([("jax1", "jax" if jax else "polling"), ("plain1", "plain")])


def back(t: Trial, subjects: Sequence[Subject], **more: Any) -> None:
    done = t.module("resume", "running", subjects, **more)
    t.reached("resume", done, "running", subjects, changed=True)
    t.whole(subjects)
    t.nothing_left(subjects)


@test("ways/backend-cli", requires=["cli"], seconds=240)
def backend_cli(t: Trial) -> None:
    """cuda-checkpoint --action in place of libcuda, held and parked all the same."""
    subjects = jax_and_plain(t)
    there(t, "checkpointed", subjects, backend="cli", executable=t.spec.cli)
    stay_parked(t, subjects, 5)
    there(t, "running", subjects, backend="cli", executable=t.spec.cli)
    t.whole(subjects)
    t.nothing_left(subjects)
    t.say("backend: cli")


# As the tool of driver 550 presents itself; what it does is this driver's.
_OLD_TOOL = """#!/bin/sh
case " $* " in
*" --help "* | *" -h "*) printf '%s\\n' 'CUDA checkpoint and restore utility.' '--toggle --pid <pid>' '--help|-h' ;;
*) exec {tool} "$@" ;;
esac
"""


@test("ways/backend-toggle", requires=["cli"], seconds=240)
def backend_toggle(t: Trial) -> None:
    """cuda-checkpoint --toggle alone, as driver 550 has it: refused where there is more, and without consent, for it
    can't park."""
    one = t.one("plain", "plain1")
    before = [one.look()]
    done = t.module(
        "suspend with a tool that has --action", "checkpointed", [one], backend="toggle", executable=t.spec.cli
    )
    t.expect(done.status == "failed" and not done.changed, "refused where there is --action", msg=done.message)
    old = t.work / "old-cuda-checkpoint"
    old.write_text(_OLD_TOOL.format(tool=t.spec.cli))
    old.chmod(0o755)
    how = {"backend": "toggle", "executable": str(old)}
    done = t.module("suspend without consent", "checkpointed", [one], **how)
    t.expect(done.status == "failed" and "unparked" in done.message, "refused without consent", msg=done.message)
    t.unchanged([one], before, "after the refusals")
    t.say(f"refused: {done.message}")
    there(t, "checkpointed", [one], allow=["unparked"], **how)
    t.expect(not one.look().devices and not one.look().stopped, "suspended, not stopped", seen=one.look().short())
    there(t, "running", [one], allow=["unparked"], **how)
    t.whole([one])
    t.nothing_left([one])


def frozen_group(pid: int) -> Optional[str]:
    """cgroup.events of the version 2 group of a process."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            events = Path("/sys/fs/cgroup" + line[3:]) / "cgroup.events"
            return events.read_text() if events.exists() else None
    return None


@test("ways/guard-cgroup", requires=["freezer_cgroup"], seconds=240)
def guard_cgroup(t: Trial) -> None:
    """The control group freezer in addition: 1000 foreign SIGCONTs continue nothing."""
    subjects = jax_and_plain(t)
    done = t.module("suspend", "checkpointed", subjects, guard="cgroup")
    t.reached("suspend", done, "checkpointed", subjects, changed=True)
    t.fact("guard", done.process(subjects[0].pid).get("guard"))
    before = [one.look() for one in subjects]
    for one in subjects:
        foreign(one)
    for one, was in zip(subjects, before, strict=True):
        events = frozen_group(one.pid)
        t.expect(events is not None and "frozen 1" in events, f"{one.name}: its control group is frozen", seen=events)
        still(t, one, was, "frozen, after 1000 SIGCONTs", frozen=True)
    again = t.module("suspend again", "checkpointed", subjects, guard="cgroup")
    t.reached("suspend again", again, "checkpointed", subjects, changed=False)
    back(t, subjects)
    t.say("guard: cgroup")


@test("ways/guard-none", seconds=240)
def guard_none(t: Trial) -> None:
    """Parked and left alone: stopped, nobody attached."""
    subjects = jax_and_plain(t)
    done = t.module("suspend", "checkpointed", subjects, guard="none")
    t.reached("suspend", done, "checkpointed", subjects, changed=True)
    time.sleep(3)
    for one in subjects:
        seen = one.look()
        t.expect(seen.parked and not any(seen.tracers), f"{one.name}: parked, no tracer", seen=seen.short())
    back(t, subjects)
    t.say("guard: none")


@test("ways/park-false", seconds=240)
def park_false(t: Trial) -> None:
    """Held only during the steps: a process that bears it runs on without its GPU, and comes back."""
    one = t.one("plain", "plain1")
    there(t, "checkpointed", [one], park=False)
    seen = one.look()
    t.expect(not seen.devices and not seen.stopped, "suspended, not stopped", seen=seen.short())
    t.expect(not any(seen.tracers), "nobody is attached", seen=seen.short())
    there(t, "running", [one], park=False)
    t.whole([one])
    t.nothing_left([one])
    t.say("park: false")


@test("ways/locked", seconds=240)
def locked(t: Trial) -> None:
    """running, locked, checkpointed, locked, running: each by a task of its own."""
    subjects = jax_and_plain(t)
    for state in ("locked", "checkpointed", "locked", "running"):
        there(t, state, subjects)
    t.whole(subjects)
    t.nothing_left(subjects)
    t.say("running, locked, checkpointed, locked, running")


@test("ways/select", seconds=240)
def select(t: Trial) -> None:
    """Chosen by their command line, not by PID; a list without a match is no error."""
    subjects = t.start([("plain1", "plain"), ("plain2", "plain")])
    other = t.one("plain", "other")
    pattern = f"{t.work}/plain[12]( |$)"
    for state, changed in (("checkpointed", True), ("checkpointed", False), ("running", True), ("running", False)):
        wanted = {plays.MODULE: {"state": state, "select": {"command": pattern}, "journal": t.spec.journal}}
        done = t.play(f"select, {state}", [wanted]).results[0]
        t.reached(f"select, {state}", done, state, subjects, changed=changed)
        found = sorted(int(one["pid"]) for one in done.processes)
        t.expect(found == sorted(one.pid for one in subjects), "those and no other", found=found)
    nobody = {plays.MODULE: {"state": "checkpointed", "select": {"command": "no such"}, "journal": t.spec.journal}}
    done = t.play("select, nobody", [nobody]).results[0]
    t.expect(done.status == "ok" and not done.changed and not done.processes, "no match is no error", msg=done.message)
    t.whole([*subjects, other])
    t.nothing_left(subjects)


@test("ways/device-map-auto", requires=["gpus>=2"], seconds=240)
def device_map_auto(t: Trial) -> None:
    """Its GPU is full by now: with device_map auto it comes back on the other one."""
    one = t.one("plain", mib=t.sizes.huge, gpu=t.last_gpu)
    done = t.module("suspend", "checkpointed", [one])
    t.reached("suspend", done, "checkpointed", [one], changed=True)
    with t.gpu_filled(t.last_gpu, t.sizes.huge // 2), t.gpu_shared(0):
        foretold = t.play("resume: check", [t.task("running", [one], device_map="auto")], check=True).results[0]
        t.expect(foretold.status == "ok", "check mode is ok", msg=foretold.message)
        done = t.play("resume", [t.task("running", [one], device_map="auto")]).results[0]
        t.reached("resume", done, "running", [one], changed=True)
        reading = nvml.read(t.spec.nvml)
        if reading is None:
            raise Stop("NVML gave no answer in 30 s")
        where = [gpu.index for gpu in reading.gpus if one.pid in gpu.pids]
        t.expect(where == [0], "it is on the other GPU", where=where)
        t.say(f"was on GPU {t.last_gpu}, is on GPU {where}")
    t.whole([one])
    t.nothing_left([one])
