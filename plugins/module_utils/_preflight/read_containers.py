# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of which GPUs a process in a container can see."""

from __future__ import annotations

import os
import re
from typing import Dict, Iterable

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import _files

_NODE = re.compile(r"nvidia\d+$")


def visible_gpus(pids: Iterable[int]) -> Dict[int, int]:
    """PID -> GPU nodes in its /dev, of processes whose mounts are not the caller's. A process that is gone, or may not
    be looked into, is left out."""
    own = _files.link("/proc/self/ns/mnt")
    found = {}
    for pid in pids:
        namespace = _files.link(f"/proc/{pid}/ns/mnt")
        if not namespace or namespace == own:
            continue
        try:
            names = os.listdir(f"/proc/{pid}/root/dev")
        except OSError:
            continue
        found[pid] = sum(1 for name in names if _NODE.match(name))
    return found
