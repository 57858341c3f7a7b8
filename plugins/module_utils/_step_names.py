# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every step that is journalled before it is taken. A step whose name is not here does not pass the type checker."""

from __future__ import annotations

from typing import Literal, Tuple, get_args

ProcessStep = Literal["lock", "stop", "seize", "mask", "checkpoint", "settle", "guard", "restore", "unlock", "continue"]
ImageStep = Literal[
    "stop",
    "suspend",
    "dump",
    "prove",
    "compress",
    "seal",
    "rename",
    "end",
    "verify",
    "unpack",
    "restore",
    "resume",
    "continue",
    "undo",
]
#: Of one process that is suspended or resumed.
PROCESS_STEPS: Tuple[ProcessStep, ...] = get_args(ProcessStep)
#: Of one image that is made or brought back. "undo" and "continue" are those of a tree that goes on after all.
IMAGE_STEPS: Tuple[ImageStep, ...] = get_args(ImageStep)
