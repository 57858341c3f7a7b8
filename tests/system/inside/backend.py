# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in a test host: makes calls through a backend of the collection, and tells what came of each.

On standard input, as JSON: `wanted` of choose(); `calls`, each [name, arguments...]; `seconds` that each gets;
`at_once`: whether all of them start before the first is waited for.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from typing import Any

sys.path.insert(0, "/opt")

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import (
    BackendError,
    Call,
    choose,
)


def devices() -> list[str]:
    """What this process itself holds of the driver."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sorted(path for path in found if path.startswith("/dev/nvidia"))


def libraries() -> list[str]:
    with open("/proc/self/maps") as stream:
        return sorted({line.split("/")[-1].strip() for line in stream if "libcuda" in line})


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    try:
        backend = choose(asked["wanted"])
    except BackendError as error:
        json.dump({"error": str(error)}, sys.stdout)
        return
    told: dict[str, Any] = {
        "name": backend.name,
        "can": [backend.can_lock, backend.can_hold, backend.can_map],
        "after_choice": {"threads": threading.active_count(), "libraries": libraries(), "devices": devices()},
    }
    started: list[Call] = []
    replies = []
    for name, *arguments in asked["calls"]:
        started.append(getattr(backend, name)(*arguments))
        if not asked["at_once"]:
            replies.append(started[-1].wait(asked["seconds"]))
    if asked["at_once"]:
        replies = [call.wait(asked["seconds"]) for call in started]
    told["replies"] = [None if reply is None else asdict(reply) for reply in replies]
    told["devices"] = devices()
    json.dump(told, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # a call may still be on its way


if __name__ == "__main__":
    main()
