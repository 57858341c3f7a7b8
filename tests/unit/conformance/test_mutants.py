# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mutations of the simulated driver: applied exactly, judged strictly, and true to the sources of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.conform.registry import load
from tests.conformance.control.hosts import ControlError
from tests.conformance.control.mutants import Mutation, check_all, mutate_text, verdict_of
from tests.conformance.mutations import MUTATIONS

ONE = Mutation("m", "driver/x.c", "return 1;", "return 2;", ("state/table", "who/zombie"))


def test_a_snippet_that_is_there_once_is_replaced() -> None:
    assert mutate_text("int f(void) { return 1; }", ONE) == "int f(void) { return 2; }"


@pytest.mark.parametrize("text", ["", "return 1; return 1;"])
def test_a_snippet_that_is_not_there_once_is_an_error(text: str) -> None:
    with pytest.raises(ControlError, match=r"m: the snippet occurs [02] times in driver/x\.c, not once"):
        mutate_text(text, ONE)


def test_every_named_case_must_differ() -> None:
    report = {"different": {"libcuda state/table": ["  lock w1"], "cli who/zombie": ["  state zombie"]}}
    assert verdict_of(ONE, report, 1).ok
    verdict = verdict_of(ONE, {"different": {"libcuda state/table": ["  lock w1"]}}, 1)
    assert not verdict.ok
    assert verdict.missed == ("who/zombie",)
    assert "no difference in who/zombie" in verdict.text


def test_a_case_that_was_not_reached_caught_nothing() -> None:
    report = {
        "different": {"libcuda state/table": ["- x", "+ not run: the budget was used up"], "cli who/zombie": ["x"]}
    }
    verdict = verdict_of(ONE, report, 1)
    assert not verdict.ok
    assert "not reached" in verdict.trouble


def test_a_run_without_report_caught_nothing() -> None:
    assert not verdict_of(ONE, {}, 1).ok


def test_all_mutations_apply_to_the_simulator_of_today() -> None:
    check_all(MUTATIONS, [case.name for case in load()])
    assert len(MUTATIONS) >= 25


def test_a_mutation_must_name_cases_that_exist(tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "x.c").write_text("return 1;")
    with pytest.raises(ControlError, match="no such case: who/zombie"):
        check_all([ONE], ["state/table"], tmp_path)
    with pytest.raises(ControlError, match="two mutations are called m"):
        check_all([ONE, ONE], ["state/table", "who/zombie"], tmp_path)
