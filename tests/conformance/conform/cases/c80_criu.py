# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real CRIU on running and on suspended processes."""

from __future__ import annotations

import hashlib
import signal
import time
from pathlib import Path
from typing import Any

from .. import proc
from ..context import Context
from ..criu import Criu
from ..registry import case
from ..workload import Workload
from .c60_limits import fill, taken

ONE = ["libcuda"]
NEED = ["criu", "root"]


def digest(images: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(images.iterdir()):
        # CRIU adds its statistics to the image when it restores.
        if path.is_file() and not path.name.startswith("stats-"):
            total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def intact(c: Context, w: Workload) -> None:
    """Not stopped, not traced, still checkpointed."""
    seen = proc.snapshot(w.pid)
    c.note(f"intact {w.name}", w.death(), c.state(w), run=seen.run_class, traced=seen.tracer != 0)


def suspended(c: Context, **how: Any) -> Workload:
    w = c.workload(**how)
    c.remember_sum(w)
    c.suspend(w)
    return w


@case("criu/running", requires=NEED, backends=ONE)
def running(c: Context) -> None:
    """A dump of a running CUDA process is refused, and leaves it as it was."""
    w = c.workload()
    c.remember_sum(w)
    c.dump(w)
    c.whole(w)


@case("criu/locked", requires=NEED, backends=ONE)
def locked(c: Context) -> None:
    w = c.workload()
    c.remember_sum(w)
    c.call("lock", w)
    c.dump(w)
    c.note("after it", w.death(), c.state(w))
    c.call("unlock", w)
    c.whole(w)


@case("criu/cycle", requires=NEED)
def cycle(c: Context) -> None:
    """Suspend, dump, restore, resume: the counter goes on, the memory is the same."""
    w = suspended(c)
    at = w.counter()
    c.dump(w)
    c.death(w, do="after the dump")
    c.gone(w)
    c.note("NVML lists it", c.listed_on(w.pid))
    c.undump(w)
    intact(c, w)
    c.call("tid", w)
    c.look(w, "restored by criu")
    c.resume(w)
    c.look(w, "running again")
    now = w.counter()
    c.note("the counter goes on from where it was", now is not None and at is not None and now >= at)
    c.whole(w)


@case("criu/twice", requires=NEED, backends=ONE)
def twice(c: Context) -> None:
    """Through two images one after the other."""
    w = suspended(c)
    for images in ("first", "second"):
        c.dump(w, images)
        c.gone(w)
        c.undump(w, images)
        c.resume(w)
        c.check_sum(w)
        if images == "first":
            c.suspend(w)
    c.whole(w)


@case("criu/leave-running", requires=NEED, backends=ONE)
def leave_running(c: Context) -> None:
    w = suspended(c)
    c.dump(w, extra=["--leave-running"], label="criu dump --leave-running")
    intact(c, w)
    c.resume(w)
    c.whole(w)


@case("criu/killed", requires=NEED, backends=ONE, seconds=240)
def killed(c: Context) -> None:
    """criu is killed half way: the process is not stopped, not traced, still checkpointed."""
    w = suspended(c, mib=c.size.big)
    at_work = Criu(c.options.criu, c.work).dump_killed(w.pid, c.work / "image", c.size.patience_for(w.mib))
    c.note("criu dump is killed at work", at_work)
    time.sleep(0.5)
    intact(c, w)
    c.resume(w)
    c.whole(w)


@case("criu/disk-full", requires=[*NEED, "mount"], backends=ONE)
def disk_full(c: Context) -> None:
    w = suspended(c)
    c.tmpfs("small", max(4, c.size.small // 2))
    c.dump(w, "small/image")
    intact(c, w)
    c.resume(w)
    c.whole(w)


@case("criu/file-changed", requires=NEED, backends=ONE)
def file_changed(c: Context) -> None:
    """A file that the process had open has another size: refused, and the image is intact."""
    w = suspended(c)
    c.dump(w)
    c.gone(w)
    before = digest(c.work / "image")
    content = w.out.read_bytes()
    w.out.write_bytes(content + b"more\n")
    c.undump(w, label="criu restore, file changed")
    c.gone(w)  # the process that criu had begun to make
    c.note("the image is as it was", digest(c.work / "image") == before)
    w.out.write_bytes(content)
    c.undump(w, label="criu restore, file as it was")
    c.resume(w)
    c.whole(w)


@case("criu/pid-busy", requires=NEED, backends=ONE)
def pid_busy(c: Context) -> None:
    """The dumped process is not reaped yet: its PID is busy. Works once it is free."""
    w = suspended(c)
    c.dump(w)
    c.death(w, do="not reaped after the dump")
    before = digest(c.work / "image")
    c.undump(w, label="criu restore, PID busy")
    c.note("the image is as it was", digest(c.work / "image") == before)
    c.gone(w)
    c.undump(w, label="criu restore, PID free")
    c.resume(w)
    c.whole(w)


@case("criu/second-life", requires=NEED, backends=ONE)
def second_life(c: Context) -> None:
    """A second restore while the first lives is refused by the PID."""
    w = suspended(c)
    c.dump(w)
    c.gone(w)
    c.undump(w)
    c.undump(w, label="second criu restore")
    intact(c, w)
    c.resume(w)
    c.whole(w)


@case("criu/killed-and-restored", requires=NEED, backends=ONE)
def killed_and_restored(c: Context) -> None:
    """Suspended, dumped, restored, killed, and restored from the same image once more."""
    w = suspended(c)
    c.dump(w)
    c.gone(w)
    c.undump(w)
    w.signal(signal.SIGKILL)
    c.death(w)
    c.gone(w)
    c.undump(w, label="criu restore after its death")
    c.resume(w)
    c.whole(w)


@case("criu/child-holds-device", requires=NEED, backends=ONE)
def child_holds_device(c: Context) -> None:
    """The tree of a process with a forked child that holds devices can't be dumped; restore brings the parent back."""
    w = c.workload(kind="fork")
    child = c.part(w, ".child", "child", mib=0)
    c.remember_sum(w)
    c.suspend(w)
    c.dump(w)
    c.note("after it", w.death(), c.state(w), child=child.life)
    c.resume(w)
    c.whole(w)
    c.note("child", child.life, counter="moves" if child.moves(c.size.window) else "stands")


@case("criu/managed", requires=NEED, backends=ONE)
def managed(c: Context) -> None:
    w = c.workload(kind="managed")
    c.remember_sum(w)
    c.suspend(w)
    c.dump(w)
    c.call("unlock", w)
    c.whole(w)


@case("criu/vmm-export", requires=NEED, backends=ONE)
def vmm_export(c: Context) -> None:
    w = suspended(c, kind="vmm_export")
    result = c.dump(w)
    if result.rc == 0:
        c.gone(w)
        c.undump(w)
    c.note("after it", w.death(), c.state(w))
    if w.death() == "alive":
        c.resume(w)
        c.whole(w)


@case("criu/pinned", requires=NEED, backends=ONE)
def pinned(c: Context) -> None:
    w = suspended(c, kind="pinned")
    c.dump(w)
    c.gone(w)
    c.undump(w)
    c.resume(w)
    c.whole(w)


@case("criu/nccl-one-rank", requires=[*NEED, "nccl"], backends=ONE)
def nccl_one_rank(c: Context) -> None:
    w = suspended(c, kind="nccl", options=["--ranks", "1"])
    c.dump(w)
    c.note("after it", w.death(), c.state(w))
    if w.death() == "alive":
        connected = ["--tcp-established"]
        result = c.dump(w, "image-tcp", label="criu dump --tcp-established", extra=connected)
        if result.rc == 0:
            c.gone(w)
            c.undump(w, "image-tcp", label="criu restore --tcp-established", extra=connected)
    if w.death() == "alive":
        c.resume(w)
        c.whole(w)


@case("criu/parked", requires=NEED, seconds=180)
def parked(c: Context) -> None:
    """A parked polling process goes through CRIU and comes back parked; resumed under the hold it is whole."""
    w = c.workload(kind="polling")
    c.remember_sum(w)
    c.call("lock", w)
    c.park(w)
    c.dump(w)
    c.gone(w)
    c.undump(w)
    c.look(w, "restored by criu", counter=False)
    c.note("restored, two seconds later", w.wait_death(2))
    c.unpark(w)
    c.note("let go, two seconds later", w.wait_death(2))
    c.whole(w)


@case("criu/polling-unparked", requires=NEED, backends=ONE)
def polling_unparked(c: Context) -> None:
    """Stopped only for the dump, it comes back running without its GPU, and dies."""
    w = c.workload(kind="polling")
    c.remember_sum(w)
    c.call("lock", w)
    c.park(w)
    c.dump(w)
    c.gone(w)
    c.undump(w)
    w.signal(signal.SIGCONT)
    c.death(w, 15)


@case("criu/restore-onto-full-gpu", requires=NEED, backends=ONE, exclusive=True, seconds=300)
def full_gpu(c: Context) -> None:
    """No room on the GPU after criu restore: this life is lost, the image is not."""
    w = c.workload(mib=c.size.mid)
    c.remember_sum(w)
    need = taken(c, w)
    c.dump(w)
    c.gone(w)
    filler = fill(c, need // 2)
    c.undump(w)
    c.call("restore", w)
    c.call("restore", w, hang=True)
    w.signal(signal.SIGKILL)
    c.gone(w)
    filler.signal(signal.SIGKILL)
    c.gone(filler)
    c.undump(w, label="criu restore with room again")
    c.resume(w)
    c.whole(w)


@case("criu/map-identity", requires=NEED, backends=ONE)
def map_identity(c: Context) -> None:
    w = suspended(c)
    c.dump(w)
    c.gone(w)
    c.undump(w)
    c.call("restore", w, device_map=c.identity_map(), label="restore w1 map identity")
    c.call("unlock", w)
    c.whole(w)


@case("criu/map-swap", requires=[*NEED, "gpus>=2"])
def map_swap(c: Context) -> None:
    """Dumped on the first GPU, brought back on the second."""
    w = suspended(c)
    c.dump(w)
    c.gone(w)
    c.undump(w)
    c.call("restore", w, device_map=c.swap_map(), label="restore w1 map swap")
    c.call("unlock", w)
    c.look(w, "on the other GPU")
    c.whole(w)


@case("criu/multi-gpu", requires=[*NEED, "gpus>=2"], backends=ONE)
def multi_gpu(c: Context) -> None:
    w = suspended(c, kind="multi_gpu")
    c.dump(w)
    c.gone(w)
    c.undump(w)
    c.resume(w)
    c.look(w, "back")
    c.whole(w)


@case("criu/nccl-two-ranks", requires=[*NEED, "gpus>=2", "nccl"], backends=ONE)
def nccl_two_ranks(c: Context) -> None:
    """A rank that runs is no more dumpable than any other CUDA process."""
    w = c.workload(kind="nccl", options=["--ranks", "2"])
    c.part(w, ".rank1", "rank1")
    c.dump(w)
    c.note("after it", w.death(), c.state(w))
