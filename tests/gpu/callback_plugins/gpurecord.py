# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import time
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: gpurecord
type: aggregate
short_description: Appends the result of each task, as one line of JSON, to the file that GPUTEST_RESULTS names
description:
  - For the tests of this collection on a real GPU.
requirements:
  - enabled by its name
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpurecord"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._began: dict[str, float] = {}

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._began[task._uuid] = time.time()

    def _keep(self, result: Any, status: str) -> None:
        task = result.task
        line = {
            "task": task.get_name(),
            "status": status,
            "began": self._began.get(task._uuid),
            "ended": time.time(),
            "result": dict(result.result),
        }
        with open(os.environ["GPUTEST_RESULTS"], "a") as stream:
            stream.write(json.dumps(line, default=str) + "\n")

    def v2_runner_on_ok(self, result: Any) -> None:
        self._keep(result, "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._keep(result, "failed")

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._keep(result, "skipped")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._keep(result, "unreachable")
