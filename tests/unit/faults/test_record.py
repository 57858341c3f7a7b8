# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What came of the faults is kept, told and counted as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.faults.matrix import every
from tests.faults.record import entry, missing, read, table, told, write
from tests.faults.verdict import Outcome

FIRST, SECOND, THIRD = every()[:3]
SURVIVED = entry(Outcome(FIRST, "h1", fired=True, ended=["PID 7"]), "abc")
LOST = entry(Outcome(SECOND, "h2", fired=True, problems=["PID 8 is gone"]), "abc")
UNREACHED = entry(Outcome(THIRD, "h3"), "abc")
ALL = (SURVIVED, LOST, UNREACHED)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    assert read(path) == ()
    write(path, ALL)
    assert set(read(path)) == set(ALL)


def test_what_was_not_survived_or_not_reached_is_injected_again() -> None:
    assert missing((FIRST, SECOND, THIRD), ALL) == (SECOND, THIRD)
    assert missing((FIRST, SECOND), (replace(LOST, problems=()),)) == (FIRST,)


def test_what_is_told_is_what_is_there() -> None:
    assert told(ALL) == (
        "2 faults injected, 1 survived, 1 not; 1 processes ended by the fault itself; 1 points not reached"
    )


def test_the_table_counts_by_fault_and_way() -> None:
    lines = table(ALL).splitlines()
    last = [cell.strip() for cell in lines[-1].strip("|").split("|")]
    assert last[0] == "**all**" and last[-2:] == ["1/2", "1"]
    assert len({line.count("|") for line in lines}) == 1
    (row,) = [line for line in lines if line.startswith(f"| {FIRST.fault.what} |")]
    assert "1/2" in row
