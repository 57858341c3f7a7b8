# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is ready, what is not, and which finding counts for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import ACTIONS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import capabilities
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import Concern
from tests.unit.plugins.hazards.helpers import context, evaluate, recording

ALL = frozenset(("suspend", "dump", "migrate"))
IMAGES = frozenset(("dump", "migrate"))
KNOWN = frozenset(("lock", "suspend", "resume"))


def finding(identifier: str = "x", severity: str = "blocking", **fields: Any) -> Finding:
    known = {"subject": "s", "evidence": "e", "reason": "R", "remedy": "M", "option": "", "reference": "r", "pid": None}
    return Finding(id=identifier, severity=severity, **{**known, **fields})


def test_a_blocking_finding_takes_the_capabilities_that_it_is_about() -> None:
    suspend, dump, migrate = capabilities.decide([Concern(finding("criu_missing"), IMAGES)], ["suspend"])
    assert (suspend.ready, suspend.required, suspend.blocking) == (True, True, ())
    assert (dump.ready, dump.required, dump.blocking) == (False, False, ("criu_missing",))
    assert (migrate.name, migrate.ready) == ("migrate", False)


def test_a_warning_takes_nothing() -> None:
    suspend = capabilities.decide([Concern(finding("mig_on", "warning"), ALL)], ["suspend"])[0]
    assert suspend.ready and suspend.warnings == ("mig_on",) and suspend.blocking == ()


def test_ids_are_told_once_in_their_order() -> None:
    concerns = [Concern(finding(name, pid=pid), ALL) for name, pid in (("b", 1), ("a", 1), ("b", 2))]
    assert capabilities.decide(concerns, [])[0].blocking == ("b", "a")


@pytest.mark.parametrize(
    ("fail_on", "required", "ids"),
    [
        ("blocking", ["suspend"], ["block_all"]),
        ("blocking", ["dump"], ["block_all", "block_dump"]),
        ("warning", ["suspend"], ["block_all", "warn_all"]),
        ("warning", ["migrate"], ["block_all", "block_dump", "warn_all"]),
        ("never", ["suspend", "dump", "migrate"], []),
    ],
)
def test_a_run_fails_by_what_is_required_and_as_severe_as_asked(
    fail_on: str, required: list[str], ids: list[str]
) -> None:
    concerns = [
        Concern(finding("block_all"), ALL),
        Concern(finding("block_dump"), IMAGES),
        Concern(finding("warn_all", "warning"), ALL),
    ]
    assert [one.finding.id for one in capabilities.failures(concerns, required, fail_on)] == ids


def test_the_message_names_capabilities_causes_remedies_and_overrides() -> None:
    failed = [
        Concern(finding(subject="PID 7 (x)", evidence="it is odd", option="odd"), ALL),
        Concern(finding(subject="this host", evidence="no CRIU"), IMAGES),
    ]
    assert capabilities.message(failed, ["suspend", "dump"]) == (
        "Not ready for suspend and dump. PID 7 (x): it is odd. R. M. Override: allow: [odd]. this host: no CRIU. R. M."
    )


def test_the_message_of_warnings_does_not_say_that_it_is_not_ready() -> None:
    text = capabilities.message([Concern(finding(severity="warning"), ALL)], ["suspend"])
    assert text.startswith("Ready, but with warnings, for suspend. ")


def test_a_long_message_is_cut_and_says_so() -> None:
    text = capabilities.message([Concern(finding(pid=pid), ALL) for pid in range(40)], ["suspend"], most=3)
    assert text.count("s: e. R. M.") == 3 and text.endswith("And 37 more: see findings.")


def test_consent_makes_a_warning_of_what_has_that_name_only() -> None:
    concerns = [
        Concern(finding(option="odd"), ALL),
        Concern(finding(option=""), ALL),
        Concern(finding(option="x"), ALL),
    ]
    accepted = capabilities.accept(concerns, frozenset(("odd", "")))
    assert [one.finding.severity for one in accepted] == ["warning", "blocking", "blocking"]


class Asked:
    """Detectors that find one thing per action; what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def __call__(self, action: str, pids: Sequence[int]) -> tuple[Finding, ...]:
        self.asked.append((action, tuple(pids)))
        both = (finding("both"),) if action in ("lock", "suspend") else ()
        return (*both, finding(f"of_{action}"))


def test_each_action_is_asked_of_the_processes_that_it_can_happen_to() -> None:
    asked = Asked()
    concerns = capabilities.ask(asked, [1, 2], [3], KNOWN)
    assert asked.asked == [("lock", (1, 2)), ("suspend", (1, 2)), ("resume", (3,))]
    assert [one.finding.id for one in concerns] == ["both", "of_lock", "of_suspend", "of_resume"]
    assert all(one.capabilities == ALL for one in concerns)


def test_an_action_that_the_detectors_learn_is_asked_and_counts_for_what_takes_it() -> None:
    asked = Asked()
    concerns = capabilities.ask(asked, [1], [3], KNOWN | {"dump"})
    assert asked.asked[-1] == ("dump", (1, 3))
    assert {one.finding.id: one.capabilities for one in concerns}["of_dump"] == IMAGES


def test_actions_that_nobody_knows_are_left_out_and_those_that_are_known_are_used() -> None:
    assert capabilities.known_actions(KNOWN) == ("lock", "suspend", "resume")
    assert capabilities.known_actions(KNOWN | {"dump", "migrate"})[3:] == ("dump", "migrate")
    assert ACTIONS <= set(capabilities.ACTIONS_OF["migrate"]), "an action of _hazards counts for no capability"


def test_nothing_is_asked_about_nobody() -> None:
    asked = Asked()
    assert capabilities.ask(asked, [], [], KNOWN) == [] and asked.asked == []


@pytest.mark.parametrize(
    ("label", "blocking"),
    [
        ("plain", ()),
        ("pinned", ()),
        ("nccl-one-rank", ()),
        ("ipc-exported", ()),
        ("managed", ("uvm_managed",)),
        ("nccl-two-ranks", ("nccl_communicator",)),
        ("mps", ("mps_client",)),
        ("vmm-export", ("vmm_export",)),
        ("cgroup-small", ("cgroup_memory",)),
        ("stopped", ("stopped_or_frozen",)),
    ],
)
def test_recorded_processes_are_ready_or_blocked_by_what_they_are(label: str, blocking: tuple[str, ...]) -> None:
    taken = recording(label)
    # The recording host shares a control group with its processes, whose ancestors it can't see: said, not blocking.
    concerns = capabilities.ask(
        lambda action, pids: evaluate(replace(context(taken, action), targets=tuple(pids))), taken.targets, []
    )
    suspend = capabilities.decide(concerns, ["suspend"])[0]
    assert suspend.blocking == blocking
    assert suspend.ready is not bool(blocking)
