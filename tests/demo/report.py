# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges what the demo saw: a table, and every way in which a process did not come back as it was.

usage: report.py DIRECTORY      with HOST.MOMENT.json for each host and moment, as tests/demo/look.yml writes them
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOMENTS = ("before", "suspended", "still_suspended", "after")
GONE = "gone"
WHILE_SUSPENDED = {"memory": "checkpointed", "disk": GONE}


@dataclass(frozen=True)
class Look:
    """A process at one moment. start_time: 0 when there is none."""

    counter: int
    state: str
    start_time: int
    stopped: bool
    vram_mib: int


@dataclass(frozen=True)
class Job:
    host: str
    mode: str
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
    """Of one host: what was seen of it, by moment."""
    jobs = []
    before = seen["before"]
    for index, pid in enumerate(before["pids"]):
        looks = {}
        for moment in MOMENTS:
            look = seen[moment]
            stat = look["stats"][index]
            looks[moment] = Look(
                counter=int(look["counters"][index]),
                state=look["states"].get(str(pid), "without CUDA") if stat else GONE,
                start_time=start_time(stat) if stat else 0,
                stopped=bool(stat) and is_stopped(stat),
                vram_mib=vram_of(pid, look["apps"]),
            )
        sums = [seen[moment]["sums"][index] for moment in ("before", "after")]
        jobs.append(Job(before["host"], before["mode"], before["names"][index], pid, looks, *sums))
    return jobs


def problems_of(job: Job) -> list[str]:
    before, suspended, still, after = (job.looks[moment] for moment in MOMENTS)
    meanwhile = WHILE_SUSPENDED[job.mode]
    wanted = dict(zip(MOMENTS, ("running", meanwhile, meanwhile, "running"), strict=True))
    found = [
        f"was {look.state} {moment.replace('_', ' ')}, not {wanted[moment]}"
        for moment, look in job.looks.items()
        if look.state != wanted[moment]
    ]
    if before.vram_mib <= 0:
        found.append("held no GPU memory while it ran")
    if after.stopped:
        found.append("is still stopped")
    for look in (suspended, still):
        if not look.stopped and look.state != GONE:
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
    if job.mode == "memory" and not is_same(job):
        found.append(f"PID {job.pid} is another process now: the start times differ")
    return [f"{job.host} {job.name} (PID {job.pid}): {problem}" for problem in found]


def is_same(job: Job) -> bool:
    """Whether it was one process all the time: what comes back from disk starts anew under its PID."""
    return len({look.start_time for look in job.looks.values()}) == 1


def boots_problems_of(seen: dict[str, Any]) -> list[str]:
    booted = seen["before"]["boot_id"] != seen["after"]["boot_id"]
    if booted == seen["before"]["reboot"]:
        return []
    return [f"{seen['before']['host']}: {'rebooted' if booted else 'did not reboot: its boot id is the same'}"]


def gpu_mib(seen: dict[str, Any], moment: str) -> int:
    return sum(int(line) for line in seen[moment]["gpu_used_mib"])


def gpu_problems_of(seen: dict[str, Any], jobs: list[Job]) -> list[str]:
    """The host's GPUs as a whole: what its processes gave back has to be free for others."""
    before, suspended, still, after = (gpu_mib(seen, moment) for moment in MOMENTS)
    free = before - sum(job.looks["before"].vram_mib for job in jobs)
    found = []
    if suspended > free or still > free:
        found.append(f"{max(suspended, still)} MiB of GPU memory in use while all were suspended, expected {free} MiB")
    if after != before:
        found.append(f"{after} MiB of GPU memory in use in the end, {before} MiB before")
    return [f"{seen['before']['host']}: {problem}" for problem in found]


def table_of(jobs: list[Job]) -> str:
    head = [
        ["", "", "", "", "", "GPU memory, MiB", "counter", "", ""],
        [
            "host",
            "mode",
            "job",
            "PID",
            "state",
            "before/suspended/after",
            "before/suspended/after",
            "checksum",
            "process",
        ],
    ]
    body = []
    for job in jobs:
        before, suspended, _still, after = (job.looks[moment] for moment in MOMENTS)
        body.append(
            [
                job.host,
                job.mode,
                job.name,
                str(job.pid),
                after.state,
                f"{before.vram_mib} / {suspended.vram_mib} / {after.vram_mib}",
                f"{before.counter} / {suspended.counter} / {after.counter}",
                "equal" if job.sum_before and job.sum_before == job.sum_after else "DIFFERS",
                {("memory", False): "ANOTHER", ("disk", False): "from its image"}.get((job.mode, is_same(job)), "same"),
            ]
        )
    rows = head + body
    widths = [max(len(row[column]) for row in rows) for column in range(len(head[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines[:2], "-" * max(map(len, lines)), *lines[2:]])


def read(directory: Path) -> list[dict[str, Any]]:
    """What was seen, by moment, of each host in turn."""
    hosts = sorted({file.name.split(".")[0] for file in directory.glob("*.*.json")})
    return [
        {moment: json.loads((directory / f"{host}.{moment}.json").read_text()) for moment in MOMENTS} for host in hosts
    ]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    hosts = read(Path(arguments[0]))
    jobs = [job for seen in hosts for job in jobs_of(seen)]
    problems = [problem for job in jobs for problem in problems_of(job)]
    wrong = len({problem.partition(":")[0] for problem in problems})
    for seen in hosts:
        problems += gpu_problems_of(seen, jobs_of(seen)) + boots_problems_of(seen)
    print(table_of(jobs))
    for seen in hosts:
        used = " / ".join(str(gpu_mib(seen, moment)) for moment in ("before", "suspended", "after"))
        booted = ", rebooted meanwhile" if seen["before"]["boot_id"] != seen["after"]["boot_id"] else ""
        print(f"{seen['before']['host']}: GPU memory in use before / suspended / after: {used} MiB{booted}")
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    print(f"\nprocesses: {len(jobs) - wrong} passed, {wrong} failed")
    return 1 if problems or not jobs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
