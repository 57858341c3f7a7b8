# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PID namespaces, NCCL over two ranks, and threads that must not run."""

from __future__ import annotations

import os
import signal
import time

from .. import proc
from ..context import Context
from ..registry import case
from ..workload import Workload


@case("pidns/host-pid", requires=["root", "pidns"])
def host_pid(c: Context) -> None:
    """A process in another PID namespace, driven by the PID that the host knows."""
    outer = c.workload(
        "outer", ready=False, wrap=["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    )
    out = outer.out
    end = time.monotonic() + c.size.ready
    inner = 0
    while not inner and time.monotonic() < end:
        time.sleep(0.05)
        inner = next((pid for pid in all_children(outer.pid) if "gpusim" in comm(pid)), 0)
    if not inner:
        raise RuntimeError(f"no workload below unshare (PID {outer.pid}); stderr: {outer.stderr()!r}")
    w = Workload("w1", inner, out, outer.mib)
    c.add(w)
    w.wait_ready(c.size.ready)
    c.remember_sum(w)
    c.call("state", w)
    c.call("tid", w)
    c.look(w, "running")
    c.suspend(w)
    c.look(w, "checkpointed")
    c.resume(w)
    c.whole(w)


def comm(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def all_children(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and proc.snapshot(int(name)).parent == pid:
            found.append(int(name))
    return found


@case("nccl/two-ranks", requires=["gpus>=2", "nccl"], seconds=240)
def two_ranks(c: Context) -> None:
    """The first rank locks, the second waits in a collective; the first is lost by its restore."""
    w = c.workload(kind="nccl", options=["--ranks", "2"])
    other = c.part(w, ".rank1", "rank1")
    c.look(w, "running", nccl=True)
    c.look(other, "running", nccl=True)
    c.call("lock", w, timeout_ms=10000)
    time.sleep(1.5)
    c.call("lock", other, timeout_ms=2000)
    c.call("checkpoint", w)
    c.look(w, "first rank checkpointed", nccl=True)
    c.call("restore", w)
    c.call("restore", w, hang=True)
    c.call("unlock", w, hang=True)
    c.call("state", w, hang=True)
    c.note("first rank", w.death())
    c.note("second rank", other.death())


@case("nccl/two-ranks-unlock", requires=["gpus>=2", "nccl"], seconds=240)
def two_ranks_unlock(c: Context) -> None:
    """Seen in time: the second rank's lock gives up, the first is unlocked, and both go on."""
    w = c.workload(kind="nccl", options=["--ranks", "2"])
    other = c.part(w, ".rank1", "rank1")
    c.call("lock", w, timeout_ms=10000)
    time.sleep(1.5)
    c.call("lock", other, timeout_ms=2000)
    c.call("unlock", w)
    c.look(w, "unlocked")
    c.look(other, "unlocked")


@case("park/polling-plain-suspend")
def polling_dies(c: Context) -> None:
    """Its threads read device memory while suspended: it dies of a plain suspend, as JAX does."""
    w = c.workload(kind="polling")
    c.remember_sum(w)
    c.call("lock", w)
    c.note("locked, a second later", w.wait_death(1))
    c.begun_and_over("checkpoint", w)
    c.death(w, 15)


@case("park/polling-locked")
def polling_locked(c: Context) -> None:
    """A lock alone does not harm it."""
    w = c.workload(kind="polling")
    c.remember_sum(w)
    c.call("lock", w)
    c.note("locked, two seconds later", w.wait_death(2))
    c.call("unlock", w)
    c.whole(w)


@case("park/polling-parked", seconds=180, slow=True)
def polling_parked(c: Context) -> None:
    """Held around the checkpoint and left stopped, it lives; resumed the same way, it is whole."""
    w = c.workload(kind="polling")
    c.remember_sum(w)
    c.call("lock", w)
    c.park(w)
    c.look(w, "parked")
    c.note("parked, some seconds later", w.wait_death(6))
    c.look(w, "still parked", counter=False)
    c.unpark(w)
    c.note("let go, two seconds later", w.wait_death(2))
    c.whole(w)


@case("park/plain-parked")
def plain_parked(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    c.call("lock", w)
    c.park(w)
    c.look(w, "parked")
    query = c.begin("state", w)
    reply = query.wait(c.size.hang)
    c.note("state of a parked process", "no answer" if reply is None else c.result_of("state", w, reply))
    if reply is None:
        query.kill()
    c.unpark(w)
    c.look(w, "resumed")
    c.whole(w)


@case("park/twice")
def parked_twice(c: Context) -> None:
    w = c.workload(kind="polling")
    c.remember_sum(w)
    for _dummy in range(2):
        c.call("lock", w)
        c.park(w)
        c.unpark(w)
        c.check_sum(w)
    c.whole(w)


@case("park/continued")
def parked_continued(c: Context) -> None:
    """A parked polling process that somebody continues dies."""
    w = c.workload(kind="polling")
    c.remember_sum(w)
    c.call("lock", w)
    c.park(w)
    w.signal(signal.SIGCONT)
    c.death(w, 15)


@case("park/stopped-while-locked")
def stop_then_checkpoint_alone(c: Context) -> None:
    """What the driver needs: with only the restore thread running, which calls answer?"""
    w = c.workload()
    c.remember_sum(w)
    tid = c.restore_tid(w)
    c.call("lock", w)
    c.held_calls(w, tid, ["state", "checkpoint", "state", "restore", "state", "unlock"])
    c.whole(w)


@case("park/not-locked")
def not_locked(c: Context) -> None:
    """Stopped by somebody else while it ran: which calls answer when only the restore thread runs?"""
    w = c.workload()
    c.remember_sum(w)
    tid = c.restore_tid(w)
    c.held_calls(w, tid, ["tid"])
    c.whole(w)
