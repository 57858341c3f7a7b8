# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows, operations and what was seen, with values that do not matter."""

from typing import Any

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import Drain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity

BOOT = "6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11"
EARLIER = "11111111-1d5b-4b3c-9a3e-0b9d3f0a7c11"
HERE = "control1 admin 100:200:300"


def identity(pid: int, boot_id: str = BOOT) -> Identity:
    return Identity(pid, 4711, boot_id)


def drain(**values: Any) -> Drain:
    run_id = values.get("run_id", "a")
    fields: dict[str, Any] = {
        "id": 1,
        "run_id": run_id,
        "runs": (run_id,),
        "kind": "drain",
        "attempt": 1,
        "controller": HERE,
        "phase": "claimed",
        "mode": "memory",
        "store": "",
        "boot_id": BOOT,
        "suspended_boot_id": "",
        "selection": {"all": True},
        "processes": (),
        "scheduler": {},
        "packages": {},
        "declares": (),
        "message": "",
        "after_operation": 0,
        "after_image": 0,
        "opened": 1000.0,
        "updated": 1000.0,
        "closed": None,
    }
    return Drain(**{**fields, **values})


def operation(pid: int = 7, **values: Any) -> Operation:
    fields: dict[str, Any] = {
        "id": 1,
        "run_id": "a",
        "identity": identity(pid),
        "executable": "/usr/bin/train",
        "uid": 0,
        "goal": "checkpointed",
        "state_before": "running",
        "step": "park",
        "status": "suspended",
        "worker": None,
        "park": True,
        "guard": "holder",
        "restore_tid": None,
        "signal_mask": None,
        "stopped_by": "us",
        "backend": "libcuda",
        "message": "",
        "created": 1.0,
        "updated": 1.0,
    }
    return Operation(**{**fields, **values})
