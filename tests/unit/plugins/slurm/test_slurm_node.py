# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What slurm_node does when others act in the same moment, which no real scheduler does on demand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._slurm import Job, Node, SlurmError
from ansible_collections.gpufleet.checkpoint.plugins.modules import slurm_node
from tests.unit.plugins.documentation.returned import problems

IDLE = Node("h2", "IDLE", "", "", None)
OURS = Node("h2", "IDLE+DRAIN", "gpufleet r1", "root", 1796033211)
THEIRS = Node("h2", "IDLE+DRAIN", "disk broken", "ann", 1796033211)
JOB = Job("7", "ann", "RUNNING", None, "train")


class Refused(Exception):
    pass


class Module:
    """What the task is given."""

    def __init__(self, state: str, check: bool = False, **more: Any) -> None:
        spec: dict[str, dict[str, Any]] = dict(slurm_node.ARGUMENTS)  # type: ignore[arg-type]
        self.params = {name: one.get("default") for name, one in spec.items()}
        self.params.update({"node": "h2", "state": state, "run_id": "r1", **more})
        self.check_mode = check
        self.failed: dict[str, Any] = {}

    def fail_json(self, **result: Any) -> None:
        self.failed = result
        raise Refused(result["msg"])


class Scripted:
    """Slurm as it is when asked for the first, second, ... time; the last answer stays."""

    def __init__(self, nodes: list[Node], jobs: list[list[Job]], said: str = "") -> None:
        self.nodes, self.queues, self.said = nodes, jobs, said
        self.done: list[tuple[str, ...]] = []

    def node(self, name: str) -> Node:
        return self.nodes.pop(0) if len(self.nodes) > 1 else self.nodes[0]

    def jobs(self, name: str) -> list[Job]:
        return self.queues.pop(0) if len(self.queues) > 1 else self.queues[0]

    def drain(self, *words: str) -> str:
        self.done.append(("drain", *words))
        return self.said

    def resume(self, *words: str) -> str:
        self.done.append(("resume", *words))
        return self.said


def run(monkeypatch: pytest.MonkeyPatch, slurm: Scripted, module: Module) -> dict[str, Any]:
    monkeypatch.setattr(slurm_node, "Slurm", lambda *_: slurm)
    result: dict[str, Any] = slurm_node.Task(module).run()
    assert not problems("slurm_node", result)
    return result


def test_drained_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Scripted([IDLE, OURS], [[]])
    result = run(monkeypatch, slurm, Module("drained"))
    assert slurm.done == [("drain", "h2", "gpufleet r1")]
    assert (result["changed"], result["ours"], result["before"], result["after"]) == (True, True, "IDLE", "IDLE+DRAIN")
    assert result["diff"]["after"] == "h2: IDLE+DRAIN gpufleet r1\n"


def test_what_scontrol_said_does_not_count_but_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, Scripted([IDLE, OURS], [[]], "an error"), Module("drained"))["ours"]
    with pytest.raises(SlurmError, match="an error"):
        run(monkeypatch, Scripted([IDLE], [[]], "an error"), Module("drained"))
    with pytest.raises(SlurmError, match="said nothing against it, and yet h2 is IDLE"):
        run(monkeypatch, Scripted([IDLE], [[]]), Module("drained"))


def test_a_job_that_starts_in_the_moment_of_the_drain_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, module = Scripted([IDLE, OURS, IDLE], [[], [JOB]]), Module("drained", mode="disk")
    with pytest.raises(Refused, match=r"job 7 .* in the moment of the drain\. The drain was taken back"):
        run(monkeypatch, slurm, module)
    assert slurm.done == [("drain", "h2", "gpufleet r1"), ("resume", "h2", "gpufleet r1 released")]
    assert [one["id"] for one in module.failed["findings"]] == ["slurm_step"]


def test_a_drain_that_can_not_be_taken_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=r"The node is still IDLE\+DRAIN"):
        run(monkeypatch, Scripted([IDLE, OURS], [[], [JOB]], "an error"), Module("drained", mode="disk"))


def test_somebody_else_drains_it_in_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Scripted([IDLE, THEIRS], [[]])
    result = run(monkeypatch, slurm, Module("drained"))
    assert (result["changed"], result["ours"], result["left"], result["reason"]) == (False, False, True, "disk broken")
    assert len(slurm.done) == 1


@pytest.mark.parametrize("before", [OURS, THEIRS])
@pytest.mark.parametrize("check", [False, True])
def test_a_drained_node_is_not_touched(monkeypatch: pytest.MonkeyPatch, before: Node, check: bool) -> None:
    slurm = Scripted([before], [[]])
    result = run(monkeypatch, slurm, Module("drained", check))
    assert not result["changed"] and not slurm.done and "diff" not in result
    assert (result["ours"], result["left"]) == (before is OURS, before is THEIRS)


@pytest.mark.parametrize("before", [IDLE, OURS, THEIRS])
@pytest.mark.parametrize("check", [False, True])
def test_jobs_that_would_end_are_refused_whoever_drained_it(
    monkeypatch: pytest.MonkeyPatch, before: Node, check: bool
) -> None:
    slurm = Scripted([before], [[JOB]])
    with pytest.raises(Refused, match=r"job 7 .*Nothing was changed"):
        run(monkeypatch, slurm, Module("drained", check, reboots=True))
    assert not slurm.done


def test_an_allowed_job_is_drained_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Scripted([IDLE, OURS], [[JOB]]), Module("drained", mode="disk", allow=["slurm_step"]))
    assert result["changed"] and [one["severity"] for one in result["findings"]] == ["warning"]


def test_released_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Scripted([OURS, IDLE], [[]])
    result = run(monkeypatch, slurm, Module("released"))
    assert slurm.done == [("resume", "h2", "gpufleet r1 released")]
    assert (result["changed"], result["ours"], result["left"]) == (True, False, False)


def test_a_release_that_changes_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlurmError, match=r"yet h2 is IDLE\+DRAIN"):
        run(monkeypatch, Scripted([OURS], [[]]), Module("released"))


@pytest.mark.parametrize("before", [IDLE, THEIRS, replace(OURS, state="IDLE"), replace(OURS, reason="gpufleet r2")])
def test_what_is_not_ours_is_not_released(monkeypatch: pytest.MonkeyPatch, before: Node) -> None:
    slurm = Scripted([before], [[]])
    result = run(monkeypatch, slurm, Module("released"))
    assert not result["changed"] and not slurm.done
    assert result["left"] is before.drained


@pytest.mark.parametrize("state,before", [("drained", IDLE), ("released", OURS)])
def test_a_check_foresees_it(monkeypatch: pytest.MonkeyPatch, state: str, before: Node) -> None:
    slurm = Scripted([before], [[]])
    result = run(monkeypatch, slurm, Module(state, True))
    assert result["changed"] and not slurm.done and result["ours"] is (state == "drained")


@pytest.mark.parametrize(
    "wrong,words",
    [
        ({"node": "ALL"}, "not the name of one node"),
        ({"run_id": "a b"}, "run_id"),
        ({"runs": ["r2", ""]}, "run_id"),
        ({"window": -1}, "window: -1"),
    ],
)
def test_wrong_options(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], words: str) -> None:
    slurm = Scripted([IDLE], [[]])
    with pytest.raises(SlurmError, match=words):
        run(monkeypatch, slurm, Module("drained", **wrong))
    assert not slurm.done
