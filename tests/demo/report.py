# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges what the demo's playbook saw: a table, and every way in which a process did not come back as it was.

usage: report.py FILE...      one JSON file per host, as tests/demo/demo.yml writes it
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOMENTS = ("before", "suspended", "still_suspended", "after")
STATES = {"before": "running", "suspended": "checkpointed", "still_suspended": "checkpointed", "after": "running"}


@dataclass(frozen=True)
class Look:
    """A process at one moment."""

    counter: int
    state: str
    start_time: int
    stopped: bool
    vram_mib: int


@dataclass(frozen=True)
class Job:
    host: str
    name: str
    pid: int
    looks: dict[str, Look]
    sum_before: str
    sum_after: str


def start_time(stat: str) -> int:
    """Clock ticks after boot. A command name may hold blanks and parentheses, so count from the last one."""
    return int(stat.rpartition(")")[2].split()[19])


def is_stopped(stat: str) -> bool:
    """By job control, or held by a tracer."""
    return stat.rpartition(")")[2].split()[0] in "Tt"


def vram_of(pid: int, apps: list[str]) -> int:
    """0 for a process that nvidia-smi does not list: it holds no GPU memory."""
    rows = [[int(cell) for cell in line.split(",")] for line in apps if line.strip()]
    return sum(mib for listed, mib in rows if listed == pid)


def jobs_of(seen: dict[str, Any]) -> list[Job]:
    """One host's file."""
    jobs = []
    for index, pid in enumerate(seen["pids"]):
        looks = {
            moment: Look(
                counter=int(look["counters"][index]),
                state=look["states"][index],
                start_time=start_time(look["stats"][index]),
                stopped=is_stopped(look["stats"][index]),
                vram_mib=vram_of(pid, look["apps"]),
            )
            for moment, look in seen["seen"].items()
        }
        sums = seen["sums"]
        jobs.append(
            Job(seen["host"], seen["jobs"][index]["name"], pid, looks, sums["before"][index], sums["after"][index])
        )
    return jobs


def problems_of(job: Job) -> list[str]:
    before, suspended, still, after = (job.looks[moment] for moment in MOMENTS)
    found = [
        f"was {look.state} {moment.replace('_', ' ')}, not {STATES[moment]}"
        for moment, look in job.looks.items()
        if look.state != STATES[moment]
    ]
    if before.vram_mib <= 0:
        found.append("held no GPU memory while it ran")
    if after.stopped:
        found.append("is still stopped")
    for look in (suspended, still):
        if not look.stopped:
            found.append("was not stopped while suspended")
        if look.vram_mib:
            found.append(f"held {look.vram_mib} MiB of GPU memory while suspended")
    if after.vram_mib != before.vram_mib:
        found.append(f"holds {after.vram_mib} MiB of GPU memory, {before.vram_mib} MiB before")
    if still.counter != suspended.counter:
        found.append(f"counted while suspended, from {suspended.counter} to {still.counter}")
    if not before.counter <= suspended.counter < after.counter:
        found.append(f"did not count on: {before.counter}, suspended {suspended.counter}, after {after.counter}")
    if not job.sum_before or job.sum_before != job.sum_after:
        found.append(f"its GPU memory changed: checksum {job.sum_before!r} before, {job.sum_after!r} after")
    if len({look.start_time for look in job.looks.values()}) != 1:
        found.append(f"PID {job.pid} is another process now: the start times differ")
    return [f"{job.host} {job.name} (PID {job.pid}): {problem}" for problem in found]


def gpu_mib(seen: dict[str, Any], moment: str) -> int:
    return sum(int(line) for line in seen["seen"][moment]["gpu_used_mib"])


def gpu_problems_of(seen: dict[str, Any], jobs: list[Job]) -> list[str]:
    """The host's GPUs as a whole: what its processes gave back has to be free for others."""
    before, suspended, still, after = (gpu_mib(seen, moment) for moment in MOMENTS)
    free = before - sum(job.looks["before"].vram_mib for job in jobs)
    found = []
    if suspended > free or still > free:
        found.append(f"{max(suspended, still)} MiB of GPU memory in use while all were suspended, expected {free} MiB")
    if after != before:
        found.append(f"{after} MiB of GPU memory in use in the end, {before} MiB before")
    return [f"{seen['host']}: {problem}" for problem in found]


def table_of(jobs: list[Job]) -> str:
    head = [
        ["", "", "", "", "GPU memory, MiB", "counter", "", ""],
        ["host", "job", "PID", "state", "before/suspended/after", "before/suspended/after", "checksum", "process"],
    ]
    body = []
    for job in jobs:
        before, suspended, _still, after = (job.looks[moment] for moment in MOMENTS)
        body.append(
            [
                job.host,
                job.name,
                str(job.pid),
                after.state,
                f"{before.vram_mib} / {suspended.vram_mib} / {after.vram_mib}",
                f"{before.counter} / {suspended.counter} / {after.counter}",
                "equal" if job.sum_before and job.sum_before == job.sum_after else "DIFFERS",
                "same" if len({look.start_time for look in job.looks.values()}) == 1 else "ANOTHER",
            ]
        )
    rows = head + body
    widths = [max(len(row[column]) for row in rows) for column in range(len(head[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines[:2], "-" * max(map(len, lines)), *lines[2:]])


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    hosts = [json.loads(Path(file).read_text()) for file in arguments]
    jobs = [job for seen in hosts for job in jobs_of(seen)]
    problems = [problem for job in jobs for problem in problems_of(job)]
    wrong = len({problem.partition(":")[0] for problem in problems})
    for seen in hosts:
        problems += gpu_problems_of(seen, jobs_of(seen))
    print(table_of(jobs))
    for seen in hosts:
        used = " / ".join(str(gpu_mib(seen, moment)) for moment in ("before", "suspended", "after"))
        print(f"{seen['host']}: GPU memory in use before / suspended / after: {used} MiB")
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    print(f"\nprocesses: {len(jobs) - wrong} passed, {wrong} failed")
    return 1 if problems or not jobs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
