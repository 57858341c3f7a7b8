# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host memory that may not be had, and a GPU that is full."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from .. import proc
from ..context import Context, NotApplicable
from ..registry import case
from ..workload import MIB, Workload

SETTING = Path("/proc/sys/vm/overcommit_memory")


def data_of(pid: int) -> int:
    status = proc.parse_status(Path(f"/proc/{pid}/status").read_text())
    return int(status["VmData"].split()[0]) * 1024


@case("limit/rlimit-data")
def rlimit_data(c: Context) -> None:
    """RLIMIT_DATA below what the copy takes: refused at once, locked, and whole after unlock."""
    import resource

    w = c.workload()
    c.remember_sum(w)
    c.call("lock", w)
    bound = data_of(w.pid) + w.bytes // 2
    soft, hard = resource.prlimit(w.pid, resource.RLIMIT_DATA)
    resource.prlimit(w.pid, resource.RLIMIT_DATA, (bound, hard))
    reply = c.call("checkpoint", w)
    c.note("at once", reply is not None and reply.seconds < 5)
    c.call("checkpoint", w)
    c.call("unlock", w)
    c.whole(w)
    resource.prlimit(w.pid, resource.RLIMIT_DATA, (soft, hard))
    c.suspend(w)
    c.resume(w)
    c.whole(w)


@case(
    "limit/overcommit",
    requires=["root", "sysctl"],
    exclusive=True,
    real_only="sets vm.overcommit_memory of the machine",
)
def overcommit(c: Context) -> None:
    """vm.overcommit_memory=2 without room for the copy. The old value is put back whatever happens."""
    ratio = Path("/proc/sys/vm/overcommit_kbytes")
    before, before_ratio = SETTING.read_text(), ratio.read_text()
    before_percent = Path("/proc/sys/vm/overcommit_ratio").read_text()
    w = c.workload(mib=c.size.mid)
    c.remember_sum(w)
    c.call("lock", w)
    committed = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("Committed_AS")
    )

    def put_back() -> None:
        SETTING.write_text(before)
        if before_ratio.strip() != "0":
            ratio.write_text(before_ratio)
        else:
            Path("/proc/sys/vm/overcommit_ratio").write_text(before_percent)

    c.undo.append(put_back)
    try:
        ratio.write_text(str(committed + w.mib * 1024 // 2))
        SETTING.write_text("2")
        pending = c.begin("checkpoint", w)
        reply = pending.wait(c.size.patience)
    finally:
        put_back()
    c.note(
        "checkpoint without room to commit",
        "no answer" if reply is None else c.result_of("checkpoint", w, reply),
        c.state(w),
    )
    if c.state(w) == "checkpointed":
        c.call("restore", w)
    c.call("unlock", w)
    c.whole(w)


@case("limit/cgroup-memory", requires=["root", "memory_cgroup"], seconds=180)
def cgroup_memory(c: Context) -> None:
    """The kernel's OOM killer takes the workload during the checkpoint."""
    w = c.workload(mib=c.size.mid)
    group = c.group(c.host.memory)
    group.add(w.pid)
    group.limit(w.bytes // 4)
    c.call("lock", w)
    c.call("checkpoint", w, reread=False)
    c.death(w, 30)
    c.gone(w)
    c.call("state", w, reread=False)


@case("limit/cgroup-memory-enough", requires=["root", "memory_cgroup"], seconds=180)
def cgroup_memory_enough(c: Context) -> None:
    w = c.workload(mib=c.size.mid)
    c.remember_sum(w)
    group = c.group(c.host.memory)
    group.add(w.pid)
    group.limit(w.bytes * 2 + 2048 * MIB)
    c.suspend(w)
    c.resume(w)
    c.whole(w)


def fill(c: Context, leave: int, gpu: int = 0) -> Workload:
    """A second process that leaves so many MiB free on the GPU, give or take 8."""
    mib = c.free_mib(gpu) - leave - 640 if c.free_mib(gpu) > leave + 2048 else 2
    for attempt in range(4):
        filler = c.workload("filler", mib=mib, gpu=gpu, file=f"filler{attempt}")
        missed = c.free_mib(gpu) - leave
        if abs(missed) <= 8:
            break
        filler.signal(signal.SIGKILL)
        c.gone(filler)
        mib += missed
        wait_free(c, mib, gpu)
    else:
        raise RuntimeError(f"the GPU could not be filled up to {leave} MiB: {missed} MiB off after four attempts")
    c.raw.append({"at": "filled", "filler_mib": mib, "free_mib": c.free_mib(gpu), "wanted": leave})
    return filler


def wait_free(c: Context, mib: int, gpu: int = 0) -> None:
    end = time.monotonic() + 20
    while c.free_mib(gpu) < mib and time.monotonic() < end:
        time.sleep(0.05)


def taken(c: Context, w: Workload) -> int:
    """Suspends w1; what the GPU had free before and after tells what it needs to come back."""
    before = c.free_mib()
    c.suspend(w)
    need = c.free_mib() - before
    if need < w.mib:
        raise RuntimeError(f"{w.name} holds {w.mib} MiB, but {need} MiB became free: somebody else is on this GPU")
    return need


def squeeze(c: Context, share: float, extra: int) -> tuple[Workload, Workload, int]:
    """w1 checkpointed, and a filler that leaves share * need + extra MiB of what w1 needs."""
    w = c.workload(mib=c.size.mid)
    c.remember_sum(w)
    need = taken(c, w)
    filler = fill(c, int(need * share) + extra)
    free = c.free_mib()
    c.raw.append({"at": "squeeze", "need_mib": need, "free_mib": free})
    return w, filler, free - need


@case("vram/too-little", exclusive=True, seconds=300)
def too_little(c: Context) -> None:
    """Restore without room loses the process: out of memory, then an error for ever, also when there is room."""
    w, filler, spare = squeeze(c, 0.5, 0)
    if spare >= 0:
        raise NotApplicable("the GPU could not be filled")
    c.call("restore", w)
    c.call("restore", w)
    for op in ("state", "tid", "lock", "checkpoint", "unlock"):
        c.call(op, w, hang=True, reread=False)
    c.look(w, "after the failed restore")
    before = c.free_mib()
    filler.signal(signal.SIGKILL)
    c.gone(filler)
    wait_free(c, before + filler.mib)
    c.note("there is room again")
    for op in ("restore", "state", "lock", "checkpoint", "unlock", "tid"):
        c.call(op, w, hang=True, reread=False)
    if not c.host.lacks("criu"):
        c.dump(w)
    c.look(w, "lost")
    w.signal(signal.SIGTERM)
    w.wait_death(3)
    c.note("SIGTERM to it", "ended" if w.death() != "alive" else "lives on")
    w.signal(signal.SIGKILL)
    c.death(w)


@case("vram/just-enough", exclusive=True, seconds=300)
def just_enough(c: Context) -> None:
    """As much free as it had used, and a little: enough."""
    w, filler, spare = squeeze(c, 1.0, 32)
    c.note("room to spare", "between 0 and 256 MiB" if 0 <= spare < 256 else f"{'none' if spare < 0 else 'more'}")
    c.resume(w)
    c.whole(w)
    c.note("the filler", filler.death())


@case("vram/full-gpu-suspend", exclusive=True, seconds=300)
def full_gpu(c: Context) -> None:
    """A process is suspended while the GPU is full, and its room is taken by another."""
    w = c.workload(mib=c.size.mid)
    c.remember_sum(w)
    filler = fill(c, 64)
    c.suspend(w)
    c.resume(w)
    c.whole(w)
    c.note("the filler", filler.death())
