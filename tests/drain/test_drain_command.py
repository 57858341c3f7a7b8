# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler hook that calls the operator's own commands, which here keep a file per node."""

from __future__ import annotations

from collections.abc import Sequence

from tests.drain.drainlab import RUNNING, Drain, Point, Runs, all_are
from tests.system.lab import Lab, Workload

MAINTENANCE = {"name": "Do nothing", "ansible.builtin.command": {"argv": ["true"]}, "changed_when": False}
# Answers as docs/schedulers.md asks of it: 0 for its own, 3 for somebody else's.
COMMAND = """\
#!/bin/sh
file=/var/lib/lab/drained
echo "$1 $GPUFLEET_RUN_ID $GPUFLEET_HOST $GPUFLEET_NODE" >> /var/lib/lab/calls
[ ! -e $file ] || [ "$(cat $file)" = "$GPUFLEET_RUN_ID" ] || exit 3
case $1 in drain) echo "$GPUFLEET_RUN_ID" > $file ;; release) rm -f $file ;; esac
"""


def test_a_drain_with_commands(three: Sequence[Lab], runs: Runs) -> None:
    """h1 is drained and released, also by a run that was killed in between; h2 was drained by somebody else."""
    first, second, _third = three
    for lab in (first, second):
        lab.start(Workload(vram=16))
        lab.host.put("/usr/local/sbin/node", COMMAND, "755")
        lab.host.sh("rm -f /var/lib/lab/drained /var/lib/lab/calls")
    second.host.sh("echo somebody > /var/lib/lab/drained")
    variables = {
        "gpu_drain_scheduler": "command",
        "gpu_drain_scheduler_drain_command": ["/usr/local/sbin/node", "drain"],
        "gpu_drain_scheduler_release_command": ["/usr/local/sbin/node", "release"],
        "gpu_drain_node": "gpu-{{ inventory_hostname }}",
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
        "gpu_drain_serial": [2],
    }

    def drain(point: Point | None = None, **more: object) -> Drain:
        return Drain(first.host.fleet, "drain", runs, limit="h1,h2", variables={**variables, **more}, point=point)

    drain(Point("command", "done")).come().kill_all()
    run = runs.run_id
    assert first.host.sh("cat /var/lib/lab/drained") == run
    drain().ok()
    calls = first.host.sh("cat /var/lib/lab/calls").splitlines()
    assert set(calls) == {f"drain {run} h1 gpu-h1", f"release {run} h1 gpu-h1"}
    assert calls[-1].startswith("release") and first.host.ssh("test", "-e", "/var/lib/lab/drained").returncode == 1
    assert "release" not in second.host.sh("cat /var/lib/lab/calls")
    assert second.host.sh("cat /var/lib/lab/drained") == "somebody"
    assert all_are(first, RUNNING) and all_are(second, RUNNING)
    assert (runs.host("h1")["scheduler"]["ours"], runs.host("h2")["scheduler"]["ours"]) == (True, False)


def test_a_scheduler_that_can_not_be_asked_keeps_no_host(three: Sequence[Lab], runs: Runs) -> None:
    """What is missing for the drain is missing for its undoing, too."""
    host_vars: dict[str, dict[str, object]] = {
        f"h{n}": {"gpu_drain_scheduler": kind} for n, kind in ((2, "slurm"), (3, "kubernetes"))
    }
    variables = {
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
        "gpu_drain_serial": [3],
        "gpu_drain_failures_allowed": 3,
    }

    def drain(more: dict[str, dict[str, object]]) -> Drain:
        told = {**host_vars, **more}
        return Drain(three[0].host.fleet, "drain", runs, limit="h1,h2,h3", variables=variables, host_vars=told)

    without = drain({"h1": {"gpu_drain_scheduler": "command"}})
    without.fails("gpu_drain_scheduler_drain_command", "gpu_drain_scheduler_release_command", "docs/schedulers.md")
    assert not runs.runs.exists()
    commands = {f"gpu_drain_scheduler_{key}_command": ["/nowhere"] for key in ("drain", "release")}
    asked = drain({"h1": {"gpu_drain_scheduler": "command", **commands}})
    asked.fails().says("no executable scontrol", "gpu_drain_scheduler_delegate")
    asked.says("ansible-galaxy collection install kubernetes.core")
    assert runs.outcomes() == dict.fromkeys(("h1", "h2", "h3"), "undone")
