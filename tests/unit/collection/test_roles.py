# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role's argument_specs say of its variables is what its defaults are, and what its README tells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
SPECS = "argument_specs.yml"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def options(role: str) -> dict[str, dict[str, Any]]:
    return dict(read(ROOT / "roles" / role / "meta" / SPECS)["argument_specs"]["main"]["options"])


@pytest.mark.parametrize("role", ROLES)
def test_defaults_are_those_of_the_specification(role: str) -> None:
    defaults = read(ROOT / "roles" / role / "defaults/main.yml")
    specified = {name: option["default"] for name, option in options(role).items() if "default" in option}
    assert specified == defaults


@pytest.mark.parametrize("role", ROLES)
def test_variables_are_named_after_their_role(role: str) -> None:
    assert [name for name in options(role) if not name.startswith(f"{role}_")] == []


@pytest.mark.parametrize("role", ROLES)
def test_the_readme_has_every_variable_and_no_other(role: str) -> None:
    text = (ROOT / "roles" / role / "README.md").read_text()
    assert re.findall(rf"^\| `({role}_\w+)` \|", text, re.MULTILINE) == list(options(role))


@pytest.mark.parametrize("role", ROLES)
def test_a_variable_that_a_role_uses_is_specified_or_its_own(role: str) -> None:
    """A misspelt one would be seen only where it is used."""
    texts = [path.read_text() for path in (ROOT / "roles" / role).rglob("*.yml") if path.name != SPECS]
    used = {name for text in texts for name in re.findall(rf"\b{role}_\w+", text)}
    made = {
        name
        for text in texts
        for name in re.findall(rf"^\s*(?:register: |loop_var: |index_var: )?({role}_\w+)(?::|$)", text, re.MULTILINE)
    }
    assert used - made - set(options(role)) <= KNOWN


#: Modules, groups, and what a playbook sets.
KNOWN = {"gpu_drain_info", "gpu_drain_targets", "gpu_drain_directory_given"}
