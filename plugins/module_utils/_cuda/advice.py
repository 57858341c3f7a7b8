# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a refused call means, and what helps. Pure. Measured with driver 580 (docs/driver-findings.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

CALLS = ("state", "restore_thread", "lock", "checkpoint", "restore", "unlock")


@dataclass(frozen=True)
class Advice:
    """reason: why the driver says so. remedy: what to do. lost: the process does not come back to its GPU any more."""

    reason: str
    remedy: str
    lost: bool = False


_NO_CUDA = Advice(
    "the process has no CUDA context, or it has ended and is not reaped yet", "Take its PID out of the list"
)
_NO_ACCESS = Advice(
    "there is no such process, or the caller is neither its owner nor root", "Look whether it still runs; become root"
)
_OTHER_STATE = Advice(
    "its CUDA state is not one that this call starts from: somebody else drives it at the same time",
    "Run the task again: the state is read anew",
)
_NEVER_AGAIN = "From now on every checkpoint of this process is refused; it runs on after an unlock"
_LOST = (
    "It can't be resumed; it is kept stopped, its memory is in host memory. End it with SIGKILL (no other signal "
    "reaches a stopped process), and start it again or restore an image made before"
)

_ANY: Dict[int, Advice] = {
    3: _NO_CUDA,
    304: _NO_ACCESS,
    401: _OTHER_STATE,
}

_BY_CALL: Dict[Tuple[str, int], Advice] = {
    ("lock", 600): Advice(
        "its GPU work did not end within the lock's timeout: a long kernel, or a rank that waits for another in a "
        "collective. It runs on, not locked",
        "Raise lock_timeout, or suspend the ranks of one job between its steps",
    ),
    ("lock", 801): Advice("it is a client of MPS, which can't be suspended", "Run it without MPS"),
    ("checkpoint", 801): Advice(
        "it holds something that can't be checkpointed, as managed memory (cudaMallocManaged). " + _NEVER_AGAIN,
        "Let it end by itself, or change the program",
    ),
    ("checkpoint", 2): Advice(
        "the host refused the memory for the copy: vm.overcommit_memory, or the process's RLIMIT_DATA. " + _NEVER_AGAIN,
        "Let it end by itself; for the next one, free host memory or raise the limit first",
    ),
    ("checkpoint", 304): Advice(
        "the process ended meanwhile (as by the OOM killer of a small cgroup), or it is not the caller's",
        "Look whether it still runs, and at its cgroup's memory limit",
    ),
    ("checkpoint", 999): Advice(
        "an earlier checkpoint of it was refused. " + _NEVER_AGAIN, "Let it end by itself, or start it again"
    ),
    ("restore", 2): Advice("a GPU did not have the room that it held before. " + _LOST, "Free GPU memory first", True),
    ("restore", 1): Advice(
        "it imported CUDA IPC memory of another process. " + _LOST,
        "Suspend such processes only when the memory is closed",
        True,
    ),
    ("restore", 801): Advice(
        "it is one of several NCCL ranks. " + _LOST, "Suspend such a job only when its communicators are closed", True
    ),
    ("restore", 304): Advice(
        "an earlier restore of it failed, or the caller is neither its owner nor root. After a failed restore it can't "
        "be resumed",
        "If root gets the same answer, end it with SIGKILL, and start it again or restore an image made before",
        True,
    ),
}
_BAD_MAP = Advice(
    "the driver refused the device map, which has to name every GPU of the host; nothing has changed",
    "Restore it without a device map, or with another one",
)


def advise(call: str, code: Optional[int], mapped: bool = False) -> Optional[Advice]:
    """What to tell about a call (one of CALLS) that gave this CUresult. mapped: a restore with a device map. None where
    nothing is known."""
    if code is None:
        return None
    if (call, code, mapped) == ("restore", 1, True):
        return _BAD_MAP
    return _BY_CALL.get((call, code)) or _ANY.get(code)
