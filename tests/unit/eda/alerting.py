# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that note when they are asked for something, for alerts that name them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
#: What each module of a plan gets from a host that nothing speaks against.
FIT = {
    "changed": False,
    "drain": {},
    "cuda": [],
    "phase": "",
    "findings": [],
    "processes": [],
    "estimate": {"device_bytes": 0, "total_seconds": {"suspend": 1.0}},
}


class Hosts:
    """n1 and n2 in the group gpu, n3 in no group but the one that is called n4."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        hosts = {name: self._host(name) for name in ("n1", "n2", "n3")}
        inventory = {
            "all": {
                "hosts": hosts,
                "vars": {"ansible_become": False, "gpu_drain_run_directory": str(directory / "runs")},
                "children": {"gpu": {"hosts": {"n1": {}, "n2": {}}}, "n4": {"hosts": {"n3": {}}}},
            }
        }
        self.inventory = directory / "inventory.yml"
        self.inventory.write_text(json.dumps(inventory))

    def _host(self, name: str) -> dict[str, Any]:
        python = self.directory / f"{name}.python"
        python.write_text(f"#!/bin/sh\necho {name} >> {self.directory}/asked\ncat {self.directory}/{name}.answer\n")
        python.chmod(0o755)
        self.answers(name, FIT)
        return {"ansible_connection": "local", "ansible_python_interpreter": str(python)}

    def answers(self, name: str, told: dict[str, Any]) -> None:
        (self.directory / f"{name}.answer").write_text(json.dumps(told))

    @property
    def asked(self) -> set[str]:
        """Since the last look at it."""
        path = self.directory / "asked"
        found = set(path.read_text().split()) if path.exists() else set()
        path.unlink(missing_ok=True)
        return found

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "EDA_"))},
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/tree"),
            "ANSIBLE_HOME": str(self.directory / "home"),
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_NOCOLOR": "true",
            "HOME": str(self.directory),
            "LC_ALL": "C.UTF-8",
        }
