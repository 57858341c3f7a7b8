# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One of eight fails. Away from running all eight end as they began; towards it seven run."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence, Tuple

from .. import judge
from ..plays import TaskResult
from ..registry import test
from ..subject import Subject
from ..trial import Stop, Trial

# Seven that are fine, among them what can't bear to run while it is suspended.
_FINE = [("plain1", "plain"), ("plain2", "plain"), ("plain3", "plain"), ("plain4", "plain"), ("polling1", "polling")]


def seven(t: Trial) -> List[Subject]:
    frameworks = t.spec.stand_ins or "jax" not in t.spec.host["lacking"]
    more = [("jax1", "jax"), ("torch1", "torch")] if frameworks else [("plain5", "plain"), ("polling2", "polling")]
    return t.start([*_FINE, *more])


def named(t: Trial, done: TaskResult, bad: Subject, words: Sequence[str]) -> None:
    t.must(done.status == "failed", "the task fails", status=done.status, result=judge.slim(done.result))
    missing = judge.lacks(done.message, [str(bad.pid), *words])
    t.expect(not missing, "the message names the process, the step and the CUresult", missing=missing, msg=done.message)
    t.say(done.message)


def as_it_began(t: Trial, done: TaskResult, subjects: Sequence[Subject]) -> None:
    missed = judge.not_reached(done.result, "running", [one.pid for one in subjects])
    t.expect(not missed, "processes[].after: all eight are running", missed=missed)
    t.expect(not done.changed, "changed is false: nothing was left different", changed=done.changed)
    t.whole(subjects)
    t.nothing_left(subjects)


@test("one-fails/lock", seconds=240)
def lock(t: Trial) -> None:
    """A kernel runs longer than the lock may wait."""
    subjects = seven(t)
    bad = t.one("longkernel", "longkernel", options=["--kernel-ms", str(t.sizes.kernel_ms)])
    subjects.append(bad)
    for attempt in range(3):
        _kernel_begins(t, bad)
        wanted = t.task("checkpointed", subjects, lock_timeout=0.5)
        done = t.play(f"suspend, attempt {attempt}", [wanted]).results[0]
        if done.status == "failed":
            break
        t.module("resume", "running", subjects)  # the lock met the moment between two kernels
    named(t, done, bad, ["lock", "NOT_READY|600"])
    as_it_began(t, done, subjects)


@test("one-fails/checkpoint", seconds=240)
def checkpoint(t: Trial) -> None:
    """Managed memory, with the gate overridden: the driver refuses the checkpoint of that one."""
    subjects = seven(t)
    bad = t.one("managed", "managed")
    subjects.append(bad)
    done = t.play("suspend", [t.task("checkpointed", subjects, allow=["uvm_managed"])]).results[0]
    named(t, done, bad, ["checkpoint", "NOT_SUPPORTED|801"])
    as_it_began(t, done, subjects)


def seven_and_one(t: Trial, gpu: int) -> Tuple[List[Subject], Subject, int]:
    """Suspended: seven small ones and a big one; and how many MiB are room for the seven but not for the eighth."""
    small = t.start([(f"plain{number}", "plain") for number in range(1, 8)], gpu=gpu)
    bad = t.one("plain", "huge", mib=t.sizes.huge, gpu=gpu)
    done = t.play("suspend", [t.task("checkpointed", [*small, bad])]).results[0]
    t.reached("suspend", done, "checkpointed", [*small, bad], changed=True)
    room = len(small) * (t.sizes.small + t.sizes.context) + t.sizes.context + t.sizes.huge // 4
    if room - len(small) * t.sizes.small >= t.sizes.huge:
        raise Stop(f"room for seven ({room} MiB) is room for the eighth")
    return small, bad, room


def seven_run(t: Trial, done: TaskResult, small: Sequence[Subject], bad: Subject) -> Dict[str, Any]:
    """Returns the entry of the eighth."""
    t.expect(done.changed, "changed is true: seven were resumed", changed=done.changed)
    missed = judge.not_reached(done.result, "running", [one.pid for one in small])
    t.expect(not missed, "processes[].after: seven are running", missed=missed)
    entry = done.process(bad.pid)
    t.expect(entry.get("after") == "checkpointed", "the eighth is still checkpointed", entry=entry)
    t.whole(small)
    t.nothing_left(small)
    return entry


@test("one-fails/restore", seconds=300)
def restore(t: Trial) -> None:
    """A GPU filled by another process, with the gate overridden: there is room for seven, not for the eighth."""
    gpu = t.last_gpu
    small, bad, room = seven_and_one(t, gpu)
    with t.gpu_filled(gpu, room):
        done = t.play("resume", [t.task("running", [*small, bad], allow=["vram_short"])]).results[0]
    named(t, done, bad, ["restore", "OUT_OF_MEMORY|2"])
    entry = seven_run(t, done, small, bad)
    error = entry.get("error") or {}
    t.expect(bool(error.get("remedy")), "what can still be done for it is said", error=error)
    t.fact("the eighth", {"after": entry.get("after"), "error": error, "seen": bad.look().short()})
    again = t.module("resume again", "running", [*small, bad])
    t.expect(again.status == "failed" and not again.changed, "again: fails, and changes nothing", msg=again.message)
    t.whole(small, "after the second try")


@test("one-fails/no-room", seconds=300)
def no_room(t: Trial) -> None:
    """The same with the gate: seven run, the eighth waits unharmed, and the next run brings it back."""
    gpu = t.last_gpu
    small, bad, room = seven_and_one(t, gpu)
    with t.gpu_filled(gpu, room):
        done = t.play("resume", [t.task("running", [*small, bad])]).results[0]
        named(t, done, bad, ["free"])
        seven_run(t, done, small, bad)
        t.expect(bad.look().parked, "the eighth is still parked", seen=bad.look().short())
    done = t.module("resume again", "running", [*small, bad])
    t.reached("resume again", done, "running", [*small, bad], changed=True)
    t.whole([*small, bad], "after the second run")
    t.nothing_left([*small, bad])


def _kernel_begins(t: Trial, one: Subject) -> None:
    first = one.counter()
    end = time.monotonic() + t.sizes.patience
    while one.counter() == first:
        if time.monotonic() > end:
            raise Stop(f"{one.name}: no kernel ended in {t.sizes.patience:g} s")
        time.sleep(0.01)
    time.sleep(0.2)
