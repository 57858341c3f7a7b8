# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every example of the pages is valid: playbooks parse, modules, roles and playbooks get options that they take, files
are there. tests/system/test_examples.py runs them; those in modules are checked in tests/unit/plugins/documentation."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from tests.examples.blocks import ROOT, Block, blocks, pages
from tests.unit.plugins.documentation.returned import PREFIX
from tests.unit.plugins.documentation.test_modules import uses

BLOCKS = [block for page in pages() for block in blocks(page)]
YAML = [block for block in BLOCKS if block.language == "yaml"]
COMMANDS = [(block, command) for block in BLOCKS for _prompt, command in block.commands if block.language == "console"]
# Described beside the commands, or the reader's own.
GIVEN = {"inventory.yml", "maintenance.yml", "inventory"}
ROLES = {path.name: path for path in (ROOT / "roles").iterdir()}
NAME = "gpufleet.checkpoint."
HAZARDS = (ROOT / "docs/hazards.md").read_text()


def options(role: str) -> dict[str, Any]:
    specs = yaml.safe_load((ROLES[role] / "meta/argument_specs.yml").read_text())["argument_specs"]
    return {name: spec for entry in specs.values() for name, spec in entry["options"].items()}


OPTIONS = {name: spec for role in ROLES for name, spec in options(role).items()}
# Of the playbooks alone.
HOSTS = {f"{role}_hosts" for role in ROLES} | {f"{role}_serial" for role in ROLES}


def problems(variables: dict[str, Any]) -> list[str]:
    """Of variables of roles, as a file of variables has them. What is the reader's own is left out."""
    own = {key: value for key, value in variables.items() if key.startswith(tuple(f"{role}_" for role in ROLES))}
    unknown = [f"{key} is no variable of a role" for key in own if key not in OPTIONS and key not in HOSTS]
    known = {key: value for key, value in own.items() if key in OPTIONS and not str(value).startswith("{{")}
    spec = {key: {**OPTIONS[key], "required": False} for key in known}
    return unknown + list(ArgumentSpecValidator(spec).validate(known).error_messages)


def used_roles(content: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for play in content:
        for role in play.get("roles", []):
            yield role.get("vars", {})


def test_the_pages_have_examples() -> None:
    assert {block.page for block in BLOCKS} >= {"README.md", "docs/drain.md", "docs/docsite/rst/guide_slurm.rst"}
    assert len(YAML) > 20 and len(COMMANDS) > 40
    assert {block.language for block in BLOCKS} <= {"yaml", "console", "ini", "text", "python"}


def test_no_block_is_missed() -> None:
    """Fences of Markdown are pairs, and each pair is a block."""
    for page in pages():
        text = (ROOT / page).read_text()
        marks = len(re.findall(r"^ *```|^\.\. code-block::", text, re.M))
        assert marks == len(blocks(page)) * (1 if page.endswith(".rst") else 2), page


@pytest.mark.parametrize("block", YAML, ids=str)
def test_yaml(block: Block) -> None:
    content = block.content
    if isinstance(content, dict):
        assert problems(content) == []
        return
    for module, given in uses(content):
        spec = importlib.import_module(f"{PREFIX}.{module}").ARGUMENTS
        assert not ArgumentSpecValidator(spec).validate(given).error_messages, given
    for variables in used_roles(content):
        assert problems(variables) == []


def test_playbooks_parse(tmp_path: Path) -> None:
    files = []
    for number, block in enumerate(YAML):
        if isinstance(block.content, list):
            plays = block.content if "hosts" in block.content[0] else [{"hosts": "all", "tasks": block.content}]
            files.append(tmp_path / f"{number}.yml")
            files[-1].write_text(yaml.safe_dump(plays))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "--syntax-check", "-i", "localhost,", *files],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8",
             "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/tree")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=lambda one: str(one)[:60])
def test_command(block: Block, command: str) -> None:
    words = shlex.split(command, comments=True)
    extra = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-e", "--extra-vars")]
    files = GIVEN | {Path(other.file).name for other in blocks(block.page) if other.file}
    for text in extra:
        if text.startswith("@"):
            assert text[1:] in files
        else:
            given = json.loads(text) if text.startswith("{") else dict([text.split("=", 1)])
            assert [key for key in given if key not in OPTIONS and key not in HOSTS] == []
    if words[0] == "ansible-playbook":
        names = [word for word in words[1:] if word.endswith(".yml") and "@" not in word]
        assert {Path(name).name for name in names} <= files
        books = [word.removeprefix(NAME) for word in words if word.startswith(NAME)]
        assert all((ROOT / f"playbooks/{book}.yml").is_file() for book in books)
        assert books or names
    if words[0] == "ansible" and words[words.index("-m") + 1].startswith(NAME):
        module = words[words.index("-m") + 1].removeprefix(NAME)
        text = words[words.index("-a") + 1] if "-a" in words else "{}"
        given = json.loads(text) if text.startswith("{") else dict(word.split("=", 1) for word in text.split())
        spec = importlib.import_module(f"{PREFIX}.{module}").ARGUMENTS
        assert not ArgumentSpecValidator(spec).validate(given).error_messages


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"gpu_drain_mod": "disk"}, "no variable"),
        ({"gpu_drain_mode": "ram"}, "one of"),
        ({"gpu_drain_window": "soon"}, "float"),
    ],
)
def test_a_wrong_example_is_found(variables: dict[str, Any], word: str) -> None:
    assert any(word in problem for problem in problems(variables))


def test_the_guide_to_workloads_names_findings_that_there_are() -> None:
    named = [
        name
        for block in BLOCKS
        if block.page.endswith("guide_workloads.rst") and block.language == "text"
        for name in block.text.split()
    ]
    assert len(named) > 8
    assert [name for name in named if f'<a id="{name}"></a>' not in HAZARDS] == []
