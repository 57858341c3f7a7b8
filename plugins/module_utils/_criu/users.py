# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A CRIU that goes on although whoever started it is dead."""

from __future__ import annotations

import os


def user_of(directory: str) -> int:
    """PID of a process that was told to work there, as CRIU is in its command line; 0 for none. It goes on when the
    process that started it, and was at work there, is killed."""
    wanted = os.fsencode(directory)
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as stream:
                words = stream.read(65536).split(b"\0")
        except OSError:
            continue
        if wanted in words:
            return int(name)
    return 0
