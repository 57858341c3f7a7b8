# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state machine."""

from __future__ import annotations

from ..context import Context
from ..registry import case
from ..workload import Workload

ACTIONS = ("lock", "checkpoint", "restore", "unlock")
LEGAL = {"running": ("lock",), "locked": ("checkpoint", "unlock"), "checkpointed": ("restore",)}


def illegal(c: Context, w: Workload, state: str) -> None:
    for action in ACTIONS:
        if action not in LEGAL[state]:
            c.call(action, w)


@case("state/table")
def table(c: Context) -> None:
    """Every action in every state; an illegal one changes nothing."""
    w = c.workload()
    c.remember_sum(w)
    c.call("state", w)
    illegal(c, w, "running")
    c.call("lock", w)
    illegal(c, w, "locked")
    c.call("checkpoint", w)
    illegal(c, w, "checkpointed")
    c.call("restore", w)
    illegal(c, w, "locked")
    c.call("unlock", w)
    illegal(c, w, "running")
    c.whole(w)


@case("state/evidence")
def seen(c: Context) -> None:
    """What /proc and NVML show in each state, and that memory is the same afterwards."""
    w = c.workload()
    c.remember_sum(w)
    c.look(w, "running")
    c.call("lock", w)
    c.look(w, "locked")
    c.call("checkpoint", w)
    c.look(w, "checkpointed")
    c.call("restore", w)
    c.look(w, "restored")
    c.call("unlock", w)
    c.look(w, "running again")
    c.whole(w)


@case("state/again")
def again(c: Context) -> None:
    """Three rounds on one process."""
    w = c.workload()
    c.remember_sum(w)
    for _dummy in range(3):
        c.suspend(w)
        c.resume(w)
        c.check_sum(w)
    c.whole(w)


@case("state/lock-unlock")
def lock_unlock(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    for _dummy in range(3):
        c.call("lock", w)
        c.call("unlock", w)
    c.whole(w)


@case("state/recheckpoint")
def recheckpoint(c: Context) -> None:
    """From locked after a restore straight back to checkpointed."""
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    c.call("restore", w)
    c.call("checkpoint", w)
    c.resume(w)
    c.whole(w)


@case("state/restore-tid")
def restore_tid(c: Context) -> None:
    """The restore thread in each state: the same thread of the process."""
    w = c.workload()
    seen_tids = []
    for action in ("", "lock", "checkpoint", "restore", "unlock"):
        if action:
            c.call(action, w)
        reply = c.call("tid", w)
        if reply is not None:
            seen_tids.append(reply.value)
    c.note("restore thread over the cycle", "the same" if len(set(seen_tids)) == 1 else "not the same")


@case("state/lock-timeouts")
def lock_timeouts(c: Context) -> None:
    """Timeouts on a process that is not busy."""
    w = c.workload()
    c.remember_sum(w)
    for timeout in (0, 1000, 60000):
        c.call("lock", w, timeout_ms=timeout)
        c.call("lock", w, timeout_ms=timeout)
        c.call("unlock", w)
    c.whole(w)


@case("state/two-processes")
def two_processes(c: Context) -> None:
    """Two processes of one GPU do not touch each other."""
    a, b = c.workload("w1"), c.workload("w2")
    c.remember_sum(a)
    c.remember_sum(b)
    c.suspend(a)
    c.whole(b)
    c.call("lock", b)
    c.call("restore", a)
    c.call("checkpoint", b)
    c.call("unlock", a)
    c.whole(a)
    c.resume(b)
    c.whole(b)
    c.whole(a)


@case("state/big", seconds=240)
def big(c: Context) -> None:
    w = c.workload(mib=c.size.big)
    c.remember_sum(w)
    c.suspend(w)
    c.look(w, "checkpointed")
    c.resume(w)
    c.whole(w)
