# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same on every driver that can suspend, with what each one offers, and clear words on those that can't."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.system.lab import Lab, Workload, labs
from tests.system.playing import cuda, info


@pytest.fixture(scope="module")
def driver_555(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--gpus", "1", "--vram", "1024", "--driver", "555") as (only,):
        yield only


@pytest.fixture(scope="module")
def driver_550(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--gpus", "1", "--vram", "1024", "--driver", "550") as (only,):
        yield only


def test_the_tool_of_driver_555_locks_holds_and_parks(driver_555: Lab) -> None:
    with driver_555.watched() as lab:
        jobs = lab.start(Workload(), Workload("polling"), Workload())
        pids = [job.pid for job in jobs]
        locked, told, suspended, again, seen = lab.play(
            cuda("locked", pids[:1]),
            cuda("checkpointed", pids, check=True, diff=True),
            cuda("checkpointed", pids, diff=True),
            cuda("checkpointed", pids),
            info(pids),
        )
        assert locked.ok(changed=True).data["backend"] == "cli"
        assert suspended.ok(changed=True).data["diff"] == told.ok(changed=True).data["diff"]
        assert told.each("plan") == suspended.each("plan")
        again.ok(changed=False)
        assert seen.each("state") == ["checkpointed"] * 3 and seen.each("parked") == [True] * 3
        assert lab.is_parked(*jobs) and lab.stands_still(*jobs)
        resumed, again = lab.play(cuda("running", pids), cuda("running", pids))
        resumed.ok(changed=True)
        again.ok(changed=False)


def test_what_driver_555_can_not_is_refused(driver_555: Lab) -> None:
    with driver_555.watched() as lab:
        *others, managed = lab.start(Workload(), Workload(), Workload("managed"))
        pids = [job.pid for job in (*others, managed)]
        functions, failed = lab.play(
            cuda("checkpointed", pids[:1], backend="libcuda"), cuda("checkpointed", pids, allow=["uvm_managed"])
        )
        functions.refused("libcuda", "cuCheckpointProcess", "570")
        failed.refused(f"PID {managed.pid}", "checkpoint", "NOT_SUPPORTED")
        assert failed.each("after") == ["running"] * 3
        suspended, mapped, resumed = lab.play(
            cuda("checkpointed", pids[:1]), cuda("running", pids[:1], device_map={"0": "0"}), cuda("running", pids[:1])
        )
        suspended.ok(changed=True)
        assert mapped.outcome == "ok" or mapped.refused("device_map", "580")
        assert resumed.ok().each("after") == ["running"]


def test_a_driver_that_can_only_toggle(driver_550: Lab) -> None:
    """Its tool names no restore thread: nothing is held or parked, so that consent is needed."""
    with driver_550.watched() as lab:
        jobs = lab.start(Workload(), Workload(), Workload())
        pids = [job.pid for job in jobs]
        consent: dict[str, Any] = {"allow": ["unparked"]}
        refused, locked, told, suspended, again, seen = lab.play(
            cuda("checkpointed", pids),
            cuda("locked", pids[:1], **consent),
            cuda("checkpointed", pids, check=True, **consent),
            cuda("checkpointed", pids, **consent),
            cuda("checkpointed", pids, **consent),
            info(pids),
        )
        refused.refused("--toggle", "JAX", "allow: [unparked]")
        assert refused.data["backend"] == "toggle"
        locked.refused("can't lock", "--toggle")
        assert told.ok(changed=True).each("plan") == suspended.ok(changed=True).each("plan")
        assert suspended.each("after") == told.each("after") == ["checkpointed"] * 3
        assert suspended.each("parked") == [False] * 3
        again.ok(changed=False)
        assert seen.each("state") == ["checkpointed"] * 3
        assert not any(job["devices"] for job in lab.look(*jobs).values())
        resumed, again = lab.play(cuda("running", pids), cuda("running", pids))
        resumed.ok(changed=True)
        again.ok(changed=False)


def test_a_process_that_needs_parking_dies_of_a_toggle(driver_550: Lab) -> None:
    """What the finding says, and why consent is asked for."""
    with driver_550.watched() as lab:
        job = lab.one("polling")
        job.may_be_gone = "it asks the driver while it is suspended"
        (result,) = lab.play(cuda("checkpointed", [job.pid], allow=["unparked"]))
        assert "unparked" in {finding["id"] for finding in result.data["findings"]}
        lab.wait_for("its end", lambda: lab.look(job)[job.pid]["state"] in ("", "Z"))


def test_the_tool_of_a_newer_driver_is_never_toggled(lab: Lab) -> None:
    job, other = lab.start(Workload(), Workload(gpu=1))
    pids = [job.pid, other.pid]
    refused, suspended, mapped = lab.play(
        cuda("checkpointed", pids, backend="toggle", allow=["unparked"]),
        cuda("checkpointed", pids, backend="cli"),
        cuda("running", pids, backend="cli", device_map={"0": "1", "1": "0"}),
    )
    refused.refused("toggle", "--action")
    assert suspended.ok(changed=True).data["backend"] == "cli" and suspended.each("parked") == [True, True]
    mapped.ok(changed=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--gpus", "1", "--driver", "535"), ("535", "550")), (("--gpus", "0"), ("driver",))],
    ids=["driver 535", "no driver"],
)
def test_hosts_that_can_not_suspend_say_so(simulator: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    with labs(simulator, "--vram", "1024", *options) as (lab,):
        with lab.watched():
            pid = int(lab.background("sh", "-c", "echo $$; exec sleep 1000")) if "0" in options else lab.one().pid
            # A host without a GPU has not got it from the fleet.
            lab.host.put("/usr/lib/python3/dist-packages/pynvml.py", Path(pynvml.__file__).read_text())
            refused, everything = lab.play(cuda("checkpointed", [pid]), cuda("checkpointed", select={"all": True}))
            refused.refused(*words)
            everything.refused(*words)
            if not lab.jobs:
                lab.host.run("kill", str(pid))


def test_a_python_without_nvml_says_what_is_missing(lab: Lab) -> None:
    lab.host.put("/usr/local/bin/bare-python", '#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n', "755")
    job = lab.one()
    bare = {"vars": {"ansible_python_interpreter": "/usr/local/bin/bare-python"}}
    suspend, seen = lab.play({**cuda("checkpointed", [job.pid]), **bare}, {**info(), **bare})
    suspend.refused("nvidia-ml-py")
    seen.refused("nvidia-ml-py")
