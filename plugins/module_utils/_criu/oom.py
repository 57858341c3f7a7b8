# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whom the kernel may kill when memory runs out.

The worker of an image is out of its reach, and what it starts inherits that: CRIU, which must not be killed at work in
a tree. But CRIU's restore makes the tree out of its own children, and gives a process its own oom_score_adj only where
that is not 0 in the image (measured: CRIU 4.1.1 with 500 made a tree with 500 of one with 0). So a restoring CRIU has 0
until the first process of the tree is there, and is protected from then on.
"""

from __future__ import annotations

from typing import Callable

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_stat

NEVER, USUAL = -1000, 0


def write(pid: int, value: int) -> str:
    """Returns why not, "" when it is done. Below what a process began with, that takes CAP_SYS_RESOURCE."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as stream:
            stream.write(str(value))
    except OSError as error:
        return f"oom_score_adj of PID {pid} can't be set to {value}: {error.strerror}"
    return ""


def protect_once_forked(root: Callable[[], int]) -> Callable[[int], bool]:
    """For run(): True when CRIU, the PID that it is given, has made the first process of the tree, or is gone. root:
    what the PID of that is or will be, 0 for not known yet."""

    def look(criu: int) -> bool:
        begun = read_stat(f"/proc/{criu}/stat")
        if begun is None:
            return True
        made = read_stat(f"/proc/{root()}/stat")
        # With --restore-sibling, both have the same parent.
        if made is None or made.parent not in (criu, begun.parent):
            return False
        write(criu, NEVER)
        return True

    return look
