# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the processor of this host is, and what it can do."""

from __future__ import annotations

import re
from typing import Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, printable

_FLAG = re.compile(r"[a-z0-9_.]{1,64}")


def parse_cpuinfo(text: str) -> Tuple[str, Tuple[str, ...]]:
    """Name and features that all processors in /proc/cpuinfo have. Pure."""
    name, common = "", None
    for line in kernel_lines(text):
        key, colon, value = line.partition(":")
        if not colon:
            continue
        if key.strip() == "model name" and not name:
            name = printable(value.strip())[:200]
        elif key.strip() in ("flags", "Features"):
            flags = {word for word in value.split() if _FLAG.fullmatch(word)}
            common = flags if common is None else common & flags
    return name, tuple(sorted(common or ()))


def read_cpu() -> Tuple[str, Tuple[str, ...]]:
    """As parse_cpuinfo(). Raises OSError where /proc is not mounted."""
    with open("/proc/cpuinfo", errors="replace") as stream:
        return parse_cpuinfo(stream.read())
