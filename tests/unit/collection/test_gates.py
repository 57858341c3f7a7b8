# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate runner: one failure fails the whole, a hang ends, an interrupt ends what runs and starts nothing more."""

import sys
import threading
import time
from pathlib import Path

import pytest

from tests.gates.run import Gates, Outcome, main, summary

SCRIPTS = {
    "good": "print('fine')",
    "bad": "import sys; print('broken'); sys.exit(3)",
    "slow": "import time; print('begun', flush=True); time.sleep(600)",
    "stubborn": "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
}


def script(name: str) -> list[str]:
    return [sys.executable, "-c", SCRIPTS[name]]


def test_each_lane_goes_on_after_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = Gates([["bad", "good"]], tmp_path, script).run()
    assert [(outcome.name, outcome.passed) for outcome in outcomes] == [("bad", False), ("good", True)]
    assert outcomes[0].reason == "exit status 3"
    printed = capsys.readouterr().out
    assert "===== gate bad\nbroken\n===== gate bad: exit status 3\n" in printed
    assert "===== gate good\nfine\n===== gate good: passed\n" in printed


@pytest.mark.parametrize("name", ["slow", "stubborn"])
def test_a_gate_that_hangs_is_ended_and_counts_as_failed(name: str, tmp_path: Path) -> None:
    (outcome,) = Gates([[name]], tmp_path, script, limit=1, grace=1).run()
    assert not outcome.passed
    assert outcome.reason == "still running after 1 s, so it was ended"
    assert outcome.seconds < 30


def test_an_interrupt_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    gates = Gates([["slow", "good"]], tmp_path, script)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(gates.run()))
    thread.start()
    deadline = time.monotonic() + 30
    while not (tmp_path / "slow.log").exists() or not (tmp_path / "slow.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    gates.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert [outcome.reason for outcome in outcomes] == ["exit status -15", "not run: interrupted"]


def test_the_last_line_counts() -> None:
    text = summary([Outcome("lint", 4.4, ""), Outcome("unit", 61.0, "exit status 1")])
    assert text.splitlines()[-1] == "1 passed, 1 failed"
    assert "unit      61 s  exit status 1" in text


@pytest.mark.parametrize("arguments", [[], ["lint,"], [""]])
def test_no_gate_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage: run.py" in capsys.readouterr().err
