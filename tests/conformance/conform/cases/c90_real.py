# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Frameworks on a real GPU: what the simulated workloads stand for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from .. import hold, proc
from ..child import Child
from ..context import Context
from ..registry import case
from ..workload import Workload
from .c40_kinds import long_workload

WORKLOADS = Path(__file__).resolve().parent.parent.parent / "workloads"
TORCH, JAX, CUPY = "needs PyTorch", "needs JAX", "needs CuPy"


def framework(c: Context, script: str, mib: int, **env: str) -> Workload:
    c.step = f"starting {script}"
    out = c.work / "w1"
    with open(c.work / "w1.stderr", "wb") as log:
        process = subprocess.Popen(
            [c.options.python, str(WORKLOADS / script), str(out), str(mib)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **env},
            cwd="/",
            start_new_session=True,
        )
    process.returncode = 0
    w = Workload("w1", process.pid, out, mib)
    c.add(w)
    w.wait_ready(180)
    c.remember_sum(w)
    return w


def through_criu(c: Context, w: Workload) -> None:
    """Suspend, to disk and back, resume."""
    c.suspend(w)
    c.dump(w)
    c.gone(w)
    c.undump(w)
    c.resume(w)
    c.whole(w)


@case("real/torch-plain", requires=["torch"], backends=["libcuda"], real_only=TORCH, slow=True, seconds=300)
def torch_plain(c: Context) -> None:
    """PyTorch survives a plain suspend that lasts."""
    w = framework(c, "torch_worker.py", 512)
    c.look(w, "running")
    c.suspend(w)
    c.look(w, "checkpointed")
    c.note("suspended, eight seconds later", w.wait_death(8))
    c.resume(w)
    c.whole(w)


@case(
    "real/torch-criu", requires=["torch", "criu", "root"], backends=["libcuda"], real_only=TORCH, slow=True, seconds=300
)
def torch_criu(c: Context) -> None:
    through_criu(c, framework(c, "torch_worker.py", 512))


@case(
    "real/torch-expandable-segments",
    requires=["torch", "criu", "root"],
    backends=["libcuda"],
    real_only=TORCH,
    slow=True,
    seconds=300,
)
def torch_expandable(c: Context) -> None:
    """PyTorch's allocator over virtual memory management."""
    setting = "expandable_segments:True"
    through_criu(c, framework(c, "torch_worker.py", 512, PYTORCH_ALLOC_CONF=setting, PYTORCH_CUDA_ALLOC_CONF=setting))


@case("real/cupy-criu", requires=["cupy", "criu", "root"], backends=["libcuda"], real_only=CUPY, slow=True, seconds=300)
def cupy_criu(c: Context) -> None:
    through_criu(c, framework(c, "cupy_worker.py", 512))


@case("real/jax-plain", requires=["jax"], backends=["libcuda"], real_only=JAX, slow=True, seconds=300)
def jax_plain(c: Context) -> None:
    """JAX dies of a plain suspend."""
    w = framework(c, "jax_worker.py", 512)
    c.look(w, "running")
    c.call("lock", w)
    c.begun_and_over("checkpoint", w)
    c.death(w, 30)


@case("real/jax-parked", requires=["jax"], backends=["libcuda"], real_only=JAX, slow=True, seconds=400)
def jax_parked(c: Context) -> None:
    """Held and parked, stop first: a minute later it is whole."""
    w = framework(c, "jax_worker.py", 512)
    before = proc.snapshot(w.pid).threads
    c.call("lock", w)
    c.park(w)
    c.look(w, "parked")
    c.note("parked, a minute later", w.wait_death(60))
    c.unpark(w)
    c.note("let go, eight seconds later", w.wait_death(8))
    c.whole(w)
    c.raw.append({"at": "threads", "before": len(before), "after": len(proc.snapshot(w.pid).threads)})


@case(
    "real/jax-parked-criu",
    requires=["jax", "criu", "root"],
    backends=["libcuda"],
    real_only=JAX,
    slow=True,
    seconds=400,
)
def jax_parked_criu(c: Context) -> None:
    w = framework(c, "jax_worker.py", 512)
    c.call("lock", w)
    c.park(w)
    c.dump(w)
    c.gone(w)
    c.undump(w)
    c.unpark(w)
    c.note("let go, eight seconds later", w.wait_death(8))
    c.whole(w)


def lose_holder(c: Context, w: Workload, later: str, seconds: float) -> None:
    """The first holder is killed at work; a second one reads the state again and, `seconds` later, resumes."""
    tid = c.restore_tid(w)
    c.call("lock", w)
    patience = c.size.patience_for(w.mib)
    first = Child(lambda: hold.suspend(w.pid, tid, c.starter("checkpoint", w), patience))
    c.note("the holder is at work", c.at_work("checkpoint", first, w))
    first.kill()
    time.sleep(0.5)
    c.note("the holder is dead", w.death(), run=proc.snapshot(w.pid).run_class)
    c.held_reread(w, tid)
    c.note(later, w.wait_death(seconds), run=proc.snapshot(w.pid).run_class)
    w.__dict__["restore_tid"] = tid
    c.unpark(w)


@case("real/jax-holder-killed", requires=["jax"], backends=["libcuda"], real_only=JAX, slow=True, seconds=400)
def jax_holder_killed(c: Context) -> None:
    """The holder is killed while it checkpoints: the process stays stopped; a second holder brings it to an end."""
    w = framework(c, "jax_worker.py", 2048)
    lose_holder(c, w, "a minute later", 60)
    c.note("let go, eight seconds later", w.wait_death(8))
    c.whole(w)


@case(
    "real/long-kernel-checkpoint",
    requires=["real_gpu"],
    real_only="looks for an event that was seen once on a real driver",
    seconds=300,
    slow=True,
)
def long_kernel_checkpoint(c: Context) -> None:
    """A thread waits in a synchronous copy behind a long kernel while the process is locked and checkpointed. Once the
    workload ended with a CUDA error after the unlock: three rounds, each watched until the counter has moved."""
    w = long_workload(c)
    for number in (1, 2, 3):
        c.in_kernel(w)
        c.call("lock", w)
        for op in ("checkpoint", "restore", "unlock"):
            c.call(op, w, reread=op != "unlock")
        at, end = w.counter(), time.monotonic() + 4 * c.size.kernel_ms / 1000 + 5
        while w.counter() == at and w.death() == "alive" and time.monotonic() < end:
            time.sleep(0.05)
        how = w.death()
        c.note(f"round {number}", how, counter="moved" if w.counter() != at else "stood")
        if how != "alive":
            break


@case("park/holder-killed", seconds=240, slow=True)
def holder_killed(c: Context) -> None:
    """The same with a polling workload: the holder dies in the middle of the checkpoint, nothing is lost."""
    w = c.workload(kind="polling", mib=c.size.big)
    c.remember_sum(w)
    lose_holder(c, w, "some seconds later", 4)
    c.note("let go, two seconds later", w.wait_death(2))
    c.whole(w)
    w.signal(signal.SIGTERM)
