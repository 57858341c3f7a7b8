# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to be done with a process: pure decisions over what was seen and what the journal remembers."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

GOALS = ("running", "locked", "checkpointed")
RANK: Dict[str, int] = {goal: rank for rank, goal in enumerate(GOALS)}

# How a process can be looked at without risk. A driver call on a stopped process never returns, so only
# "ask" may be answered by the driver while the process is not held.
ASK = "ask"
PARKED = "parked"  # suspended and stopped by us
INTERRUPTED = "interrupted"  # stopped by a worker that is gone: held first, then asked
LOOSE = "loose"  # the same, but its GPU memory is back: continued first, then asked
BUSY = "busy"  # a worker is at work on it
RUNAWAY = "runaway"  # parked once, but its threads run, without their GPU
STOPPED = "stopped"  # by somebody else
FROZEN = "frozen"
UNOWNED = "unowned"  # suspended and stopped, but not by us


@dataclass(frozen=True)
class Evidence:
    """What tells how a process can be looked at.

    stopped: its state is T or t. frozen: a control group of it is. frozen_by_us: the one that `guard: cgroup` makes is.
    looks_suspended: it has had CUDA and holds no device file. holds_devices: it has device files open or mapped.
    """

    stopped: bool
    frozen: bool
    frozen_by_us: bool
    looks_suspended: bool
    holds_devices: bool


@dataclass(frozen=True)
class Memory:
    """What the journal says of a process. status, step: as in the journal. worker_alive: the recorded worker is.
    stopped_by: "us", "other", or "" where nobody had it stopped when that was written.
    """

    status: str
    step: str
    worker_alive: bool
    park: bool
    stopped_by: str


@dataclass(frozen=True)
class View:
    """A process before anything is done.

    state: a CUDA state or "unknown". stopped: "" | "us" | "other". guarded: a live worker is attached.
    held_first: the state is only known once it is held.
    """

    state: str
    stopped: str = ""
    guarded: bool = False
    held_first: bool = False


class NoPathError(Exception):
    """No legal path leads from what was seen to what is wanted."""


# Steps that come after a restore that was answered, and nothing but an unlock can be missing. A process that is not
# locked must not be asked while it is held: a thread that is held inside a call of CUDA would keep it from answering.
_RESTORED = frozenset(("unlock", "settle", "continue"))

# Steps in which a worker has the process stopped, or may have.
STOPPING = frozenset(
    ("stop", "seize", "mask", "checkpoint", "settle", "park", "guard", "restore", "unlock", "continue")
)


def look(evidence: Evidence, memory: Optional[Memory]) -> str:
    """How the process can be looked at: one of the names above."""
    if memory is not None and memory.worker_alive and memory.status in ("active", "unknown"):
        return BUSY
    ours = memory is not None and memory.status in ("active", "suspended", "failed", "unknown")
    if ours and memory is not None and (evidence.stopped or evidence.frozen_by_us):
        return _look_at_stopped(evidence, memory)
    if evidence.frozen:
        return FROZEN
    if evidence.stopped:
        return UNOWNED if evidence.looks_suspended else STOPPED
    if ours and memory is not None and evidence.looks_suspended and memory.park:
        return RUNAWAY
    return ASK


def _look_at_stopped(evidence: Evidence, memory: Memory) -> str:
    suspended = evidence.looks_suspended or not evidence.holds_devices
    if memory.status in ("active", "unknown"):
        if memory.step not in STOPPING:
            # Its worker died before it stopped anything: somebody else has.
            return UNOWNED if evidence.looks_suspended else STOPPED
        if not suspended and memory.step in _RESTORED:
            return STOPPED if memory.stopped_by == "other" else LOOSE
        # Whoever had stopped it before: without its GPU memory, or half way to it, it must not be continued.
        return INTERRUPTED
    if not memory.stopped_by:
        return STOPPED
    if suspended:
        return PARKED
    # A restore that failed leaves devices open; what was suspended and holds some has been resumed by somebody else.
    return INTERRUPTED if memory.status == "failed" else STOPPED


def steps(view: View, goal: str, park: bool, guard: bool, can_lock: bool = True) -> Tuple[str, ...]:
    """The shortest legal path, as the steps an operator reads: probe, lock, checkpoint, park, guard, restore, unlock,
    continue.

    park: a process that gets suspended stays stopped. guard: a parked process gets a worker that stays attached.
    can_lock: False where the backend makes no step of its own of lock and unlock. Raises NoPathError.
    """
    path = _path(view, goal, park, guard)
    return path if can_lock else tuple(step for step in path if step not in ("lock", "unlock"))


def _path(view: View, goal: str, park: bool, guard: bool) -> Tuple[str, ...]:
    if goal not in RANK:
        raise NoPathError(f"{goal!r} is no state to be reached")
    if view.state not in RANK:
        raise NoPathError(f"its CUDA state is {view.state}")
    first = ("probe",) if view.held_first else ()
    go_on = ("continue",) if view.stopped == "us" else ()
    parked = ("park",) if park else ()
    if goal == "checkpointed":
        if view.state == "running":
            return first + go_on + ("lock", "checkpoint") + parked
        if view.state == "locked":
            return (*first, "checkpoint", *parked)
        if view.stopped:
            return first + (("guard",) if guard and not view.guarded else ())
        return first + parked
    # Unlocked after it runs again: a thread that is held inside a call of CUDA would keep the unlock from ending.
    unlock = ("unlock",) if goal == "running" else ()
    if view.state == "checkpointed":
        return (*first, "restore", *go_on, *unlock)
    if view.state == "locked":
        return (*first, *go_on, *unlock)
    return (*first, *go_on, *(("lock",) if goal == "locked" else ()))


def watchdog_seconds(total_bytes: int, wanted: float) -> float:
    """How long a copy may take before its state counts as unknown, in seconds.

    wanted: the operator's value, 0 for none. Else a minute and four seconds per GiB of everything that moves at once:
    the slowest rate measured for one process alone was 1.2 GiB/s.
    """
    return wanted if wanted > 0 else 60.0 + 4.0 * total_bytes / (1 << 30)
