# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the documentation says, the modules do: examples are valid, names agree, every value is described."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ModuleArgumentSpecValidator

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._findings import OWN_OPTIONS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import OPTIONS
from tests.unit.plugins.documentation.returned import PREFIX, documentation, problems

ROOT = Path(__file__).resolve().parents[4]
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
EXCLUSIVE = [("pids", "select")]


def tasks(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Also those inside of plays and blocks."""
    for entry in entries:
        inner = [key for key in ("tasks", "block", "rescue", "always") if key in entry]
        for key in inner:
            yield from tasks(entry[key])
        if not inner:
            yield entry


def uses(examples: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for task in tasks(examples):
        for key, value in task.items():
            if key.startswith("gpufleet.checkpoint."):
                yield key.rpartition(".")[2], value or {}


@pytest.mark.parametrize("module", MODULES)
def test_examples_use_the_module_with_options_that_it_takes(module: str) -> None:
    found = list(uses(documentation(module, "EXAMPLES")))
    assert module in [name for name, _options in found]
    for name, options in found:
        spec = importlib.import_module(f"{PREFIX}.{name}").ARGUMENTS
        checked = ModuleArgumentSpecValidator(spec, mutually_exclusive=EXCLUSIVE).validate(resolved(options, spec))
        assert not checked.error_messages, (name, options)


def resolved(options: dict[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """A template makes a dictionary where one is wanted; any other text is checked as it is."""
    wanted = {key for key, value in options.items() if str(value).startswith("{{") and spec[key]["type"] == "dict"}
    return {key: {} if key in wanted else value for key, value in options.items()}


def test_the_validator_finds_a_wrong_example() -> None:
    spec = importlib.import_module(f"{PREFIX}.cuda_checkpoint").ARGUMENTS
    for options in ({"state": "suspended"}, {"state": "running", "pid": 1}, {"state": "running", "allow": ["all"]}):
        assert ModuleArgumentSpecValidator(spec, mutually_exclusive=EXCLUSIVE).validate(options).error_messages


@pytest.mark.parametrize("module", MODULES)
def test_examples_are_a_playbook(module: str, tmp_path: Path) -> None:
    examples = documentation(module, "EXAMPLES")
    plays = [entry for entry in examples if "hosts" in entry]
    loose = [entry for entry in examples if "hosts" not in entry]
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(yaml.safe_dump([{"hosts": "localhost", "tasks": loose}, *plays]))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "--syntax-check", "-i", "localhost,", str(playbook)],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/tree"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_allow_takes_what_a_hazard_can_be_overridden_by() -> None:
    documented = documentation("cuda_checkpoint")["options"]["allow"]["choices"]
    assert set(documented) == OPTIONS | OWN_OPTIONS
    assert list(documented) == sorted(documented)


def test_the_action_group_has_every_module() -> None:
    groups = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["action_groups"]
    # Defaults for what runs on the controller would be defaults for the playbooks of the collection.
    grouped = [module for module in MODULES if module != "drain_run"]
    assert sorted(groups["all"]) == grouped
    for module in grouped:
        assert (
            "gpufleet.checkpoint._attributes.actiongroup_all" in documentation(module)["extends_documentation_fragment"]
        )


def described(entries: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Values whose description lacks a part that is asked of all."""
    for name, entry in entries.items():
        place = f"{where}{name}"
        if not {"description", "returned", "type"} <= set(entry):
            yield place
        if "contains" in entry:
            yield from described(entry["contains"], f"{place}.")
        elif "sample" not in entry:
            yield f"{place} has no sample"


def sample(entry: Mapping[str, Any]) -> Any:
    if "contains" not in entry:
        return entry["sample"]
    inner = {name: sample(inner) for name, inner in entry["contains"].items()}
    return [inner] if entry["type"] == "list" else inner


@pytest.mark.parametrize("module", MODULES)
def test_every_value_is_described_and_the_samples_are_what_they_say(module: str) -> None:
    documented = documentation(module, "RETURN")
    assert not list(described(documented))

    whole = {name: sample(entry) for name, entry in documented.items()}
    assert not problems(module, whole)
    json.dumps(whole)


def test_a_value_that_is_not_documented_is_found() -> None:
    process = {"pid": "12", "new": 1, "guard": {"kind": "none", "pid": None}, "executable": None, "plan": "lock"}
    assert problems("cuda_checkpoint", {"changed": True, "run_id": "r", "odd": 1, "processes": [process]}) == [
        "odd is not documented",
        "processes[0].pid is str, not int",
        "processes[0].new is not documented",
        "processes[0].executable is null, which is not documented",
        "processes[0].plan is str, not list",
    ]
