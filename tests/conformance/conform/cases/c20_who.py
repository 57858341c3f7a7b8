# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whom a call may name, and with which arguments."""

from __future__ import annotations

import os
import pwd
import signal
import time
from typing import Any

from .. import proc
from ..context import Context
from ..registry import case
from ..workload import Process, Workload

ALL = ("state", "tid", "lock", "checkpoint", "restore", "unlock")


def nobody() -> int:
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return 65534


def every_call(c: Context, target: Process, **how: Any) -> None:
    for op in ALL:
        c.call(op, target, reread=False, **how)


@case("who/not-cuda")
def not_cuda(c: Context) -> None:
    every_call(c, c.other("plain", ["sleep", "1000"]))


@case("who/no-such-pid")
def no_such_pid(c: Context) -> None:
    gone = c.other("dead", ["true"])
    c.gone(gone)
    every_call(c, gone)


@case("who/zombie")
def zombie(c: Context) -> None:
    """A process that never used CUDA, and a workload, dead and not reaped."""
    dead = c.other("zombie", ["true"])
    dead.wait_death(10)
    every_call(c, dead)
    w = c.workload()
    w.signal(signal.SIGKILL)
    c.death(w)
    every_call(c, w)


@case("who/thread-id")
def thread_id(c: Context) -> None:
    """A thread id is taken for its process."""
    w = c.workload()
    c.remember_sum(w)
    tid = c.restore_tid(w)
    c.note("restore thread", Context.thread_name(w, tid))
    thread = Process("thread", tid)
    c.names.add_pid(tid, "thread")
    for op in ("state", "tid", "lock", "checkpoint", "restore", "unlock"):
        c.call(op, thread, label=f"{op} thread id")
    c.whole(w)


@case("who/every-thread-id")
def every_thread_id(c: Context) -> None:
    """State and restore thread asked by each thread id: do all of them answer alike?"""
    w = c.workload()
    answers = set()
    for tid in proc.threads_of(w.pid):
        reply = c.begin("state", Process("thread", tid)).wait(c.size.patience)
        c.names.add_pid(tid, "thread")
        answers.add("no answer" if reply is None else str(c.clean(reply.value if reply.ok else reply.result)))
    c.note("state by every thread id", sorted(answers))


@case("who/other-owner", requires=["root"])
def other_owner(c: Context) -> None:
    """nobody drives a process of root."""
    w = c.workload()
    c.remember_sum(w)
    every_call(c, w, uid=nobody())
    c.call("lock", w)
    every_call(c, w, uid=nobody())
    c.call("checkpoint", w)
    every_call(c, w, uid=nobody())
    c.resume(w)
    c.whole(w)


@case("who/owner", requires=["root"])
def owner(c: Context) -> None:
    """nobody drives its own process, then root does; another unprivileged user does not."""
    os.chown(c.work, nobody(), nobody())
    w = c.workload(uid=nobody())
    c.remember_sum(w)
    every_call(c, w, uid=1)
    every_call(c, w, uid=nobody())
    c.call("state", w)
    c.suspend(w)
    c.resume(w)
    c.whole(w)


@case("args/null", backends=["libcuda"])
def null(c: Context) -> None:
    """NULL in place of each argument struct: all of them are optional."""
    w = c.workload()
    c.remember_sum(w)
    for op in ("lock", "checkpoint", "restore", "unlock"):
        c.call(op, w, args="null")
    c.whole(w)


@case("args/null-result", backends=["libcuda"])
def null_result(c: Context) -> None:
    """NULL where the state or the thread id should go."""
    w = c.workload()
    for op in ("state", "tid"):
        c.call(op, w, args="null")
    dead = c.other("plain", ["sleep", "1000"])
    for op in ("state", "tid"):
        c.call(op, dead, args="null", reread=False)


@case("args/reserved", backends=["libcuda"])
def reserved(c: Context) -> None:
    """A reserved byte that is not zero, in each struct."""
    w = c.workload()
    c.remember_sum(w)
    for op in ("lock", "checkpoint", "restore", "unlock"):
        c.call(op, w, args="reserved")
        if c.state(w) != {"lock": "locked", "checkpoint": "checkpointed", "restore": "locked", "unlock": "running"}[op]:
            c.call(op, w)
    c.whole(w)


@case("args/pairs", backends=["libcuda"])
def pairs(c: Context) -> None:
    """Pairs and count that do not fit together. NULL pairs may well end the caller."""
    w = c.workload()
    c.remember_sum(w)
    c.suspend(w)
    c.call("restore", w, args="no_pairs")
    if c.state(w) == "locked":
        c.call("checkpoint", w)
    c.call("restore", w, args="no_count", device_map=c.identity_map())
    if c.state(w) == "checkpointed":
        c.call("restore", w)
    c.call("unlock", w)
    c.whole(w)


@case("who/traced")
def traced(c: Context) -> None:
    """A process that somebody traces (seized, running) answers as usual."""
    w = c.workload()
    c.remember_sum(w)
    with c.traced(w):
        c.call("state", w, hang=True)
        c.suspend(w)
        c.resume(w)
    c.whole(w)


@case("who/caller-in-session")
def descendants(c: Context) -> None:
    """A CUDA process that was started by a shell, named by its own PID; the shell has no CUDA."""
    out = c.work / "w1"
    shell = c.other(
        "shell",
        ["sh", "-c", '"$0" --vram "$1" --out "$2" & wait', c.options.workload, str(c.size.small), str(out)],
    )
    holder = Workload("shell", shell.pid, out, c.size.small)
    end = time.monotonic() + c.size.ready
    while not (c.work / "w1.pid").exists() and time.monotonic() < end:
        time.sleep(0.02)
    w = Workload("w1", int((c.work / "w1.pid").read_text()), out, c.size.small)
    c.add(w)
    w.wait_ready(c.size.ready)
    c.remember_sum(w)
    c.call("state", holder, reread=False)
    c.call("lock", holder, reread=False)
    c.suspend(w)
    c.resume(w)
    c.whole(w)
