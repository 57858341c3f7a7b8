# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Job templates for AWX: their surveys are what the roles take, and what a survey answers the roles understand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.state import DECLARES
from extensions.awx import generate

ROOT = Path(__file__).resolve().parents[3]
AWX = ROOT / "extensions/awx"
TEMPLATES: list[dict[str, Any]] = json.loads((AWX / "job_templates.json").read_text())
#: Types of questions that AWX has, and of answers to them.
ANSWERS: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "integer": int,
    "float": (int, float),
    "multiplechoice": str,
    "multiselect": list,
}


def answers(template: dict[str, Any]) -> dict[str, Any]:
    """What AWX hands over for a survey that was only clicked through: an empty answer that is no text is left out."""
    found = {}
    for asked in template["survey_spec"]["spec"]:
        default = asked["default"]
        if asked["type"] == "multiselect":
            found[asked["variable"]] = default.split("\n") if default else []
        elif default != "" or asked["type"] == "text":
            found[asked["variable"]] = default
    return found


def test_they_are_made_from_the_roles_as_they_are() -> None:
    assert (AWX / "job_templates.json").read_text() == generate.made(), "run python extensions/awx/generate.py"
    assert generate.DECLARES == list(DECLARES)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: str(template["playbook"]))
def test_a_survey_is_what_awx_takes(template: dict[str, Any]) -> None:
    assert (AWX / "project" / template["playbook"]).exists()
    asked = template["survey_spec"]["spec"]
    assert asked and len({one["variable"] for one in asked}) == len(asked)
    for one in asked:
        assert one["type"] in ANSWERS and one["question_name"] and one["question_description"]
        assert not re.search(r"\b[A-Z]\(", one["question_description"]), "markup"
        if "choices" in one:
            chosen = one["default"].split("\n") if one["type"] == "multiselect" else [one["default"]]
            assert set(chosen) <= {*one["choices"], ""}
        if one["type"] in ("integer", "float", "text"):
            assert one["min"] <= one["max"]
    for name, value in answers(template).items():
        kind = next(one["type"] for one in asked if one["variable"] == name)
        assert isinstance(value, ANSWERS[kind])


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: str(template["playbook"]))
def test_the_project_has_each_playbook(template: dict[str, Any]) -> None:
    (play,) = yaml.safe_load((AWX / "project" / template["playbook"]).read_text())
    assert play["ansible.builtin.import_playbook"] == f"gpufleet.checkpoint.{template['playbook'][:-4]}"
    assert (ROOT / "playbooks" / template["playbook"]).exists()


def test_the_collection_and_the_definition_are_what_ansible_builder_takes(tmp_path: Path) -> None:
    builder = str(Path(sys.executable).with_name("ansible-builder"))
    create = [builder, "create", "--output-filename", "Containerfile"]
    done = subprocess.run(
        [*create, "-f", str(AWX / "execution-environment.yml"), "-c", str(tmp_path / "context")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpufleet.checkpoint" in (tmp_path / "context/_build/requirements.yml").read_text()
    assert "PYCMD" in (tmp_path / "context/Containerfile").read_text()
    seen = subprocess.run(
        [builder, "introspect", str(ROOT / "build/tree")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert seen.returncode == 0, seen.stderr
    found = yaml.safe_load(seen.stdout)
    system = (ROOT / "meta/bindep.txt").read_text().splitlines()
    told = [line.split(" ")[0] for line in system if line and not line.startswith("#")]
    assert [line.split(" ")[0] for line in found["system"]] == told and told
    assert "gpufleet.checkpoint" in str(found)


def test_the_metadata_alone_is_a_definition(tmp_path: Path) -> None:
    """With its files where they are named from, the root of the collection."""
    (tmp_path / "meta").mkdir()
    for name, place in (("meta/execution-environment.yml", "execution-environment.yml"), ("meta/bindep.txt",) * 2):
        (tmp_path / place).write_text((ROOT / name).read_text())
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-builder")), "create", "-c", str(tmp_path / "context")],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "openssh" in (tmp_path / "context/_build/bindep.txt").read_text()


def test_the_guide_names_what_is_there() -> None:
    guide = (ROOT / "docs/awx.md").read_text()
    named = set(re.findall(r"^\| `([\w./-]+)` \|", guide, re.M))
    assert named == {"project/", "job_templates.json", "generate.py", "execution-environment.yml"}
    assert all((AWX / name).exists() for name in named)
