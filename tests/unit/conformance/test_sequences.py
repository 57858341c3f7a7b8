# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The random sequences: reproducible, and broad enough to be worth their time."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.conform.sequences import LENGTH, Step, generate


@pytest.mark.parametrize("backend", ["libcuda", "cli"])
def test_the_same_seed_gives_the_same_steps(backend: str) -> None:
    assert [generate(7, i, backend) for i in range(50)] == [generate(7, i, backend) for i in range(50)]
    assert generate(7, 1, backend) != generate(8, 1, backend)
    assert generate(7, 1, backend) != generate(7, 2, backend)


@pytest.mark.parametrize("backend", ["libcuda", "cli"])
def test_a_stopped_process_is_asked_for_its_restore_thread_only(backend: str) -> None:
    for index in range(500):
        stopped = set()
        for step in generate(1, index, backend):
            target = step.who.split(".")[0]
            if step.op == "stop":
                stopped.add(target)
            elif step.op == "cont":
                stopped.discard(target)
            elif target in stopped:
                assert step.op == "tid", (index, step)
        assert not stopped, index


@pytest.mark.parametrize("backend", ["libcuda", "cli"])
def test_500_sequences_cover_every_call_on_every_kind_of_target(backend: str) -> None:
    seen: Counter[str] = Counter()
    for index in range(500):
        steps = generate(1, index, backend)
        assert len(steps) >= LENGTH
        for step in steps:
            seen[f"{step.op} {'other' if step.who in ('plain', 'dead', 'a.thread') else 'workload'}"] += 1
    for op in ("lock", "checkpoint", "restore", "unlock", "state", "tid"):
        assert seen[f"{op} workload"] > 50, op
        assert seen[f"{op} other"] > 10, op
    assert seen["stop workload"] > 50
    assert seen["sum workload"] > 20
    assert (seen["toggle workload"] > 50) == (backend == "cli")


def test_null_arguments_only_where_they_exist() -> None:
    assert not any(step.args == "null" for i in range(300) for step in generate(1, i, "cli"))
    assert any(step.args == "null" for i in range(300) for step in generate(1, i, "libcuda"))


def test_a_checksum_is_only_asked_where_the_model_says_that_the_process_runs() -> None:
    for index in range(300):
        for step in generate(1, index, "cli"):
            assert step.op != "sum" or step.who in ("a", "b")


def test_text_of_a_step() -> None:
    assert Step("lock", "a", 1000).text == "lock a timeout=1000"
    assert Step("unlock", "b", args="null").text == "unlock b null"
