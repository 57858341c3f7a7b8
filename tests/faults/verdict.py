# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to hold after a fault: `status` says of each process what /proc says; after `recover` each process runs with
its memory as it was, but for those that the fault itself ended, and these are named; nothing half done is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.drain.drainlab import GONE, SUSPENDED, drains, states
from tests.faults.kinds import COSTS
from tests.faults.matrix import Scenario
from tests.system.lab import Job, Lab
from tests.system.playing import Result

STORE = "/var/lib/gpufleet/images"
#: In these the row of a drain has to agree with its processes.
TOLD = ("suspending", "suspended", "restoring", "restored")


@dataclass
class Outcome:
    """fired: the point was reached. ended: processes that the fault itself ended. problems: what should not be."""

    scenario: Scenario
    host: str
    fired: bool = False
    ended: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        seen = "; ".join(self.problems) or ("survived" if self.fired else "never reached")
        ended = f" (ended by the fault: {', '.join(self.ended)})" if self.ended else ""
        return f"{self.host} {self.scenario}: {seen}{ended}"


def untrue(told: Result, truth: Mapping[str, str], jobs: Sequence[Job]) -> list[str]:
    """What `status` says of a host otherwise than /proc. truth: by the name of the job."""
    names = {job.pid: job.name for job in jobs}
    listed = {one["pid"]: one["state"] for one in told.data["cuda"]}
    found = [
        f"PID {pid} is {truth[name]}, and listed as {listed.get(pid, GONE)}"
        for pid, name in names.items()
        if listed.get(pid, GONE) != truth[name]
    ]
    drain = told.data.get("drain") or {}
    if drain.get("phase") not in TOLD:
        return found
    waiting = any(image["state"] in ("unspent", "restoring") for image in drain["images"])
    for one in drain["processes"]:
        pid, said = one["identity"]["pid"], one["state"]
        real = truth.get(names.get(pid, ""), GONE)
        if said != real and not (said == SUSPENDED and real == GONE and waiting):
            found.append(f"PID {pid} of the drain is {real}, and told as {said}")
    return found


def judge(lab: Lab, outcome: Outcome, text: str) -> None:
    """Once everything was done. text: all that the operator has read."""
    seen = states(lab)
    gone = [job for job in lab.jobs if seen[job.name] == GONE]
    allowed = COSTS[outcome.scenario.fault.costs] if outcome.fired else 0
    if len(gone) <= allowed:
        for job in gone:
            job.may_be_gone = "ended by the fault"
            outcome.ended.append(f"PID {job.pid}")
            if f"PID {job.pid}" not in text and f"[{job.pid}]" not in text:
                outcome.problems.append(f"PID {job.pid} is gone, and nobody said so")
    try:
        outcome.problems += lab.problems()
    except AssertionError as error:
        outcome.problems.append(f"could not be looked at: {str(error)[:300]}")
    # There is no store where nothing went to disk.
    partial = lab.host.sh(f"find {STORE} -name '*.partial' 2>/dev/null || true").split()
    outcome.problems += [f"left: {path}" for path in partial]
    outcome.problems += [f"run {row['run_id']} holds the host, {row['phase']}" for row in drains(lab, "closed IS NULL")]
