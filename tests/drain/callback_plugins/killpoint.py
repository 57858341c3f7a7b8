# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says that a playbook has come to a point, and lets it go no further until it is killed there.

Ansible looks at an interrupt once a callback is over, so that KILL_REACHED.go ends the hold.

KILL_POINT: {"moment": "start" | "done", "host", "action", "arguments": {literal arguments of the task}, "hold"}
KILL_REACHED: the file that is made then
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: killpoint
type: notification
short_description: Stop a playbook where a test is to kill it
description: For the tests of this collection.
requirements: []
"""

LONGEST = 600


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "killpoint"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._point: dict[str, Any] = json.loads(os.environ["KILL_POINT"])
        self._reached = Path(os.environ["KILL_REACHED"])

    def _come(self, moment: str, host: Any, task: Any) -> None:
        point = self._point
        if moment != point["moment"] or host.get_name() != point["host"] or self._reached.exists():
            return
        if task.action.rpartition(".")[2] != point["action"]:
            return
        if any(str(task.args.get(key)) != str(value) for key, value in point["arguments"].items()):
            return
        self._reached.touch()
        if point["hold"]:
            end = time.monotonic() + LONGEST
            while not Path(f"{self._reached}.go").exists() and time.monotonic() < end:
                time.sleep(0.05)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._come("start", host, task)

    def v2_runner_on_ok(self, result: Any) -> None:
        self._come("done", result.host, result.task)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._come("done", result.host, result.task)
