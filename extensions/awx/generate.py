# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes job_templates.json, beside this file, from the argument_specs of the roles: job templates of AWX with their
surveys, as its API takes them.

usage: python extensions/awx/generate.py         needs PyYAML
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROLES = HERE.parents[1] / "roles"
TARGET = HERE / "job_templates.json"
LONGEST, LARGEST = 1024, 2**31 - 1
DECLARES = ["reboot", "driver_change", "gpu_reset"]
BEGIN = ("gpu_drain_hosts", "gpu_drain_run_id", "gpu_drain_take_over")
WHAT = ("gpu_drain_mode", "gpu_drain_declares", "gpu_drain_window", "gpu_drain_scheduler")
MAINTENANCE = ("gpu_drain_maintenance_tasks", "gpu_drain_maintenance_seconds")
SLICES = ("gpu_drain_run_directory_shared", "gpu_drain_slices", "gpu_drain_slice")
#: Playbook: what it is for, its role, and what its survey asks, in this order. Everything else is an extra variable.
TEMPLATES = {
    "plan": ("Shows what a drain would do; changes nothing", "gpu_drain", ("gpu_drain_hosts", *WHAT)),
    "drain": (
        "Takes hosts out of service in batches, and brings them back",
        "gpu_drain",
        (*BEGIN, *WHAT, *MAINTENANCE, "gpu_drain_failures_allowed", "gpu_drain_accept_loss", *SLICES),
    ),
    "status": ("Shows how far each host is; changes nothing", "gpu_drain", ("gpu_drain_hosts",)),
    "recover": (
        "Takes back or finishes what a dead run left",
        "gpu_drain",
        (*BEGIN, "gpu_drain_maintenance_done", "gpu_drain_accept_loss"),
    ),
    "preflight": (
        "Tells whether hosts and their processes are fit for it; changes nothing",
        "gpu_preflight",
        ("gpu_preflight_hosts", "gpu_preflight_capabilities", "gpu_preflight_fail_on", "gpu_preflight_window"),
    ),
}
#: What playbooks take and roles don't.
MORE = {
    "gpu_preflight_hosts": {"type": "str", "default": "all", "description": ["The hosts of the playbook."]},
}


def options(role: str) -> dict[str, dict[str, Any]]:
    specs = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())
    return {**MORE, **specs["argument_specs"]["main"]["options"]}


def plain(text: str) -> str:
    """Without the markup of Ansible's documentation."""
    return re.sub(r"\b[A-Z]\(([^()]*)\)", r"\1", text).split(". ")[0].rstrip(".") + "."


def question(name: str, option: dict[str, Any]) -> dict[str, Any]:
    kind, choices = option["type"], option.get("choices")
    default = option.get("default")
    asked: dict[str, Any] = {
        "question_name": name.split("_", 2)[2].replace("_", " ").capitalize(),
        "question_description": plain(str(option["description"][0])),
        "variable": name,
        "required": bool(option.get("required", False)),
        "new_question": True,
    }
    if name == "gpu_drain_declares":
        choices = DECLARES
    if kind == "bool":
        kind, choices, default = "str", ["false", "true"], str(default).lower()
    if kind in ("int", "float"):
        whole = kind == "int"
        asked |= {"type": "integer" if whole else "float", "min": 0, "max": LARGEST}
        asked["default"] = "" if default is None else default
    elif kind == "list" and choices:
        asked |= {"type": "multiselect", "choices": choices, "default": "\n".join(default or [])}
    elif choices:
        asked |= {"type": "multiplechoice", "choices": choices, "default": default}
    elif kind in ("str", "path"):
        asked |= {"type": "text", "min": 0, "max": LONGEST, "default": default or ""}
    else:
        raise SystemExit(f"generate.py: a survey can't ask for {name}, which is {kind}")
    return asked


def template(playbook: str) -> dict[str, Any]:
    description, role, names = TEMPLATES[playbook]
    known = options(role)
    return {
        "name": f"gpufleet {playbook}",
        "description": description,
        "job_type": "run",
        "playbook": f"{playbook}.yml",
        "become_enabled": False,
        "ask_limit_on_launch": True,
        "ask_variables_on_launch": True,
        "ask_inventory_on_launch": True,
        "ask_job_type_on_launch": playbook in ("drain", "recover"),
        "allow_simultaneous": playbook != "recover",
        "job_slice_count": 1,
        "survey_enabled": True,
        "survey_spec": {
            "name": "",
            "description": "",
            "spec": [question(name, known[name]) for name in names],
        },
    }


def made() -> str:
    return json.dumps([template(playbook) for playbook in TEMPLATES], indent=2) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    TARGET.write_text(made())
