# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What scontrol and squeue say, read; whose a drain is; which jobs a drain would end."""

import dataclasses

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._slurm import (
    Job,
    Node,
    SlurmError,
    blocked_by,
    check_name,
    expected,
    parse_jobs,
    parse_node,
    released,
    stamp,
    whose,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._slurm_findings import findings
from tests.unit.plugins.slurm.recorded import VERSIONS, recorded

RUNS = ["run-1"]


def node(state: str, reason: str = "") -> Node:
    return Node("h2", state, reason, "root" if reason else "", 1796033211 if reason else None)


def test_two_versions_are_recorded() -> None:
    assert VERSIONS == ["22.05.8", "24.11.5"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "moment,state,reason",
    [
        ("mixed", "ALLOCATED", ""),
        ("ours", "ALLOCATED+DRAIN", "gpufleet run-1"),
        # Text of a comment or a reason that looks like another field.
        ("odd", "ALLOCATED+DRAIN", "Comment=x State=IDLE odd [a@b] {x}"),
    ],
)
def test_a_node_is_read(version: str, moment: str, state: str, reason: str) -> None:
    read = parse_node(recorded(version)[moment])
    assert (read.name in ("h2", "n2"), read.state, read.reason) == (True, state, reason)
    assert (read.by, bool(read.since)) == (("root", True) if reason else ("", False))


@pytest.mark.parametrize(
    "version,moment,reason",
    [
        # The older one forgets the reason; what is left is a comment in which one is spelled.
        ("22.05.8", "resumed", ""),
        ("24.11.5", "resumed", "disk broken"),
        ("24.11.5", "resumed_later", "disk broken"),
        ("24.11.5", "ours_not_responding", "gpufleet run-1 : Not responding"),
    ],
)
def test_a_reason_is_read_where_there_is_one(version: str, moment: str, reason: str) -> None:
    assert parse_node(recorded(version)[moment]).reason == reason


@pytest.mark.parametrize(
    "version,moment,who",
    [
        ("22.05.8", "mixed", ""),
        ("22.05.8", "ours", "ours"),
        ("22.05.8", "idle_ours", "ours"),
        ("22.05.8", "odd", "theirs"),
        ("22.05.8", "resumed", ""),
        ("22.05.8", "down", "theirs"),
        ("22.05.8", "unknown", ""),
        ("24.11.5", "idle", ""),
        ("24.11.5", "ours", "ours"),
        ("24.11.5", "odd", "theirs"),
        ("24.11.5", "theirs", "theirs"),
        ("24.11.5", "resumed", ""),
        ("24.11.5", "down", "theirs"),
        # After a reboot that took longer than SlurmdTimeout.
        ("24.11.5", "ours_not_responding", "ours"),
        ("24.11.5", "ours_resumed_not_responding", ""),
    ],
)
def test_whose_a_recorded_node_is(version: str, moment: str, who: str) -> None:
    assert whose(parse_node(recorded(version)[moment]), RUNS) == who


@pytest.mark.parametrize(
    "state,reason,who",
    [
        ("IDLE+DRAIN", "gpufleet run-1", "ours"),
        ("IDLE*+DRAIN", "gpufleet run-1", "ours"),
        ("IDLE+DRAIN+NOT_RESPONDING", "gpufleet run-1", "ours"),
        ("DRAINED", "gpufleet run-1", "ours"),
        ("DRAINING*", "gpufleet run-1", "ours"),
        ("IDLE+DRAIN", "gpufleet run-10", "theirs"),
        ("IDLE+DRAIN", "gpufleet run-2", "theirs"),
        ("IDLE+DRAIN", "see gpufleet run-1", "theirs"),
        ("IDLE+DRAIN", "gpufleet run-1 released", "theirs"),
        # Slurm has a reason of its own to keep it out.
        ("IDLE+DRAIN", "gpufleet run-1 : Kill task failed", "theirs"),
        ("IDLE+DRAIN", "gpufleet run-1 : Kill task failed : Not responding", "theirs"),
        ("IDLE+DRAIN", "", "theirs"),
        # A reason that is still shown is no drain.
        ("IDLE", "gpufleet run-1", ""),
        # Slurm found that it had rebooted, and kept the old reason (seen with slurmd -b).
        ("DOWN", "gpufleet run-1", "theirs"),
        ("DOWN", "gpufleet run-1 released", "theirs"),
        ("FAIL", "spare", "theirs"),
        ("DOWN", "", "theirs"),
        # It can come back at any moment.
        ("DOWN+NOT_RESPONDING", "Not responding", ""),
        ("DOWN*", "gpufleet run-1 released : Not responding", ""),
        ("DOWN*", "disk broken : Not responding", "theirs"),
        ("IDLE+MAINT", "", ""),
        ("MIXED+PLANNED", "", ""),
    ],
)
def test_whose_a_node_is(state: str, reason: str, who: str) -> None:
    assert whose(node(state, reason), RUNS) == who


def test_the_drain_of_a_run_that_was_taken_over_counts() -> None:
    assert whose(node("IDLE+DRAIN", "gpufleet run-1"), ["run-2", "run-1"]) == "ours"


def test_the_stamp_is_read_back_as_ours_and_that_of_a_release_as_nobodys() -> None:
    assert whose(node("IDLE+DRAIN", stamp("run-1")), RUNS) == "ours"
    assert whose(node("IDLE+DRAIN", released("run-1")), RUNS) == "theirs"
    assert whose(node("IDLE", released("run-1")), RUNS) == ""


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_are_read(version: str) -> None:
    jobs = parse_jobs(recorded(version)["jobs"])
    first, second, *more = jobs
    assert (
        (first.user, first.state, first.name) == ("root", "RUNNING", "train") and first.end and first.end > 1796030000
    )
    assert (second.end, second.name) == (None, "a|b c")
    assert [job.id for job in more] == ([] if version == "22.05.8" else ["4_1", "4_2"])


@pytest.mark.parametrize("state", ["PENDING", "COMPLETED", "CANCELLED"])
def test_a_job_without_processes_does_not_count(state: str) -> None:
    assert parse_jobs(f"7|ann|{state}|1796034090|train\n\n") == []


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "SOMETHING_NEW"])
def test_a_job_with_processes_counts(state: str) -> None:
    assert parse_jobs(f"7|ann|{state}|1796034090|train\n") == [Job("7", "ann", state, 1796034090, "train")]


@pytest.mark.parametrize(
    "said",
    [
        "CLUSTER: other\n",
        "7|ann|RUNNING|1796034090\n",
        # A time limit that is not understood must not be taken for none.
        "7|ann|RUNNING|2026-11-30T10:26:13|train\n",
        "7|ann|RUNNING||train\n",
        "JOBID|USER|STATE|END_TIME|NAME\n",
    ],
)
def test_what_is_no_job_is_an_error(said: str) -> None:
    with pytest.raises(SlurmError, match=r"squeue said what is no job.*by hand"):
        parse_jobs(said)


@pytest.mark.parametrize(
    "said", ["", "Node h2 not found\n", "NodeName=h2 Arch=x86_64\n", "NodeName=a State=IDLE\nNodeName=b State=IDLE\n"]
)
def test_what_is_no_node_is_an_error(said: str) -> None:
    with pytest.raises(SlurmError, match=r"said what is no node.*by hand"):
        parse_node(said)


@pytest.mark.parametrize("name", ["gpu07", "gpu-07.cluster", "n1", "7"])
def test_a_name_of_one_node(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "ALL", "all", "n[1-4]", "n1,n2", "-w", "n1 n2", "n1\n", "n1.", "../x", "n1=x"])
def test_what_names_more_than_one_node_or_none_is_refused(name: str) -> None:
    with pytest.raises(SlurmError, match=r"not the name of one node.*all of them would be drained.*gpu_drain_node"):
        check_name(name)


SHORT = Job("7", "ann", "RUNNING", 1000, "train")
LONG = Job("8", "bob", "RUNNING", 1001, "tune")
ENDLESS = Job("9", "eve", "RUNNING", None, "serve")


def test_in_memory_a_job_counts_whose_limit_ends_within_the_window() -> None:
    assert blocked_by([SHORT, LONG, ENDLESS], "memory", False, 1000) == ([], [SHORT])


@pytest.mark.parametrize("mode,reboots", [("disk", False), ("disk", True), ("memory", True)])
def test_otherwise_every_job_counts(mode: str, reboots: bool) -> None:
    assert blocked_by([SHORT, ENDLESS], mode, reboots, 0) == ([SHORT, ENDLESS], [])


def test_a_time_limit_is_told_with_what_helps() -> None:
    until = 1796036400
    job = dataclasses.replace(SHORT, end=until - 1800)
    (found,) = findings([job, ENDLESS], "memory", False, until, [])
    message = found.message()
    assert (found.id, found.severity, found.option) == ("slurm_time_limit", "blocking", "slurm_time_limit")
    assert "job 7 (train) of ann: it is RUNNING" in message and "allow: [slurm_time_limit]" in message
    assert "2026-11-30T10:30:00Z" in message and "2026-11-30T11:00:00Z" in message
    assert "JobId=7 TimeLimit=+40" in message and "gpu_drain_window" in message


@pytest.mark.parametrize("mode,words", [("disk", "writes its processes to the disk"), ("memory", "reboots the host")])
def test_a_job_that_would_end_is_told_with_what_helps(mode: str, words: str) -> None:
    found = findings([SHORT, ENDLESS], mode, True, 0, [])
    assert [(one.id, one.severity) for one in found] == [("slurm_step", "blocking")] * 2
    assert words in found[0].message() and "scontrol requeue 7" in found[0].message()
    assert "without a time limit" in found[1].message()


def test_what_is_allowed_is_a_warning() -> None:
    (found,) = findings([SHORT], "memory", False, 2000, ["slurm_time_limit", "tcp_established"])
    assert found.severity == "warning"
    (found,) = findings([SHORT], "memory", False, 2000, ["slurm_step"])
    assert found.severity == "blocking"


def test_a_name_can_not_break_a_message() -> None:
    (found,) = findings([dataclasses.replace(SHORT, name="a\x1b[31m\u2028b")], "disk", False, 0, [])
    assert found.subject == "Slurm job 7 (a\\x1b[31m\\u2028b) of ann"


@pytest.mark.parametrize(
    "before,drained,again",
    [
        ("IDLE", "IDLE+DRAIN", "IDLE"),
        ("ALLOCATED+NOT_RESPONDING", "ALLOCATED+DRAIN+NOT_RESPONDING", "ALLOCATED+NOT_RESPONDING"),
        ("DOWN+DRAIN", "DOWN+DRAIN", "IDLE"),
    ],
)
def test_what_a_check_foresees(before: str, drained: str, again: str) -> None:
    foreseen = expected(node(before), "run-1")
    assert (foreseen.state, whose(foreseen, RUNS)) == (drained, "ours")
    assert expected(foreseen, "").state == again
