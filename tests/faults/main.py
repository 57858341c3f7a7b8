# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The matrix from the command line: what was injected, survived and lost."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.drain.drainlab import on_each, runs
from tests.faults.batch import Batch
from tests.faults.kinds import FAULTS
from tests.faults.matrix import Scenario, batches, every, sample
from tests.faults.points import WAYS
from tests.faults.verdict import Outcome
from tests.system.lab import Lab, build_simulator, labs
from tests.system.striking import prepare


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--hosts", type=int, default=16, help="how many faults one playbook meets (%(default)s)")
    parser.add_argument("--way", action="append", choices=WAYS, help="only these")
    parser.add_argument("--fault", action="append", choices=[fault.name for fault in FAULTS], help="only these")
    parser.add_argument("--sample", type=int, default=0, help="so many, chosen by --seed; 0 for all")
    parser.add_argument("--seed", type=int, default=1, help="%(default)s")
    parser.add_argument("--list", action="store_true", help="name them, and do nothing")
    parser.add_argument("--record", type=Path, help="a file for what came of each, as JSON")
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> tuple[Scenario, ...]:
    found = sample(options.seed, options.sample) if options.sample else every()
    return tuple(
        one
        for one in found
        if (not options.way or one.point.way in options.way) and (not options.fault or one.fault.name in options.fault)
    )


def go_through(fleet: Sequence[Lab], scenarios: Sequence[Scenario]) -> list[Outcome]:
    on_each(fleet, prepare)
    outcomes: list[Outcome] = []
    for batch in batches(scenarios, len(fleet)):
        began = time.monotonic()
        with runs() as own:
            found = Batch(fleet, batch, own).run()
        outcomes += found
        print(f"--- {batch[0].point.way}, {len(batch)} hosts, {time.monotonic() - began:.0f} s", flush=True)
        for outcome in found:
            print(outcome.line(), flush=True)
    return outcomes


def main() -> int:
    options = parsed(sys.argv[1:])
    scenarios = chosen(options)
    if options.list:
        print("\n".join(map(str, scenarios)))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        simulator = build_simulator(Path(directory) / "root")
        hosts = min(options.hosts, len(scenarios))
        with labs(simulator, "--gpus", "1", "--vram", "512", hosts=hosts) as fleet:
            outcomes = go_through(fleet, scenarios)
    injected = [one for one in outcomes if one.fired]
    broken = [one for one in injected if one.problems]
    ended = sum(len(one.ended) for one in injected)
    print(
        f"{len(injected)} faults injected, {len(injected) - len(broken)} survived, {len(broken)} not; "
        f"{ended} processes ended by the fault itself; {len(outcomes) - len(injected)} points not reached"
    )
    if options.record:
        told = [
            {
                "way": one.scenario.point.way,
                "point": str(one.scenario.point),
                "fault": one.scenario.fault.name,
                "fired": one.fired,
                "ended": one.ended,
                "problems": one.problems,
            }
            for one in outcomes
        ]
        options.record.write_text(json.dumps(told, indent=1) + "\n")
    return 1 if broken or len(injected) < len(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
