# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The matrix from the command line: what was injected, survived and lost."""

from __future__ import annotations

import argparse
import signal
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
from tests.faults.record import Entry, commit, entry, missing, read, told, write
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
    parser.add_argument("--record", type=Path, help="a file for what came of each, as JSON, written after each batch")
    parser.add_argument("--go-on", action="store_true", help="leave out what the record says was survived")
    options = parser.parse_args(arguments)
    if options.go_on and not options.record:
        parser.error("--go-on needs --record")
    return options


def chosen(options: argparse.Namespace) -> tuple[Scenario, ...]:
    found = sample(options.seed, options.sample) if options.sample else every()
    return tuple(
        one
        for one in found
        if (not options.way or one.point.way in options.way) and (not options.fault or one.fault.name in options.fault)
    )


def go_through(fleet: Sequence[Lab], scenarios: Sequence[Scenario], kept: Sequence[Entry], path: Path | None) -> None:
    """kept: what is in the record already; those that are injected again take its place."""
    on_each(fleet, prepare)
    at = commit()
    entries = {one.scenario: one for one in kept}
    for batch in batches(scenarios, len(fleet)):
        began = time.monotonic()
        with runs() as own:
            found = _run(Batch(fleet, batch, own))
        print(f"--- {batch[0].point.way}, {len(batch)} hosts, {time.monotonic() - began:.0f} s", flush=True)
        for outcome in found:
            print(outcome.line(), flush=True)
        entries.update({str(one.scenario): entry(one, at) for one in found})
        if path:
            write(path, entries.values())
    last = list(entries.values())
    print(told(last))
    if not all(one.survived for one in last):
        sys.exit(1)


def _run(batch: Batch) -> list[Outcome]:
    """A batch that breaks off has survived nothing, and the next one runs."""
    try:
        return batch.run()
    except AssertionError as error:
        for outcome in batch.outcomes.values():
            outcome.problems.append(f"the batch broke off: {str(error)[-600:]}")
        return list(batch.outcomes.values())


def main() -> None:
    options = parsed(sys.argv[1:])
    kept = read(options.record) if options.go_on else ()
    scenarios = missing(chosen(options), kept)
    if options.list:
        print("\n".join(map(str, scenarios)))
        return
    # An interrupted run takes its hosts down, too.
    signal.signal(signal.SIGTERM, lambda *_ignored: sys.exit(1))
    with tempfile.TemporaryDirectory() as directory:
        simulator = build_simulator(Path(directory) / "root")
        hosts = max(1, min(options.hosts, len(scenarios)))
        with labs(simulator, "--gpus", "1", "--vram", "512", "--disk", "1536", hosts=hosts) as fleet:
            go_through(fleet, scenarios, kept, options.record)


if __name__ == "__main__":
    main()
