# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls at the same time, callers that die in the middle, processes that die while suspended."""

from __future__ import annotations

import signal
import time

from ..context import Context
from ..registry import case
from ..workload import Workload
from .c40_kinds import long_workload


def at_once(c: Context, w: Workload, *ops: str, apart: float = 0.0) -> None:
    """Their results as a set: which of two equal calls wins is chance."""
    pendings = []
    for op in ops:
        pendings.append((op, c.begin(op, w)))
        time.sleep(apart)
    results = []
    for op, pending in pendings:
        reply = pending.wait(c.size.patience_for(w.mib))
        if reply is None:
            c.loose.append(pending)
        results.append("no answer" if reply is None else c.result_of(op, w, reply))
    c.note(" and ".join(ops) + " at once", sorted(results, key=str), c.state(w))


@case("race/two-locks")
def two_locks(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    at_once(c, w, "lock", "lock")
    c.call("unlock", w)
    c.whole(w)


@case("race/two-checkpoints")
def two_checkpoints(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    c.call("lock", w)
    at_once(c, w, "checkpoint", "checkpoint")
    c.resume(w)
    c.whole(w)


@case("race/two-restores")
def two_restores(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    at_once(c, w, "restore", "restore")
    c.call("unlock", w)
    c.whole(w)


@case("race/two-unlocks")
def two_unlocks(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    c.call("lock", w)
    at_once(c, w, "unlock", "unlock")
    c.whole(w)


@case("race/queries-during-checkpoint", seconds=240)
def queries_during(c: Context) -> None:
    """State, restore thread and a lock, asked in the middle of a checkpoint and of a restore."""
    w = c.workload(mib=c.size.big)
    c.remember_sum(w)
    c.call("lock", w)
    for op in ("checkpoint", "restore"):
        pending = c.begin(op, w)
        c.note(f"{op} is at work", c.at_work(op, pending, w))
        c.call("tid", w)
        c.note("the restore thread was told in the midst of it", pending.wait(0) is None)
        c.call("state", w, mib=w.mib)
        c.note("the state was told only afterwards", pending.wait(0.5) is not None)
        c.finish(f"{op} comes back", pending, w, op, w.mib)
    c.call("unlock", w)
    c.whole(w)


@case("race/restore-during-checkpoint", seconds=240)
def restore_during(c: Context) -> None:
    """A restore asked while the checkpoint is at work."""
    w = c.workload(mib=c.size.big)
    c.remember_sum(w)
    c.call("lock", w)
    pending = c.begin("checkpoint", w)
    c.note("checkpoint is at work", c.at_work("checkpoint", pending, w))
    second = c.begin("restore", w)
    calls = (("checkpoint", pending), ("restore", second))
    replies = [(op, call.wait(c.size.patience_for(w.mib))) for op, call in calls]
    # Read when both are over: in between, the restore may have begun or not.
    state = c.state(w)
    for op, reply in replies:
        c.note(f"{op} comes back", "no answer" if reply is None else c.result_of(op, w, reply), state)
    if state == "checkpointed":
        c.call("restore", w, mib=w.mib)
    c.call("unlock", w)
    c.whole(w)


@case("killed/tool-in-checkpoint", seconds=240)
def tool_in_checkpoint(c: Context) -> None:
    """The caller is killed in the middle: the driver goes on by itself, and the state blocks until it is done."""
    w = c.workload(mib=c.size.big)
    c.remember_sum(w)
    c.call("lock", w)
    cut(c, w, "checkpoint")
    c.look(w, "checkpointed")
    cut(c, w, "restore")
    c.call("unlock", w)
    c.whole(w)


def cut(c: Context, w: Workload, op: str) -> None:
    pending = c.begin(op, w)
    busy = c.at_work(op, pending, w)
    pending.kill()
    c.note(f"the caller of {op} is killed at work", busy)
    reply = c.call("state", w, mib=w.mib)
    c.note("the state was told only afterwards", reply is not None and reply.seconds > 0.2)


@case("killed/tool-in-lock", seconds=180)
def tool_in_lock(c: Context) -> None:
    """The caller of a lock that waits for a kernel is killed. What is the state when the kernel is over?"""
    w = long_workload(c)
    c.in_kernel(w)
    pending = c.begin("lock", w)
    c.note("the lock waits", pending.wait(0.5) is None)
    pending.kill()
    at, end = w.counter(), time.monotonic() + 6
    while w.counter() == at and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.5)
    state = c.state(w)
    c.note("after the kernel", state=state)
    if state == "locked":
        c.call("unlock", w)
    c.call("lock", w)
    c.call("unlock", w)
    c.note("end", w.death(), c.state(w))


def dies(c: Context, steps: list[str], number: int) -> None:
    w = c.workload()
    for op in steps:
        c.call(op, w)
    w.signal(number)
    c.death(w)
    c.gone(w)
    c.call("state", w, reread=False)
    c.note("NVML lists it", c.listed_on(w.pid))


@case("killed/locked-sigterm")
def locked_sigterm(c: Context) -> None:
    dies(c, ["lock"], signal.SIGTERM)


@case("killed/locked-sigkill")
def locked_sigkill(c: Context) -> None:
    dies(c, ["lock"], signal.SIGKILL)


@case("killed/checkpointed-sigterm")
def checkpointed_sigterm(c: Context) -> None:
    dies(c, ["lock", "checkpoint"], signal.SIGTERM)


@case("killed/checkpointed-sigkill")
def checkpointed_sigkill(c: Context) -> None:
    dies(c, ["lock", "checkpoint"], signal.SIGKILL)


@case("killed/restored-sigterm")
def restored_sigterm(c: Context) -> None:
    dies(c, ["lock", "checkpoint", "restore"], signal.SIGTERM)


@case("killed/in-checkpoint", seconds=240, exclusive=True)
def in_checkpoint(c: Context) -> None:
    """The process itself is killed in the middle of its checkpoint: the call ends, the GPU's memory is free."""
    w = c.workload(mib=c.size.big)
    used = c.used_mib()
    c.call("lock", w)
    pending = c.begin("checkpoint", w)
    c.note("checkpoint is at work", c.at_work("checkpoint", pending, w))
    w.signal(signal.SIGKILL)
    c.death(w, 60)
    c.gone(w)
    reply = pending.wait(c.size.patience)
    if reply is None:
        c.loose.append(pending)
    c.note("the call after its death", "no answer" if reply is None else c.clean(reply.result))
    c.note("the GPU's memory is free again", used - c.used_mib() >= w.mib)
