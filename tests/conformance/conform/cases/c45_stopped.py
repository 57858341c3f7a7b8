# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stopped and frozen processes: calls that never come back, until the process is continued."""

from __future__ import annotations

import signal
import time

from .. import proc
from ..backend import Pending
from ..context import Context
from ..registry import case
from ..workload import Workload


def stop(c: Context, w: Workload) -> None:
    w.signal(signal.SIGSTOP)
    end = time.monotonic() + 5
    while proc.state_of(w.pid) != "T" and time.monotonic() < end:
        time.sleep(0.005)
    c.note("stopped", proc.snapshot(w.pid).run_class)


def hanging(c: Context, w: Workload, op: str, **how: object) -> Pending | None:
    """A call that should not answer; None if it did."""
    pending = c.begin(op, w, **how)
    reply = pending.wait(c.size.hang)
    c.note(c.describe(op, w, dict(how)), "no answer" if reply is None else c.result_of(op, w, reply))
    return pending if reply is None else None


def late_lock(c: Context, w: Workload, pending: Pending, do: str) -> None:
    """Its time was over long before the process went on: chance decides whether it was locked in the end, or given up.
    What it says and what the state is must agree."""
    reply = pending.wait(c.size.patience)
    if reply is None:
        c.loose.append(pending)
        c.note(do, "no answer")
        return
    state = c.state(w)
    c.raw.append({"at": do, "result": reply.result, "state": state})
    agree = state == ("locked" if reply.ok else "running")
    c.note(
        do,
        "locked or given up, and the state agrees" if agree else c.result_of("lock", w, reply),
        None if agree else state,
    )
    if state == "locked":
        c.begin("unlock", w).wait(c.size.patience)


@case("stopped/state")
def state(c: Context) -> None:
    """A query of a stopped process hangs, the restore thread is answered, and the query ends once it goes on."""
    w = c.workload()
    c.remember_sum(w)
    stop(c, w)
    c.call("tid", w, hang=True)
    pending = hanging(c, w, "state")
    c.call("tid", w, hang=True)
    w.signal(signal.SIGCONT)
    if pending:
        c.finish("continued: state comes back", pending, w, "state")
    c.whole(w)


@case("stopped/lock")
def lock(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    stop(c, w)
    pending = hanging(c, w, "lock")
    w.signal(signal.SIGCONT)
    if pending:
        c.finish("continued: lock comes back", pending, w, "lock")
    c.call("unlock", w)
    c.whole(w)


@case("stopped/lock-timeout")
def lock_timeout(c: Context) -> None:
    """The timeout of the lock is ignored while the process stands still."""
    w = c.workload()
    c.remember_sum(w)
    stop(c, w)
    pending = hanging(c, w, "lock", timeout_ms=300)
    w.signal(signal.SIGCONT)
    if pending:
        late_lock(c, w, pending, "continued: lock comes back")
    c.whole(w)


@case("stopped/locked")
def locked(c: Context) -> None:
    """Stopped while it is locked."""
    w = c.workload()
    c.remember_sum(w)
    c.call("lock", w)
    stop(c, w)
    c.call("tid", w, hang=True)
    pending = hanging(c, w, "checkpoint")
    w.signal(signal.SIGCONT)
    if pending:
        c.finish("continued: checkpoint comes back", pending, w, "checkpoint")
    c.resume(w)
    c.whole(w)


@case("stopped/checkpointed")
def checkpointed(c: Context) -> None:
    """Stopped after the checkpoint: what parking makes of it."""
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    stop(c, w)
    c.look(w, "parked", counter=False)
    c.call("tid", w, hang=True)
    query = hanging(c, w, "state")
    w.signal(signal.SIGCONT)
    if query:
        c.finish("continued: state comes back", query, w, "state")
    stop(c, w)
    restore = hanging(c, w, "restore")
    w.signal(signal.SIGCONT)
    if restore:
        c.finish("continued: restore comes back", restore, w, "restore")
    c.call("unlock", w)
    c.whole(w)


@case("stopped/illegal-call")
def illegal_call(c: Context) -> None:
    """Even a call that would be refused hangs."""
    w = c.workload()
    c.remember_sum(w)
    stop(c, w)
    pending = hanging(c, w, "unlock")
    w.signal(signal.SIGCONT)
    if pending:
        c.finish("continued: unlock comes back", pending, w, "unlock")
    c.whole(w)


@case("stopped/caller-killed")
def caller_killed(c: Context) -> None:
    """The caller of a hanging lock is killed, then the process goes on: is the lock done all the same?"""
    w = c.workload()
    c.remember_sum(w)
    stop(c, w)
    pending = hanging(c, w, "lock")
    if pending:
        pending.kill()
    w.signal(signal.SIGCONT)
    time.sleep(1)
    c.note("continued, the caller of the lock is dead", state=c.state(w))
    if c.state(w) == "locked":
        c.call("unlock", w)
    c.whole(w)


@case("stopped/restore-caller-killed")
def restore_caller_killed(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    stop(c, w)
    pending = hanging(c, w, "restore")
    if pending:
        pending.kill()
    w.signal(signal.SIGCONT)
    time.sleep(1)
    state = c.state(w)
    c.note("continued, the caller of the restore is dead", state=state)
    if state == "checkpointed":
        c.call("restore", w)
    c.call("unlock", w)
    c.whole(w)


@case("stopped/two-hanging")
def two_hanging(c: Context) -> None:
    """Two queries hang side by side; both end."""
    w = c.workload()
    stop(c, w)
    first, second = hanging(c, w, "state"), hanging(c, w, "state")
    w.signal(signal.SIGCONT)
    for number, pending in enumerate((first, second), 1):
        if pending:
            c.finish(f"continued: query {number} comes back", pending, w, "state")


@case("stopped/killed")
def killed(c: Context) -> None:
    """The process is killed while a query hangs on it: the query ends."""
    w = c.workload()
    stop(c, w)
    pending = hanging(c, w, "state")
    w.signal(signal.SIGKILL)
    c.death(w)
    if pending:
        reply = pending.wait(c.size.patience)
        c.note("the query after its death", "no answer" if reply is None else c.clean(reply.result))


@case("frozen/running", requires=["root", "freezer_cgroup"])
def frozen_running(c: Context) -> None:
    """The cgroup freezer does what SIGSTOP does."""
    w = c.workload()
    c.remember_sum(w)
    group = c.group(c.host.freezer)
    group.add(w.pid)
    group.freeze(True)
    c.call("tid", w, hang=True)
    query, lock_call = hanging(c, w, "state"), hanging(c, w, "lock", timeout_ms=300)
    group.freeze(False)
    if query:
        reply = query.wait(c.size.patience)
        c.note("thawed: state comes back", "no answer" if reply is None else c.result_of("state", w, reply))
    if lock_call:
        late_lock(c, w, lock_call, "thawed: lock comes back")
    c.whole(w)


@case("frozen/checkpointed", requires=["root", "freezer_cgroup"])
def frozen_checkpointed(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    group = c.group(c.host.freezer)
    group.add(w.pid)
    group.freeze(True)
    c.call("tid", w, hang=True)
    pending = hanging(c, w, "restore")
    group.freeze(False)
    if pending:
        c.finish("thawed: restore comes back", pending, w, "restore")
    c.call("unlock", w)
    c.whole(w)
