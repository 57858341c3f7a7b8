# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many hosts with many processes in one run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.drain.drainlab import Drain, Runs, on_each, watched
from tests.system.lab import Lab, Workload

PROCESSES = 4
FREE = {
    "name": "See that the GPU is free",
    "ansible.builtin.command": {"argv": ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]},
    "register": "apps",
    "failed_when": "apps.stdout | length > 0",
    "changed_when": False,
}


@pytest.mark.parametrize(
    ("mode", "hosts", "serial"),
    [("memory", 16, [1, 5, "50%"]), pytest.param("disk", 4, [1, 3], marks=pytest.mark.whole)],
    ids=["memory", "disk"],
)
def test_scale(mode: str, hosts: int, serial: Sequence[object], large_fleet: list[Lab], runs: Runs) -> None:
    with watched(large_fleet[:hosts]) as labs:
        on_each(labs, lambda lab: lab.start(*[Workload(vram=16, wrap=("nice", "-n", "19"))] * PROCESSES))
        names = [lab.host.name for lab in labs]
        drain = Drain(
            labs[0].host.fleet,
            "drain",
            runs,
            limit=",".join(names),
            variables={
                "gpu_drain_mode": mode,
                "gpu_drain_serial": serial,
                "gpu_drain_maintenance_tasks": runs.tasks("maintenance", FREE),
            },
        ).ok()
        assert runs.outcomes() == dict.fromkeys(names, "finished")
        report, page = runs.report(), runs.page()
        for host in report["hosts"]:
            assert len(host["processes"]) == PROCESSES, host
            assert [step["what"] for step in host["timeline"]].count("released") == 1, host["timeline"]
            assert all(step["ended"] for step in host["timeline"]), host["timeline"]
        for lab in labs:
            assert lab.host.name in page
            assert all(str(job.pid) in page for job in lab.jobs)
        assert all(drain.recap()[name]["failed"] == 0 for name in names)
