# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a fault can strike: every step that the code journals, on every way that takes it, and within the long ones.

The steps come from the code's own lists. What a way does not reach is in UNREACHED with its reason; a test holds that
the two together are everything.
"""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import PHASES
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._step_names import IMAGE_STEPS, PROCESS_STEPS

#: What is under way when the fault strikes. "parked": nothing; the processes are suspended.
SUSPEND, RESUME, DUMP, RESTORE, DRAIN, UNDO, PARKED = "suspend", "resume", "dump", "restore", "drain", "undo", "parked"
WAYS = (SUSPEND, RESUME, DUMP, RESTORE, DRAIN, UNDO, PARKED)


@dataclass(frozen=True)
class Point:
    """step: "process:lock", "image:dump", "phase:claimed", or "" on the way "parked". delay: seconds into it."""

    way: str
    step: str
    delay: float = 0.0

    def __str__(self) -> str:
        where = self.step.replace(":", " ") or "at rest"
        return f"{self.way}, {where}" + (f" +{self.delay:g} s" if self.delay else "")


_PROCESS = {
    SUSPEND: ("lock", "stop", "seize", "mask", "checkpoint", "settle"),
    RESUME: ("stop", "seize", "mask", "restore", "settle", "continue", "unlock"),
}
_IMAGE = {
    DUMP: ("stop", "suspend", "dump", "prove", "compress", "seal", "rename", "end"),
    RESTORE: ("verify", "unpack", "restore", "resume", "continue"),
}
_PHASE = {
    DRAIN: ("claimed", "suspending", "suspended", "maintenance", "restoring", "restored", "released"),
    UNDO: ("undoing", "undone"),
}
_STEPS = {
    **{way: tuple(f"process:{name}" for name in names) for way, names in _PROCESS.items()},
    **{way: tuple(f"image:{name}" for name in names) for way, names in _IMAGE.items()},
    # The guards that stand by while an image is made are journalled as those of a suspended process are.
    DUMP: (*(f"image:{name}" for name in _IMAGE[DUMP]), "process:guard"),
    **{way: tuple(f"phase:{name}" for name in names) for way, names in _PHASE.items()},
}
#: Seconds into what takes long here: a copy half a second, the rest of an image a few hundredths.
_WITHIN: dict[tuple[str, str], tuple[float, ...]] = {
    (SUSPEND, "process:checkpoint"): (0.25,),
    (RESUME, "process:restore"): (0.25,),
    (DUMP, "image:suspend"): (0.3,),
    (DUMP, "image:dump"): (0.03, 0.1),
    (DUMP, "image:compress"): (0.03,),
    (DUMP, "image:seal"): (0.02,),
    (RESTORE, "image:verify"): (0.02,),
    (RESTORE, "image:unpack"): (0.02,),
    (RESTORE, "image:restore"): (0.03, 0.1),
    (RESTORE, "image:resume"): (0.25,),
}
POINTS: tuple[Point, ...] = (
    *(
        Point(way, step, delay)
        for way, steps in _STEPS.items()
        for step in steps
        for delay in (0.0, *_WITHIN.get((way, step), ()))
    ),
    Point(PARKED, ""),
)
#: Steps of the code that no way takes.
UNREACHED: dict[str, str] = {
    "image:undo": "only when a dump has failed already: tests/system/test_criu_image_long.py",
}


def all_steps() -> set[str]:
    """Of the code."""
    return {
        *(f"process:{name}" for name in PROCESS_STEPS),
        *(f"image:{name}" for name in IMAGE_STEPS),
        *(f"phase:{name}" for name in PHASES),
    }
