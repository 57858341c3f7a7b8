# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A drain over nodes of a real Slurm: the controller is h1, and h1, h2 and h3 are its nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.drain.drainlab import RUNNING, SUSPENDED, Drain, Point, Runs, all_are, drains, watched
from tests.system.lab import Job, Lab, Workload, labs
from tests.system.playing import Result, Task

MAINTENANCE = {"name": "Do nothing", "ansible.builtin.command": {"argv": ["true"]}, "changed_when": False}
HELD = Point("gpu_drain", "done", host="h2", arguments={"phase": "maintenance"})
# Ends the workload, and then itself, without an error.
SCRIPT = """\
#!/bin/sh
cd /
/usr/local/bin/gpusim-workload --out /run/lab/$1 --vram 16 </dev/null >/run/lab/$1.log 2>&1 &
until [ -e /run/lab/$1.stop ]; do sleep 0.2; done
kill $!
wait
exit 0
"""


class Cluster:
    """What an operator sees of it on the controller."""

    def __init__(self, every: Sequence[Lab]) -> None:
        self.labs = every
        self.controller = every[0].host

    def field(self, kind: str, name: str, key: str) -> str:
        said = self.controller.run("scontrol", "-o", "show", kind, name)
        match = re.search(rf"\s{key}=(.*?)(?=\s+[A-Z]\w*=|\s*\Z)", said)
        return match.group(1) if match else ""

    def state(self, node: str) -> str:
        return self.field("node", node, "State")

    def reason(self, node: str) -> str:
        """Without who said it and when."""
        return self.field("node", node, "Reason").partition(" [")[0]

    def is_free(self, node: str) -> bool:
        return not {"DRAIN", "DOWN"} & set(self.state(node).split("+"))

    def update(self, *words: str) -> None:
        self.controller.run("scontrol", "update", *words)

    def job(self, number: str) -> str:
        return self.field("job", number, "JobState")

    def submit(self, lab: Lab, name: str, minutes: int = 0) -> str:
        """A batch job with a workload on this node, which counts; its number."""
        self.controller.put("/run/lab/batch.sh", SCRIPT, "755")
        lab.host.sh(f"rm -f /run/lab/{name} /run/lab/{name}.*")  # of an earlier job of this name
        limit = [f"--time={minutes}"] if minutes else []
        said = self.controller.run(
            "sbatch",
            "--parsable",
            "-w",
            lab.host.name,
            "-J",
            name,
            "-o",
            "/dev/null",
            *limit,
            "/run/lab/batch.sh",
            name,
        )
        lab.wait_for(f"start of job {name}", lambda: lab.host.ssh("test", "-s", f"/run/lab/{name}").returncode == 0)
        pid = int(lab.host.sh(f"cat /run/lab/{name}.pid"))
        lab.jobs.append(Job(name, pid, lab.host.checksum(f"/run/lab/{name}")))
        return said

    def finish(self, lab: Lab, name: str, number: str) -> str:
        """Its script ends by itself; what Slurm says about it then."""
        lab.host.sh(f"touch /run/lab/{name}.stop")
        lab.wait_for(f"end of job {name}", lambda: self.job(number) not in ("RUNNING", "COMPLETING"))
        lab.jobs = [job for job in lab.jobs if job.name != name]
        return self.job(number)

    def clear(self) -> None:
        """For the next test: no job, no drain."""
        self.controller.sh("scancel --full -u root; true")
        for lab in self.labs:
            if not self.is_free(lab.host.name):
                self.update(f"NodeName={lab.host.name}", "State=RESUME")
        self.labs[0].wait_for("an idle cluster", lambda: self.controller.sh("sinfo -h -o %T").split() == ["idle"])


@pytest.fixture(scope="module")
def nodes(simulator: Path) -> Iterator[list[Lab]]:
    with labs(simulator, "--gpus", "1", "--vram", "1024", "--with", "slurm", hosts=3, init="systemd") as every:
        yield every


@pytest.fixture
def cluster(nodes: list[Lab]) -> Iterator[Cluster]:
    one = Cluster(nodes)
    try:
        with watched(nodes):
            yield one
    finally:
        one.clear()


def drain(cluster: Cluster, runs: Runs, limit: str, point: Point | None = None, **more: Any) -> Drain:
    variables = {
        "gpu_drain_scheduler": "slurm",
        "gpu_drain_maintenance_tasks": runs.tasks("maintenance", MAINTENANCE),
        "gpu_drain_serial": [3],
        "gpu_drain_failures_allowed": 3,
    }
    host_vars = more.pop("host_vars", None)
    return Drain(
        cluster.controller.fleet,
        "drain",
        runs,
        limit=limit,
        variables={**variables, **more},
        host_vars=host_vars,
        point=point,
    )


def test_jobs_stay_running_and_only_what_was_drained_here_is_released(cluster: Cluster, runs: Runs) -> None:
    """h1 was drained by somebody else, a job on h2 has time, that on h3 would reach its limit."""
    h1, h2, h3 = cluster.labs
    h1.start(Workload(vram=16))
    cluster.update("NodeName=h1", "State=DRAIN", "Reason=disk broken")
    long, short = cluster.submit(h2, "long", 600), cluster.submit(h3, "short", 20)
    plan = Drain(h1.host.fleet, "plan", runs, variables={"gpu_drain_scheduler": "slurm"}).ok()
    plan.says(f"Slurm job {short} (short) of root", f"JobId={short} TimeLimit=+")
    assert (cluster.state("h2"), cluster.state("h3")) == ("MIXED", "MIXED")

    run = drain(cluster, runs, "all", point=HELD).come()
    assert (cluster.state("h2"), cluster.reason("h2")) == ("MIXED+DRAIN", f"gpufleet {runs.run_id}")
    assert (cluster.job(long), all_are(h2, SUSPENDED)) == ("RUNNING", True)
    assert (cluster.state("h1"), cluster.reason("h1")) == ("IDLE+DRAIN", "disk broken")
    run.kill_all()
    # The same command again: it finds its own drain, brings all back, and says what it could not do.
    drain(cluster, runs, "all").fails(f"Slurm job {short} (short) of root", "allow: [slurm_time_limit]")
    assert runs.outcomes() == {"h1": "finished", "h2": "finished", "h3": "undone"}
    assert cluster.is_free("h2") and cluster.is_free("h3")
    assert (cluster.state("h1"), cluster.reason("h1")) == ("IDLE+DRAIN", "disk broken")
    assert (cluster.job(long), cluster.job(short)) == ("RUNNING", "RUNNING")
    assert all_are(h2, RUNNING) and all_are(h3, RUNNING)
    stamps = {name: runs.host(name)["scheduler"] for name in ("h1", "h2")}
    assert (stamps["h1"]["ours"], stamps["h2"]["ours"]) == (False, True)
    assert [job["id"] for job in stamps["h2"]["jobs"]] == [long]

    # What the message said: the limit is raised, the same command finishes.
    cluster.update(f"JobId={short}", "TimeLimit=+120")
    drain(cluster, runs, "all").ok()
    assert runs.outcomes() == dict.fromkeys(("h1", "h2", "h3"), "finished")
    assert cluster.is_free("h3") and cluster.job(short) == "RUNNING"
    assert cluster.finish(h2, "long", long) == "COMPLETED"
    assert cluster.finish(h3, "short", short) == "COMPLETED"


def test_what_would_end_a_job_is_refused_and_a_drain_that_fails_is_taken_back(cluster: Cluster, runs: Runs) -> None:
    """h2 would be written to the disk with its job on it. h3 has a process that can't be suspended."""
    _h1, h2, h3 = cluster.labs
    number = cluster.submit(h2, "train")
    h3.one("managed", sum=False)
    host_vars = {"h2": {"gpu_drain_mode": "disk", "gpu_drain_store": "/var/lib/gpufleet/images"}}
    failed = drain(cluster, runs, "h2,h3", host_vars=host_vars)
    failed.fails(f"Slurm job {number} (train) of root", "allow: [slurm_step]", "uvm_managed")
    assert runs.outcomes() == {"h2": "undone", "h3": "undone"}
    assert cluster.is_free("h2") and cluster.is_free("h3")
    assert not drains(h2, "closed IS NULL") and not drains(h3, "closed IS NULL")
    assert cluster.job(number) == "RUNNING" and all_are(h2, RUNNING)
    assert cluster.finish(h2, "train", number) == "COMPLETED"


def slurm(state: str, node: str = "h2", check: bool = False, **options: Any) -> Task:
    arguments = {"node": node, "state": state, "run_id": "r1", **options}
    task = {"name": f"{state} {arguments['run_id']}", "gpufleet.checkpoint.slurm_node": arguments}
    return {**task, "check_mode": check, "ignore_errors": True}


def test_the_module_by_itself(cluster: Cluster) -> None:
    """From another node, and as what is not root."""
    h1, h2, _h3 = cluster.labs
    number = cluster.submit(h2, "train", 30)
    nobody = {"become": True, "become_user": "nobody"}
    results: list[Result] = h1.play(
        slurm("drained", window=60, check=True),
        {**slurm("drained", window=60), **nobody},
        slurm("drained", mode="disk"),
        slurm("drained", reboots=True),
        slurm("drained", window=3600),
        slurm("drained", node="nosuch"),
        slurm("drained", scontrol="/nonexistent/scontrol"),
        slurm("drained", window=3600, allow=["slurm_time_limit"]),
        slurm("drained", window=60),
        slurm("drained", window=60, run_id="r2"),
        slurm("released", run_id="r2"),
        slurm("released", check=True),
        slurm("released", run_id="r2", runs=["r1"]),
        slurm("released"),
    )
    foreseen, denied, disk, reboot, limit, unknown, missing, done, again, other, not_theirs, would, gone, over = results
    assert foreseen.ok(changed=True).data["after"] == "MIXED+DRAIN"
    denied.refused("Invalid user id", "become: true")
    for refused, words in ((disk, "to the disk"), (reboot, "reboots the host")):
        refused.refused(f"Slurm job {number} (train) of root", words, "allow: [slurm_step]", "Nothing was changed")
    limit.refused("before the window does", f"JobId={number} TimeLimit=+", "allow: [slurm_time_limit]")
    unknown.refused("nosuch not found", "scontrol show node")
    missing.refused("/nonexistent/scontrol is no executable file", "gpu_drain_scheduler_delegate")
    assert [finding["severity"] for finding in done.ok(changed=True).data["findings"]] == ["warning"]
    assert (done.data["before"], done.data["after"], done.data["reason"]) == ("MIXED", "MIXED+DRAIN", "gpufleet r1")
    assert again.ok(changed=False).data["ours"] is True
    assert (other.ok(changed=False).data["ours"], other.data["left"], other.data["reason"]) == (
        False,
        True,
        "gpufleet r1",
    )
    assert not_theirs.ok(changed=False).data["left"] is True
    assert would.ok(changed=True).data["text"] == "it would be released"
    assert gone.ok(changed=True).data["before"] == "MIXED+DRAIN"
    assert over.ok(changed=False).data["text"] == "it is not drained"
    assert cluster.is_free("h2") and cluster.job(number) == "RUNNING"
    assert cluster.finish(h2, "train", number) == "COMPLETED"


def test_a_node_that_slurm_gave_up_during_its_reboot_is_released(cluster: Cluster) -> None:
    """Slurm appends to the reason then: `gpufleet r1 : Not responding`."""
    h1, h2, _h3 = cluster.labs
    (drained,) = h1.play(slurm("drained"))
    drained.ok(changed=True)
    h2.host.sh("systemctl stop slurmd")
    h1.host.sh(
        "cp /etc/slurm/slurm.conf /run/slurm.conf; echo SlurmdTimeout=2 >> /etc/slurm/slurm.conf; scontrol reconfigure"
    )
    try:
        h1.wait_for("Slurm to give it up", lambda: "Not responding" in cluster.reason("h2"))
        assert cluster.reason("h2") == "gpufleet r1 : Not responding"
    finally:
        h1.host.sh("cp /run/slurm.conf /etc/slurm/slurm.conf; scontrol reconfigure")
        h2.host.sh("systemctl start slurmd")
    h1.wait_for("the node to answer", lambda: "NOT_RESPONDING" not in cluster.state("h2"))
    assert cluster.state("h2") == "DOWN+DRAIN"
    (released,) = h1.play(slurm("released"))
    assert released.ok(changed=True).data["ours"] is False
    assert cluster.is_free("h2")


def test_partitions_are_groups_of_an_inventory(cluster: Cluster, runs: Runs) -> None:
    """Asked over SSH, as from a controller outside of the cluster."""
    fleet = cluster.controller.fleet
    source = runs.directory / "slurm.yml"
    command = [str(fleet.directory / "ssh"), "h1", "scontrol"]
    source.write_text(json.dumps({"plugin": "gpufleet.checkpoint.slurm", "command": command, "gpus_only": False}))
    cluster.update("NodeName=h2", "State=DRAIN", "Reason={{ lookup('pipe', 'false') }}")
    variables = {"gpu_drain_scheduler": "slurm"}
    limit = "slurm_partition_main:!h1"
    plan = Drain(fleet, "plan", runs, "-i", str(source), limit=limit, variables=variables).ok()
    assert set(plan.recap()) == {"h2", "h3"}
    plan.says("somebody else has drained it", "lookup('pipe', 'false')")
