# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A full cycle of each kind of workload, with the evidence in each state."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Iterator

from ..context import Context
from ..registry import case
from ..workload import Workload


def cycle(c: Context, w: Workload, nccl: bool = False) -> None:
    """running, locked, checkpointed, and back."""
    c.remember_sum(w)
    c.look(w, "running", nccl=nccl)
    c.call("lock", w)
    c.look(w, "locked")
    c.call("checkpoint", w)
    c.look(w, "checkpointed", nccl=nccl)
    c.call("restore", w)
    c.look(w, "restored")
    c.call("unlock", w)
    c.look(w, "running again", nccl=nccl)
    c.whole(w)


def left_on_gpu(c: Context, kind: str) -> None:
    """How much of the GPU a process holds while it is suspended; nobody else may be on it."""
    before = c.used_mib()
    w = c.workload(kind=kind)
    c.remember_sum(w)
    c.suspend(w)
    left = c.used_mib() - before
    c.raw.append({"at": "left on the GPU", "mib": left, "of": w.mib})
    c.note("on the GPU while suspended", "nothing" if left < w.mib // 2 else "the workload's memory")
    c.resume(w)
    c.note("on the GPU when resumed", "the workload's memory" if c.used_mib() - before >= w.mib else "less")
    c.whole(w)


@case("kind/plain")
def plain(c: Context) -> None:
    cycle(c, c.workload())


@case("kind/pinned")
def pinned(c: Context) -> None:
    cycle(c, c.workload(kind="pinned"))


@case("kind/vmm")
def vmm(c: Context) -> None:
    cycle(c, c.workload(kind="vmm"))


@case("kind/vmm-export")
def vmm_export(c: Context) -> None:
    cycle(c, c.workload(kind="vmm_export"))


@case("kind/ipc-export")
def ipc_export(c: Context) -> None:
    """A handle that nobody has opened does no harm."""
    cycle(c, c.workload(kind="ipc_export"))


@case("kind/plain-memory", exclusive=True)
def plain_memory(c: Context) -> None:
    """Suspended, it leaves nothing on the GPU."""
    left_on_gpu(c, "plain")


@case("kind/vmm-export-memory", exclusive=True)
def vmm_export_memory(c: Context) -> None:
    """Exported memory stays on the GPU."""
    left_on_gpu(c, "vmm_export")


@case("kind/managed")
def managed(c: Context) -> None:
    """Checkpoint is refused, and the process stays locked until it is unlocked."""
    w = c.workload(kind="managed")
    c.remember_sum(w)
    c.look(w, "running")
    c.call("lock", w)
    c.look(w, "locked")
    c.call("checkpoint", w)
    c.look(w, "refused")
    c.call("checkpoint", w)
    c.call("restore", w)
    c.call("lock", w)
    c.call("unlock", w)
    c.look(w, "running again")
    c.call("lock", w)
    c.call("checkpoint", w)
    c.call("unlock", w)
    c.whole(w)


@case("kind/managed-toggle", backends=["cli"])
def managed_toggle(c: Context) -> None:
    w = c.workload(kind="managed")
    c.remember_sum(w)
    c.call("toggle", w)
    if c.state(w) == "locked":
        c.call("unlock", w)
    c.whole(w)


@case("kind/nccl-one-rank", requires=["nccl"])
def nccl_one_rank(c: Context) -> None:
    cycle(c, c.workload(kind="nccl", options=["--ranks", "1"]), nccl=True)


@contextlib.contextmanager
def mps_client(c: Context) -> Iterator[Workload]:
    """A client with a daemon of the case's own, both ended in order before the rest is swept away."""
    pipe, log = c.work / "mps", c.work / "mps-log"
    pipe.mkdir(mode=0o777)
    log.mkdir(mode=0o777)
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
    w = c.workload(kind="mps", env=env)
    try:
        c.remember_sum(w)
        yield w
    finally:
        w.signal(signal.SIGTERM)
        w.wait_death(10)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["nvidia-cuda-mps-control"],
                input=b"quit\n",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **env},
                timeout=15,
                check=False,
            )


@case("kind/mps", requires=["mps", "root"])
def mps(c: Context) -> None:
    """Lock is refused, and the client goes on untouched."""
    with mps_client(c) as w:
        c.look(w, "running")
        c.call("lock", w)
        c.call("checkpoint", w)
        c.call("restore", w)
        c.call("unlock", w)
        c.call("tid", w)
        c.look(w, "after the refusals")
        c.whole(w)


@case("kind/mps-toggle", requires=["mps", "root"], backends=["cli"])
def mps_toggle(c: Context) -> None:
    with mps_client(c) as w:
        c.call("toggle", w)
        c.whole(w)


@case("kind/fork")
def fork(c: Context) -> None:
    """A forked child that never called CUDA: suspend and resume of the parent work, the child is no CUDA process."""
    w = c.workload(kind="fork")
    child = c.part(w, ".child", "child", mib=0)
    c.remember_sum(w)
    for op in ("state", "tid", "lock", "checkpoint", "restore", "unlock"):
        c.call(op, child, reread=False)
    c.look(child, "child, parent running")
    c.call("lock", w)
    c.call("state", child)
    c.call("checkpoint", w)
    c.look(w, "checkpointed")
    c.look(child, "child, parent checkpointed")
    c.call("state", child)
    c.resume(w)
    c.look(child, "child, parent running again")
    c.whole(w)


@case("kind/ipc-imported")
def ipc_imported(c: Context) -> None:
    """Importer out, exporter out, exporter back, importer back: the importer is lost."""
    w = c.workload(kind="ipc")
    importer = c.part(w, ".importer", "importer")
    c.remember_sum(w)
    c.remember_sum(importer)
    c.look(w, "running")
    c.look(importer, "running")
    for one in (importer, w):
        c.suspend(one)
    c.look(importer, "checkpointed")
    c.look(w, "checkpointed")
    c.resume(w)
    c.call("restore", importer)
    c.call("unlock", importer)
    c.call("restore", importer)
    c.call("tid", importer)
    c.note("importer", importer.death())
    c.whole(w)
    importer.signal(signal.SIGTERM)
    importer.wait_death(5)
    c.note("SIGTERM to the importer", "ended" if importer.life in ("dead", "zombie") else "lives on")


@case("kind/ipc-importer-alone")
def ipc_importer_alone(c: Context) -> None:
    """Only the importer goes out and comes back."""
    w = c.workload(kind="ipc")
    importer = c.part(w, ".importer", "importer")
    c.remember_sum(w)
    c.remember_sum(importer)
    c.suspend(importer)
    c.call("restore", importer)
    c.call("unlock", importer)
    c.note("importer", importer.death(), c.state(importer))
    c.whole(w)


@case("kind/ipc-exporter-alone")
def ipc_exporter_alone(c: Context) -> None:
    """Only the exporter goes out and comes back while the importer lives."""
    w = c.workload(kind="ipc")
    importer = c.part(w, ".importer", "importer")
    c.remember_sum(w)
    c.suspend(w)
    c.look(w, "checkpointed")
    c.resume(w)
    c.note("exporter", w.death(), c.state(w))
    c.check_sum(w)
    c.note("importer", importer.death(), c.state(importer))


@case("kind/children-by-exec")
def children_by_exec(c: Context) -> None:
    """A second context holder beside it that shares nothing: each for itself, in both orders."""
    a, b = c.workload("w1"), c.workload("w2")
    c.remember_sum(a)
    c.remember_sum(b)
    for one in (a, b):
        c.suspend(one)
    for one in (a, b):
        c.resume(one)
    for one in (b, a):
        c.suspend(one)
    for one in (a, b):
        c.resume(one)
    c.whole(a)
    c.whole(b)


@case("kind/multi-gpu", requires=["gpus>=2"])
def multi_gpu(c: Context) -> None:
    cycle(c, c.workload(kind="multi_gpu"))


@case("kind/second-gpu", requires=["gpus>=2"])
def second_gpu(c: Context) -> None:
    cycle(c, c.workload(gpu=1))


def long_workload(c: Context) -> Workload:
    return c.workload(kind="longkernel", options=["--kernel-ms", str(c.size.kernel_ms)])


@case("kind/long-kernel-timeout", seconds=180)
def long_kernel(c: Context) -> None:
    """A lock with a timeout gives up and leaves the process as it was; without one it waits for the kernel."""
    w = long_workload(c)
    c.in_kernel(w)
    for timeout in (1, 500):
        reply = c.call("lock", w, timeout_ms=timeout)
        if reply is not None and timeout == 500:
            c.note("it took about its timeout", 0.4 < reply.seconds < 2)
    c.call("checkpoint", w)
    reply = c.call("lock", w)
    c.note("a lock without timeout waited", reply is not None and reply.seconds > 0.8)
    c.call("unlock", w)
    c.in_kernel(w)
    reply = c.call("lock", w, timeout_ms=20000)
    c.note("a lock with a long timeout waited", reply is not None and reply.seconds > 0.8)
    c.call("checkpoint", w)
    c.resume(w)
    c.note("end", w.death(), c.state(w))


@case("kind/long-kernel-toggle", backends=["cli"], seconds=180)
def long_kernel_toggle(c: Context) -> None:
    w = long_workload(c)
    c.in_kernel(w)
    reply = c.call("toggle", w)
    c.note("the toggle waited", reply is not None and reply.seconds > 0.8)
    c.call("toggle", w)
    c.note("end", w.death(), c.state(w))


@case("kind/long-kernel-queries", seconds=180)
def long_kernel_queries(c: Context) -> None:
    """State and restore thread are answered while a kernel runs and while a lock waits for it."""
    w = long_workload(c)
    c.in_kernel(w)
    reply = c.call("state", w)
    c.note("state answered at once", reply is not None and reply.seconds < 1)
    pending = c.begin("lock", w)
    waits = pending.wait(0.5) is None
    c.note("the lock waits", waits)
    tid = c.call("tid", w, hang=True)
    c.note("restore thread answered at once", tid is not None and tid.seconds < 1)
    reply = c.call("state", w)
    c.note("state asked beside a waiting lock answered at once", reply is not None and reply.seconds < 1)
    if waits:
        c.finish("lock comes back", pending, w, "lock")
    c.call("unlock", w)
    c.note("end", w.death(), c.state(w))
