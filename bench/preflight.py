# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_preflight beside ansible.builtin.setup, alternating, on one simulated host with many processes.

What is timed on the host: from the start to the end of the interpreter that Ansible starts, so start-up, unpacking and
imports are in it, and the connection is not. CPU time is that of the interpreter and everything that it waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "build/tree"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.system.hosts import Host, fleet
from tests.system.playing import Task, play

ROOT = Path(__file__).resolve().parent.parent
TIMED = "/usr/local/bin/timed-python"
TIMES = "/run/preflight-times"
WRAPPER = f"""#!/bin/bash
exec 3>&2
TIMEFORMAT='%3R %3U %3S'
{{ time /usr/bin/python3 "$@" 2>&3; }} 2>>{TIMES}
"""
# What NVML itself takes to answer, as the module asks it: once, in a process of its own. The simulated one walks /proc
# for the first list of processes and remembers what it saw for the next, so that a second look tells nothing.
NVML = """
import pynvml, resource, time
lists = [getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Graphics", "Compute", "MPSCompute")]
pynvml.nvmlInit()
began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    for ask in lists:
        ask(device)
after = resource.getrusage(resource.RUSAGE_SELF)
print(time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""
# Starts as many contexts as it is told, spread over the GPUs, and sleepers until the host has as many processes as it
# is to have.
START = """
contexts=$1 processes=$2 gpus=$3
mkdir -p /run/bench
for number in $(seq 1 "$contexts"); do
    setsid -f gpusim-workload --vram 16 --gpu $((number % gpus)) --out "/run/bench/$number" </dev/null >/dev/null 2>&1
done
for number in $(seq 1 "$contexts"); do
    until [ -s "/run/bench/$number" ]; do sleep 0.1; done
done
# Their counters wake each of them all the time; a machine with two cores has nothing left for what is measured.
[ "$4" = 0 ] || pkill -STOP gpusim-workload
while [ "$(ls -d /proc/[0-9]* | wc -l)" -lt "$processes" ]; do
    setsid -f sleep 1000000 </dev/null >/dev/null 2>&1
done
ls -d /proc/[0-9]* | wc -l
"""


def tasks(rounds: int, options: dict[str, Any]) -> list[Task]:
    interpreter = {"ansible_python_interpreter": TIMED}
    setup: Task = {"name": "setup", "ansible.builtin.setup": {"gather_subset": "min"}, "vars": interpreter}
    preflight: Task = {"name": "preflight", "gpufleet.checkpoint.gpu_preflight": options, "vars": interpreter}
    return [setup, preflight] * rounds


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    up = [
        "--hosts",
        "1",
        "--init",
        "none",
        "--gpus",
        str(arguments.gpus),
        "--vram",
        "1024",
        "--sim",
        str(arguments.sim),
    ]
    with fleet(*up) as one:
        host = Host(one)
        try:
            host.put(TIMED, WRAPPER, "755")
            numbers = [arguments.contexts, arguments.processes, arguments.gpus, int(arguments.stopped)]
            running = host.run("sh", "-c", START, "-", *[str(number) for number in numbers])
            options = {"fail_on": "never", "store": "/var/lib/gpufleet/images", "capabilities": ["suspend", "dump"]}
            results = play(one, *tasks(arguments.rounds + 1, options), seconds=1800)
            nvml = [[float(word) for word in host.run("python3", "-c", NVML).split()] for _attempt in range(5)]
            lines = [[float(word) for word in line.split()] for line in host.run("cat", TIMES).splitlines()]
        finally:
            host.disconnect()
    assert len(lines) == len(results) and all(result.outcome == "ok" for result in results), results
    seen = len(results[-1].data["processes"])
    assert seen == arguments.contexts, f"{seen} processes in the report, not {arguments.contexts}"
    found = {}
    for number, (what, values) in enumerate(
        {"wall": [line[0] for line in lines], "cpu": [line[1] + line[2] for line in lines]}.items()
    ):
        share = statistics.median(line[number] for line in nvml)
        both = {"setup": values[2::2], "preflight": values[3::2]}
        found[what] = {
            "seconds": both,
            "median": {name: statistics.median(one) for name, one in both.items()},
            "ratio": statistics.median(both["preflight"]) / statistics.median(both["setup"]),
            "nvml": share,
            "ratio without nvml": (statistics.median(both["preflight"]) - share) / statistics.median(both["setup"]),
        }
    return {
        "processes": int(running),
        "contexts": seen,
        "gpus": len(results[-1].data["gpus"]),
        "cores": os.cpu_count(),
        "stopped": arguments.stopped,
        "found": found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/preflight", description="Needs root.")
    parser.add_argument("--processes", type=int, default=500, help="on the host (500)")
    parser.add_argument("--contexts", type=int, default=40, help="that hold a CUDA context (40)")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10, help="of both modules, after one for warm-up (10)")
    parser.add_argument("--stopped", action="store_true", help="stop the workloads, so that they take no CPU time")
    parser.add_argument("--sim", type=Path, default=ROOT / "build/sim/root", help="what tests/sim/build made")
    parser.add_argument("--record", type=Path, metavar="FILE", help="all numbers, as JSON")
    parser.add_argument("--most", type=float, default=0.0, metavar="RATIO", help="fail above this ratio of the medians")
    arguments = parser.parse_args()
    found = measure(arguments)
    if arguments.record:
        arguments.record.write_text(json.dumps(found, indent=1) + "\n")
    print(
        f"{found['processes']} processes, {found['contexts']} with CUDA, {found['gpus']} GPUs, {found['cores']} cores"
    )
    for what, numbers in found["found"].items():
        for name, values in numbers["seconds"].items():
            print(
                f"{what:4} {name:9} median {statistics.median(values):.3f} s, {min(values):.3f} to {max(values):.3f} s"
            )
        print(f"{what:4} NVML      median {numbers['nvml']:.3f} s of that are the simulated NVML")
        print(f"{what:4} ratio     {numbers['ratio']:.2f}, without NVML {numbers['ratio without nvml']:.2f}")
    return 1 if arguments.most and found["found"]["wall"]["ratio"] > arguments.most else 0


if __name__ == "__main__":
    sys.exit(main())
