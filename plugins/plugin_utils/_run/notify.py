# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells somebody's own command what happened to a run."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Mapping, Sequence

SECONDS = 30


def notify(command: Sequence[str], event: Mapping[str, Any]) -> str:
    """Runs the command with the event as JSON on its standard input. A failure is returned as a text, and is no reason
    to stop a run; "" is success."""
    if not command:
        return ""
    try:
        done = subprocess.run(
            list(command),
            input=json.dumps(event).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"gpu_drain_notify_command did not end within {SECONDS} s and was killed; nobody may have been notified"
    except OSError as error:
        return f"gpu_drain_notify_command can't be run: {error}; nobody was notified"
    if done.returncode == 0:
        return ""
    said = done.stderr.decode(errors="replace").strip()[-300:]
    return f"gpu_drain_notify_command ended with status {done.returncode}: {said or 'it said nothing'}"
