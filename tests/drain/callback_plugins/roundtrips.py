# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counts how often a playbook goes to a host: once for each task that has a host's part, again for each retry and for
each item of a loop.

ROUNDTRIPS_FILE: a line of JSON for each, {"host", "task", "role", "action", "times"}
"""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: roundtrips
type: notification
short_description: Count remote executions
description: For the tests of this collection.
requirements: []
"""

#: What runs on the controller alone. Everything else counts, also what nobody has thought of.
HERE = frozenset(
    (
        *("add_host", "assert", "debug", "fail", "group_by", "include_role", "include_tasks", "include_vars", "meta"),
        *("import_role", "import_tasks", "pause", "set_fact", "set_stats", "validate_argument_spec", "drain_run"),
    )
)


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "roundtrips"
    CALLBACK_NEEDS_ENABLED = True

    def _count(self, result: Any) -> None:
        task = result.task
        if task.action.rpartition(".")[2] in HERE or task.delegate_to == "localhost":
            return
        line = {
            "host": result.host.get_name(),
            "task": task.get_name(),
            "role": task._role.get_name() if task._role else "",
            "action": task.action,
            "times": int(result.result.get("attempts") or 1),
        }
        with open(os.environ["ROUNDTRIPS_FILE"], "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def _count_unless_items(self, result: Any) -> None:
        """A loop was counted item by item; those that were skipped can't be told from the others in its result."""
        if "results" not in result.result:
            self._count(result)

    def v2_runner_on_ok(self, result: Any) -> None:
        self._count_unless_items(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._count_unless_items(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._count(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        self._count(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._count(result)
