# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes each task's result as a line of JSON to the file that CAPTURE_FILE names."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: capture
type: notification
short_description: Write results of tasks as JSON lines
description: For the tests of this collection.
requirements: []
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "capture"
    CALLBACK_NEEDS_ENABLED = True

    def _write(self, outcome: str, result: Any) -> None:
        line = {
            "host": result.host.get_name(),
            "task": result.task.get_name(),
            "outcome": outcome,
            "result": result.result,
        }
        with open(os.environ["CAPTURE_FILE"], "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, default=str) + "\n")

    def v2_runner_on_ok(self, result: Any) -> None:
        self._write("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._write("failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._write("unreachable", result)
