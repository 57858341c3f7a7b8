# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls of which nobody knows what they do to the host: after everything else."""

from __future__ import annotations

from ..context import Context
from ..registry import case
from ..workload import Process


@case("who/odd-pids")
def odd_pids(c: Context) -> None:
    """PIDs that name no ordinary process."""
    for pid in (0, -1):
        for op in ("state", "tid", "lock"):
            c.call(op, Process(str(pid), pid), reread=False, hang=True)
    for op in ("state", "tid"):
        c.call(op, Process("1", 1), reread=False, hang=True)
    beyond = Process("4194305", 4194305)
    for op in ("state", "lock"):
        c.call(op, beyond, reread=False)


@case("who/kernel-thread", requires=["root", "kernel_threads"], real_only="a simulated host shows no kernel threads")
def kernel_thread(c: Context) -> None:
    c.call("state", Process("2", 2), reread=False, hang=True)
