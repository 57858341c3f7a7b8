# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that systemd runs: chosen by their unit, parked in it, and what `systemctl stop` does to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.lab import Job, Lab, labs
from tests.system.playing import cuda, info


@pytest.fixture(scope="module")
def with_systemd(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--gpus", "1", "--vram", "1024", init="systemd") as (only,):
        yield only


def service(lab: Lab, name: str, *properties: str) -> Job:
    out = f"/run/lab/{name}"
    lab.host.run("mkdir", "-p", "/run/lab")
    lab.host.run(
        *("systemd-run", "--quiet", f"--unit={name}", "--collect", *(f"--property={line}" for line in properties)),
        *("/usr/local/bin/gpusim-workload", "--vram", "16", "--kind", "polling", "--out", out),
    )
    pid = int(lab.host.sh(f"until [ -s {out} ]; do sleep 0.02; done; cat {out}.pid"))
    job = Job(name, pid, "")
    lab.jobs.append(job)
    return job


def test_a_unit_is_suspended_and_resumed(with_systemd: Lab) -> None:
    with with_systemd.watched() as lab:
        job, other = service(lab, "inference"), service(lab, "training")
        suspended, again, seen, told = lab.play(
            cuda("checkpointed", select={"unit": "inference.service"}),
            cuda("checkpointed", select={"unit": "inference"}),
            info(select={"unit": "inference"}),
            info(),
        )
        assert list(suspended.ok(changed=True).processes) == [job.pid]
        again.ok(changed=False)
        assert seen.ok().processes[job.pid]["unit"] == "inference.service"
        assert seen.processes[job.pid]["cgroup"] == "/system.slice/inference.service"
        assert {pid: process["state"] for pid, process in told.processes.items()} == {
            job.pid: "checkpointed",
            other.pid: "running",
        }
        assert lab.is_parked(job) and lab.host.run("systemctl", "is-active", "inference") == "active"
        # The guard must not die with the SSH session that started it, nor with the service.
        guard = suspended.processes[job.pid]["guard"]["pid"]
        lab.host.sh(f"loginctl --no-legend list-sessions | while read -r id rest; do :; done; kill -0 {guard}")
        lab.play(cuda("running", select={"unit": "inference"}))[0].ok(changed=True)


def test_a_parked_service_is_stopped_by_systemd(with_systemd: Lab) -> None:
    """SIGTERM, SIGCONT: the guard keeps it parked; SIGKILL when systemd's patience is over. Nothing is left."""
    with with_systemd.watched() as lab:
        job = service(lab, "inference", "TimeoutStopSec=1")
        job.may_be_gone = "it was stopped by systemd"
        lab.play(cuda("checkpointed", [job.pid]))[0].ok(changed=True)
        lab.host.run("systemctl", "stop", "inference")
        lab.wait_for("its end", lambda: not lab.look(job)[job.pid]["state"])
        assert lab.play(info())[0].ok().processes == {}


def test_a_frozen_unit_is_refused_and_a_unit_is_frozen_by_the_guard(with_systemd: Lab) -> None:
    with with_systemd.watched() as lab:
        job, cold = service(lab, "inference"), service(lab, "cold")
        lab.host.run("systemctl", "freeze", "cold")
        refused, suspended, seen, resumed = lab.play(
            cuda("checkpointed", [cold.pid]),
            cuda("checkpointed", [job.pid], guard="cgroup"),
            info([job.pid]),
            cuda("running", [job.pid]),
        )
        refused.refused(f"PID {cold.pid}", "frozen", "cold.service")
        suspended.ok(changed=True)
        assert seen.ok().processes[job.pid]["unit"] == "inference.service"
        resumed.ok(changed=True)
        lab.host.run("systemctl", "thaw", "cold")
