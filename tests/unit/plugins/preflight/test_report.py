# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result has the values that the module documents, and only those; and is true to what was seen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _plan
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import StepRecord
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import (
    capabilities,
    drivers,
    estimate,
    report,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import Concern
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import HostFacts
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.host_findings import look
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.process_findings import (
    driver_concerns,
    running_without_gpu,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject
from tests.unit.plugins.hazards.helpers import recording, target
from tests.unit.plugins.preflight.helpers import GIB, UUIDS, fit_host, no_gpu_host, spoilt
from tests.unit.plugins.preflight.test_docs import assigned

EVERYTHING = frozenset(("suspend", "dump", "migrate"))


def process(label: str = "plain", **fields: Any) -> ProcessSnapshot:
    return replace(target(recording(label)), **fields)


def subject(device: dict[str, int] | None, seen: ProcessSnapshot | None = None) -> Subject:
    return Subject(seen or process(), None, _plan.ASK, device_bytes=device)


def made(facts: HostFacts, *subjects: Subject, suspended: bool = False, full_command: bool = False) -> dict[str, Any]:
    loads = [
        estimate.Load(one.pid, None if one.device_bytes is None else one.total_bytes, GIB, suspended)
        for one in subjects
    ]
    history = {"checkpoint": [StepRecord(1, "checkpoint", 0.0, 1.0, 2 * GIB)]}
    work = estimate.work(loads, estimate.rates(history), 16)
    concerns = list(look(facts))
    decided = capabilities.decide(concerns, ["suspend"])
    result = report.result(report.Report(facts, subjects, concerns, decided, work), full_command)
    plain: dict[str, Any] = json.loads(json.dumps(result, allow_nan=False))
    return plain


def undocumented(value: Any, documented: dict[str, Any], where: str = "") -> list[str]:
    """Names that are on one side only, as far down as `contains` goes."""
    found = [f"{where}{name} is not documented" for name in value if name not in documented]
    for name, about in documented.items():
        if name not in value:
            if "full_command" not in about["returned"]:
                found.append(f"{where}{name} is not returned")
            continue
        inner = about.get("contains")
        items = value[name] if isinstance(value[name], list) else [value[name]]
        for item in items if inner else []:
            found += undocumented(item, inner, f"{where}{name}.")
    return found


@pytest.mark.parametrize("facts", [fit_host(), no_gpu_host(), spoilt(store=None)], ids=["fit", "nothing", "no store"])
def test_what_is_returned_is_what_is_documented(facts: HostFacts) -> None:
    documented = yaml.safe_load(assigned("RETURN"))
    shown = made(facts, subject({UUIDS[0]: GIB}), subject(None), full_command=True)
    assert undocumented(shown, documented) == []


def test_the_comparison_with_the_documentation_finds_what_is_missing_and_what_is_too_much() -> None:
    documented = yaml.safe_load(assigned("RETURN"))
    shown = made(fit_host(), subject({UUIDS[0]: GIB}))
    del shown["host"]["kernel"]
    shown["processes"][0]["surplus"] = 1
    assert set(undocumented(shown, documented)) == {
        "host.kernel is not returned",
        "processes.surplus is not documented",
    }


def test_a_fit_host_is_ready_and_says_what_it_has() -> None:
    shown = made(fit_host(), subject({UUIDS[0]: 8 * GIB}))
    assert shown["ready"] and all(one["ready"] for one in shown["capabilities"].values())
    assert [name for name, one in shown["capabilities"].items() if one["required"]] == ["suspend"]
    assert shown["host"]["driver"]["measured"] and "device_map" in shown["host"]["driver"]["features"]
    assert shown["host"]["backend"] == "libcuda" and shown["host"]["criu"]["check"] is True
    assert [gpu["uuid"] for gpu in shown["gpus"]] == list(UUIDS)
    assert shown["findings"] == []


def test_a_driver_that_was_not_measured_is_not_called_so() -> None:
    shown = made(spoilt(host__driver_version="580.95.05", driver__library_version="580.95.05"))
    assert shown["host"]["driver"]["measured"] is False


def test_gpus_are_told_without_nvml_as_far_as_the_kernel_module_knows_them() -> None:
    shown = made(replace(fit_host(), nvml=no_gpu_host().nvml))
    assert [gpu["uuid"] for gpu in shown["gpus"]] == list(UUIDS)
    assert {gpu["free_bytes"] for gpu in shown["gpus"]} == {None}
    assert shown["capacity"]["gpus"] == [] and shown["host"]["nvml"] is False


def test_running_processes_need_host_memory_and_suspended_ones_their_gpus() -> None:
    held = {UUIDS[1]: 8 * GIB}
    running = made(fit_host(), subject(held))
    need = estimate.host_memory(8 * GIB)
    assert running["capacity"]["memory"] == {"needed_bytes": need, "available_bytes": 400 * GIB}
    assert [gpu["needed_bytes"] for gpu in running["capacity"]["gpus"]] == [0, 0]
    assert running["capacity"]["disk"] == {
        "path": "/images",
        "needed_bytes": GIB + need,
        "available_bytes": 900 * GIB,
    }
    suspended = made(fit_host(), subject(held), suspended=True)
    assert suspended["capacity"]["memory"]["needed_bytes"] == 0
    assert [gpu["needed_bytes"] for gpu in suspended["capacity"]["gpus"]] == [0, 8 * GIB]
    assert suspended["capacity"]["disk"]["needed_bytes"] == GIB


def test_what_nobody_knows_is_null_and_counted() -> None:
    shown = made(fit_host(), subject(None), subject({UUIDS[0]: GIB}))
    unknown, known = shown["processes"]
    assert (unknown["device_bytes"], unknown["image_bytes"], unknown["gpus"]) == (None, None, [])
    assert known["gpus"] == [{"uuid": UUIDS[0], "index": 0, "bytes": GIB}]
    assert shown["estimate"]["unknown"] == shown["capacity"]["unknown"] == 1
    assert shown["estimate"]["device_bytes"] == GIB


def test_the_rates_say_where_they_come_from() -> None:
    rates = made(fit_host())["estimate"]["rates"]
    assert rates["suspend"] == {"gib_per_second": 2.0, "measured_steps": 1}
    assert rates["dump"]["measured_steps"] == 0 and rates["dump"]["gib_per_second"] == 1.379


def test_command_lines_are_returned_only_where_they_are_asked_for() -> None:
    secret = subject({UUIDS[0]: GIB}, process(command=("train", "--token", "hunter2")))
    assert "hunter2" not in json.dumps(made(fit_host(), secret))
    assert made(fit_host(), secret, full_command=True)["processes"][0]["command"][2] == "hunter2"


def test_findings_about_one_process_are_told_with_it_and_take_its_capabilities_only() -> None:
    one, other = subject({}, process("plain")), subject({}, process("second-gpu"))
    assert one.pid != other.pid
    finding = running_without_gpu(one.process)
    one.findings.append(finding)
    concerns = [Concern(finding, frozenset(("dump",)))]
    work = estimate.work(
        [estimate.Load(each.pid, 0, 0, False) for each in (one, other)], estimate.rates({}), processors=4
    )
    shown = report.result(report.Report(fit_host(), (one, other), concerns, (), work), False)
    first, second = shown["processes"]
    assert first["findings"] == ["running_without_gpu"] and first["ready"] == {
        "suspend": True,
        "dump": False,
        "migrate": True,
    }
    assert second["findings"] == [] and all(second["ready"].values())
    assert shown["findings"][0]["capabilities"] == ["dump"]


# Findings about processes that need the driver's version or the journal


def test_users_of_nvml_are_found_before_570() -> None:
    user = process(libraries=("libcuda.so.1", "libnvidia-ml.so.560.35.03"))
    plain = process(libraries=("libcuda.so.1",))
    unknown = process(libraries=None)
    old, new = drivers.parse("560.35.03"), drivers.parse("570.86.10")
    (concern,) = driver_concerns([plain, user, unknown], old, {}, 2)
    assert (concern.finding.id, concern.finding.severity, concern.finding.pid) == ("nvml_user", "blocking", user.pid)
    assert concern.capabilities == EVERYTHING
    assert "560.35.03" in concern.finding.message() and "never be checkpointed again" in concern.finding.message()
    assert driver_concerns([user], new, {}, 2) == [] and driver_concerns([user], (), {}, 2) == []


@pytest.mark.parametrize(
    ("version", "seen", "found"),
    [("575.51.03", 1, True), ("575.51.03", 2, False), ("575.57.08", 1, False), ("580.159.04", 1, False)],
)
def test_processes_that_see_some_gpus_are_found_before_575_57_08(version: str, seen: int, found: bool) -> None:
    one = process(libraries=())
    concerns = driver_concerns([one], drivers.parse(version), {one.pid: seen}, 2)
    assert [concern.finding.id for concern in concerns] == (["some_gpus"] if found else [])
    if found:
        assert "1 GPU of the host's 2 can be seen in its /dev" in concerns[0].finding.message()
        assert "575.57.08" in concerns[0].finding.remedy


def test_a_process_that_runs_without_its_gpu_is_said() -> None:
    one = process()
    found = running_without_gpu(one)
    assert (found.pid, found.severity) == (one.pid, "blocking")
    assert "threads run" in found.evidence and "cuda_checkpoint" in found.remedy
