# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page and the module's documentation say what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import OPTIONS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import drivers
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import CAPABILITIES
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.host_findings import HOST_HAZARDS
from tests.unit.plugins.preflight import driver_table

ROOT = Path(__file__).resolve().parents[4]
MODULE = ROOT / "plugins/modules/gpu_preflight.py"
OF_PROCESSES = {"nvml_user", "some_gpus"}


def assigned(name: str) -> Any:
    """A constant of the module's file, without importing Ansible."""
    for node in ast.parse(MODULE.read_text()).body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{MODULE.name} has no {name}")


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    page = driver_table.PAGE.read_text()
    assert page == driver_table.inserted(page), (
        "docs/preflight.md is not up to date: run tests.unit.plugins.preflight.driver_table"
    )
    assert all(f"(`{one.name}`)" in page for one in drivers.FEATURES)


def test_a_page_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="driver table: begin"):
        driver_table.inserted("# nothing")


def test_the_page_has_a_place_for_each_finding_and_for_no_other() -> None:
    anchors = re.findall(r'<a id="([a-z_]+)"></a>`([a-z_]+)`', driver_table.PAGE.read_text())
    assert all(anchor == name for anchor, name in anchors)
    assert len(anchors) == len(set(anchors))
    assert {name for name, _shown in anchors} == {hazard.id for hazard in HOST_HAZARDS} | OF_PROCESSES


def test_the_options_are_documented_as_they_are() -> None:
    documented = yaml.safe_load(assigned("DOCUMENTATION"))["options"]
    arguments = assigned("ARGUMENTS")
    assert set(documented) == set(arguments)
    for name, argument in arguments.items():
        assert documented[name]["type"] == argument["type"], name
        assert documented[name].get("default") == argument.get("default"), name
        if "choices" in argument:
            assert list(documented[name]["choices"]) == argument["choices"], name
    assert tuple(arguments["capabilities"]["choices"]) == CAPABILITIES


def test_the_features_that_are_returned_are_documented() -> None:
    text = assigned("RETURN")
    assert all(f"V({one.name})" in text for one in drivers.FEATURES)


def test_consent_takes_every_name_that_a_host_finding_has() -> None:
    assert {hazard.option for hazard in HOST_HAZARDS if hazard.option} <= OPTIONS


def test_examples_use_options_that_there_are() -> None:
    arguments = assigned("ARGUMENTS")
    tasks = [task["gpufleet.checkpoint.gpu_preflight"] for task in yaml.safe_load(assigned("EXAMPLES")) if
             "gpufleet.checkpoint.gpu_preflight" in task]  # fmt: skip
    assert len(tasks) >= 3
    for task in tasks:
        assert set(task or {}) <= set(arguments)
