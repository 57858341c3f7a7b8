# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks suspend and restore beside plain shell tasks per process, in turn, over the same hosts and processes.

What is timed: the whole ansible-playbook, from its start to its end, with the same forks and pipelining.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "build/tree"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.system.hosts import ROOT, Fleet
from tests.system.lab import Lab, Workload, labs
from tests.system.playing import environment

SUSPEND, RESTORE = "suspend", "restore"
ROLES, SAME, CHECKED, BARE = "roles", "same work", "checked", "bare"
#: Shell tasks per process, by way and direction. `bare` is what cuda-checkpoint needs. `checked` reads the state before
#: and after. `same work` is also what else the roles do for each process: know it again, see that it can be suspended
#: and that there is room, write down each step before it is taken, stop it while it has no GPU, prove the result.
NOTED = "/run/bench-fleet"
IDENTITY = f"""test "$(cut -d ' ' -f 22 /proc/{{{{ item }}}}/stat)" = "$(cat {NOTED}/{{{{ item }}}}.start)\""""
USED = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits | grep '^{{ item }},'"
MEMORY_BEFORE = (
    f"test $(cut -d ' ' -f 2 {NOTED}/{{{{ item }}}}.used) -lt "
    "$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)"
)
ROOM_BEFORE = (
    f"test $(cut -d ' ' -f 2 {NOTED}/{{{{ item }}}}.used) -le "
    "$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits)"
)
LOCK, CHECKPOINT, RESUME, UNLOCK = (
    f"cuda-checkpoint --action {action} --pid {{{{ item }}}}" for action in ("lock", "checkpoint", "restore", "unlock")
)


def state(wanted: str) -> str:
    return f'test "$(cuda-checkpoint --get-state --pid {{{{ item }}}})" = {wanted}'


def note(step: str) -> str:
    return f"echo {step} >>{NOTED}/{{{{ item }}}} && sync {NOTED}/{{{{ item }}}}"


STEPS: dict[str, dict[str, tuple[str, ...]]] = {
    BARE: {SUSPEND: (LOCK, CHECKPOINT), RESTORE: (RESUME, UNLOCK)},
    CHECKED: {
        SUSPEND: (state("running"), LOCK, CHECKPOINT, state("checkpointed")),
        RESTORE: (state("checkpointed"), RESUME, UNLOCK, state("running")),
    },
    SAME: {
        SUSPEND: (
            f"mkdir -p {NOTED} && cut -d ' ' -f 22 /proc/{{{{ item }}}}/stat >{NOTED}/{{{{ item }}}}.start",
            "grep -q '^TracerPid:.0$' /proc/{{ item }}/status && ! grep -q '^State:.[tTZ]' /proc/{{ item }}/status",
            f"{USED} >{NOTED}/{{{{ item }}}}.used",
            MEMORY_BEFORE,
            state("running"),
            note("lock"),
            LOCK,
            note("checkpoint"),
            CHECKPOINT,
            "kill -STOP {{ item }}",
            "! ls -l /proc/{{ item }}/fd | grep /dev/nvidia",
            note("suspended"),
        ),
        RESTORE: (
            IDENTITY,
            ROOM_BEFORE,
            note("restore"),
            "kill -CONT {{ item }}",
            state("checkpointed"),
            RESUME,
            note("unlock"),
            UNLOCK,
            state("running"),
            note("restored"),
        ),
    },
}
SHELLS = (SAME, CHECKED, BARE)


def shell(steps: Sequence[str]) -> list[dict[str, Any]]:
    """A play with a task for each step, and in it an execution for each process."""
    find = {"name": "find", "ansible.builtin.shell": "pgrep -x gpusim-workload", "register": "found"}
    tasks = [
        {"name": f"step {number}", "ansible.builtin.shell": step, "loop": "{{ found.stdout_lines }}"}
        for number, step in enumerate(steps, 1)
    ]
    return [{"hosts": "all", "gather_facts": False, "tasks": [find, *tasks]}]


@dataclass(frozen=True)
class Taken:
    """Seconds of a playbook, seconds of CPU time that it took on the controller, and remote executions by host."""

    seconds: float
    processor: float
    executions: dict[str, int]


def processor_time() -> float:
    """Of all children that have ended, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(fleet: Fleet, playbook: str, directory: Path, forks: int) -> Taken:
    trips = directory / "trips"
    trips.write_text("")
    began, before = time.monotonic(), processor_time()
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(fleet.inventory), playbook],
        env=environment(
            ANSIBLE_FORKS=str(forks),
            ANSIBLE_CALLBACKS_ENABLED="roundtrips",
            ANSIBLE_CALLBACK_PLUGINS=str(ROOT / "tests/drain/callback_plugins"),
            ROUNDTRIPS_FILE=str(trips),
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{playbook}: {done.stdout}{done.stderr}")
    found: dict[str, int] = {}
    for line in trips.read_text().splitlines():
        told = json.loads(line)
        found[told["host"]] = found.get(told["host"], 0) + told["times"]
    return Taken(seconds, processor_time() - before, found)


def measure(every: Sequence[Lab], arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    fleet = every[0].host.fleet
    playbooks = {(ROLES, direction): f"gpufleet.checkpoint.{direction}" for direction in (SUSPEND, RESTORE)}
    for way in SHELLS:
        for direction, steps in STEPS[way].items():
            path = directory / f"{way}-{direction}.yml"
            path.write_text(json.dumps(shell(steps)))
            playbooks[way, direction] = str(path)
    ways = [ROLES, *(way for way in SHELLS if way in arguments.way or not arguments.way)]
    found: dict[str, dict[str, Any]] = {
        way: {direction: {"seconds": [], "processor": [], "executions": 0} for direction in (SUSPEND, RESTORE)}
        for way in ways
    }
    for number in range(arguments.rounds + 1):
        # The first round opens connections and compiles the modules on the hosts; a shell has nothing to warm up.
        for way in ways if number else ways[:1]:
            for direction in (SUSPEND, RESTORE):
                taken = run(fleet, playbooks[way, direction], directory, arguments.forks)
                trips = taken.executions
                if len(trips) != len(every) or len(set(trips.values())) != 1:
                    raise SystemExit(f"{way} {direction}: not the same on all hosts: {trips}")
                told = found[way][direction]
                told["executions"] = trips[every[0].host.name]
                if number:
                    told["seconds"].append(taken.seconds)
                    told["processor"].append(taken.processor)
                print(f"round {number}: {way}, {direction}: {taken.seconds:.1f} s", file=sys.stderr, flush=True)
    for told in found.values():
        told["both"] = [sum(pair) for pair in zip(told[SUSPEND]["seconds"], told[RESTORE]["seconds"], strict=True)]
    ratio = {way: statistics.median(found[way]["both"]) / statistics.median(found[ROLES]["both"]) for way in ways[1:]}
    return {
        "hosts": len(every),
        "processes": arguments.processes,
        "forks": arguments.forks,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "found": found,
        "ratio": ratio,
    }


def table(found: dict[str, Any]) -> str:
    hosts, each = found["hosts"], found["processes"]
    lines = [
        f"{hosts} hosts with {each} processes each, {found['forks']} forks, {found['cores']} cores",
        f"load at the end {found['load'][0]:.1f}; medians of {len(found['found'][ROLES]['both'])} rounds, in seconds",
        "",
        f"{'way':14} {'suspend':>9} {'restore':>9} {'both':>9} {'controller CPU':>15} {'executions per host':>20}",
    ]
    for way, told in found["found"].items():
        seconds = [statistics.median(told[one]["seconds"]) for one in (SUSPEND, RESTORE)]
        executions = " + ".join(str(told[one]["executions"]) for one in (SUSPEND, RESTORE))
        processor = sum(statistics.median(told[one]["processor"]) for one in (SUSPEND, RESTORE))
        both = statistics.median(told["both"])
        lines.append(f"{way:14} {seconds[0]:9.1f} {seconds[1]:9.1f} {both:9.1f} {processor:15.1f} {executions:>20}")
    lines.append("")
    for way, value in found["ratio"].items():
        lines.append(f"{way} takes {value:.2f} times as long as the roles")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/fleet", description="Needs root.")
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--processes", type=int, default=4, help="on each host (4)")
    parser.add_argument("--rounds", type=int, default=3, help="of each way, after one for warm-up (3)")
    parser.add_argument("--forks", type=int, default=16)
    parser.add_argument("--sim", type=Path, default=ROOT / "build/sim/root", help="what tests/sim/build made")
    parser.add_argument("--record", type=Path, metavar="FILE", help="all numbers, as JSON")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help=f"fail below this ratio of '{SAME}'")
    parser.add_argument("--way", action="append", default=[], choices=SHELLS, help="beside the roles; all if not given")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as temporary,
        labs(arguments.sim, "--gpus", "1", "--vram", "1024", hosts=arguments.hosts) as every,
        ThreadPoolExecutor(8) as pool,
    ):
        # Their counters would take the machine's cores from what is measured.
        work = [Workload(vram=16, wrap=("nice", "-n", "19"), options=("--kernel-ms", "100"))] * arguments.processes
        list(pool.map(lambda lab: lab.start(*work), every))
        found = measure(every, arguments, Path(temporary))
        problems = [problem for told in pool.map(lambda lab: lab.problems(), every) for problem in told]
        list(pool.map(lambda lab: lab.end(*lab.jobs), every))
    if problems:
        raise SystemExit("not as it was: " + "; ".join(problems))
    if arguments.record:
        arguments.record.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 1 if arguments.least and found["ratio"].get(SAME, 0) < arguments.least else 0


if __name__ == "__main__":
    sys.exit(main())
