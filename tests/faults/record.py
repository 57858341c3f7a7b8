# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What came of each scenario, kept in a file from batch to batch, and the table of it in docs/reliability.md.

usage: python -m tests.faults.record RECORD      prints the part of docs/reliability.md that comes from it
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.kinds import FAULTS, LEFT_OUT
from tests.faults.matrix import Scenario, every
from tests.faults.points import UNREACHED, WAYS
from tests.faults.verdict import Outcome
from tests.system.hosts import ROOT


@dataclass(frozen=True)
class Entry:
    """scenario: its name. commit: of the code that it was injected into. ended: how many processes the fault itself
    ended. problems: what should not be."""

    scenario: str
    way: str
    fault: str
    commit: str
    fired: bool
    ended: int
    problems: tuple[str, ...]

    @property
    def survived(self) -> bool:
        return self.fired and not self.problems


def commit() -> str:
    """A file that was changed and not committed makes it -dirty."""
    argv = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def entry(outcome: Outcome, at: str) -> Entry:
    one = outcome.scenario
    return Entry(
        scenario=str(one),
        way=one.point.way,
        fault=one.fault.name,
        commit=at,
        fired=outcome.fired,
        ended=len(outcome.ended),
        problems=tuple(outcome.problems),
    )


def read(path: Path) -> tuple[Entry, ...]:
    """Nothing where it is not there."""
    if not path.exists():
        return ()
    return tuple(Entry(**{**raw, "problems": tuple(raw["problems"])}) for raw in json.loads(path.read_text()))


def write(path: Path, entries: Iterable[Entry]) -> None:
    lines = ",\n".join(json.dumps(asdict(one)) for one in sorted(entries, key=lambda one: one.scenario))
    path.write_text(f"[\n{lines}\n]\n")


def missing(scenarios: Sequence[Scenario], entries: Iterable[Entry]) -> tuple[Scenario, ...]:
    """Those that were never injected, or not survived."""
    done = {one.scenario for one in entries if one.survived}
    return tuple(one for one in scenarios if str(one) not in done)


def told(entries: Sequence[Entry]) -> str:
    injected = [one for one in entries if one.fired]
    survived = sum(one.survived for one in injected)
    ended = sum(one.ended for one in injected)
    return (
        f"{len(injected)} faults injected, {survived} survived, {len(injected) - survived} not; "
        f"{ended} processes ended by the fault itself; {len(entries) - len(injected)} points not reached"
    )


def table(entries: Sequence[Entry]) -> str:
    """Markdown: a line for each fault, a column for each way; "12/12" is survived of injected."""

    def cell(of: Sequence[Entry]) -> str:
        injected = [one for one in of if one.fired]
        return f"{sum(one.survived for one in injected)}/{len(injected)}" if injected else ""

    lines = [f"| fault | {' | '.join(WAYS)} | all | ended by it |", f"|---|{'---|' * (len(WAYS) + 2)}"]
    for fault in FAULTS:
        of = [one for one in entries if one.fault == fault.name]
        cells = [cell([one for one in of if one.way == way]) for way in (*WAYS,)]
        lines.append(f"| {fault.what} | {' | '.join(cells)} | {cell(of)} | {sum(one.ended for one in of) or ''} |")
    cells = [cell([one for one in entries if one.way == way]) for way in WAYS]
    lines.append(f"| **all** | {' | '.join(cells)} | {cell(entries)} | {sum(one.ended for one in entries)} |")
    return "\n".join(lines)


def section(entries: Sequence[Entry], scenarios: Sequence[Scenario]) -> str:
    """Markdown: what came of it, and what is not in it, with the reasons. scenarios: the whole matrix."""
    tried = {one.scenario for one in entries if one.fired}
    commits = ", ".join(f"`{name}`" for name in sorted({one.commit for one in entries}))
    left = [f"- {what}: {why}" for what, why in LEFT_OUT.items()]
    left += [f"- the step `{step}`: {why}" for step, why in UNREACHED.items()]
    whole = f"Of the {len(scenarios)} in the matrix, {sum(str(one) in tried for one in scenarios)}. Commit {commits}."
    return "\n\n".join([f"{told(entries)}. {whole}", table(entries), "Not in the matrix:", "\n".join(left)])


if __name__ == "__main__":
    print(section(read(Path(sys.argv[1])), every()))
