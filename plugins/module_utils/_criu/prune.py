# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which images of a store may go. Pure.

What is not spent is a process that exists nowhere else, or may be needed again: it goes with force only. A snapshot
whose process went on is of no use any more once a later image of the same lineage is there, which was not spent either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    HELD,
    MOVED,
    RESTORING,
    RETURNED,
    SPENT,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Image

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True)
class Verdict:
    """reason: why it goes, or why it stays."""

    image: Image
    delete: bool
    reason: str


def prune(
    images: Sequence[Image], now: float, keep: Optional[int], max_age: Optional[float], force: bool
) -> Tuple[Verdict, ...]:
    """One per image, newest first. keep: how many of each kind stay, the newest ones; snapshots are a kind of their
    own. max_age: seconds; what is older goes. None is no limit, and either of them is enough to go. now: seconds since
    the epoch."""
    newest = sorted(images, key=lambda image: (-image.manifest.created, image.path))
    seen: Dict[bool, int] = {}
    verdicts: List[Verdict] = []
    for image in newest:
        kind = image.manifest.snapshot
        rank = seen[kind] = seen.get(kind, 0) + 1
        due = _due(image, rank, now, keep, max_age)
        held = _held(image, newest, force) if due else ""
        if due and not held:
            verdicts.append(Verdict(image, True, due))
        else:
            verdicts.append(Verdict(image, False, f"{held}, though {due}" if due else "it is within keep and max_age"))
    return tuple(verdicts)


def _due(image: Image, rank: int, now: float, keep: Optional[int], max_age: Optional[float]) -> str:
    """Why it would have to go, "" for no reason."""
    if keep is not None and rank > keep:
        kind = "snapshot" if image.manifest.snapshot else "image"
        if keep == 0:
            return "none is kept"
        return f"it is not the newest {kind}" if keep == 1 else f"it is not among the newest {keep} {kind}s"
    age = now - image.manifest.created
    if max_age is not None and age > max_age:
        return f"it is {_span(age)} old, more than {_span(max_age)}"
    return ""


def _held(image: Image, images: Sequence[Image], force: bool) -> str:
    """Why it stays all the same, "" for no reason."""
    state, manifest = image.life.state, image.manifest
    if state == RESTORING:
        return "it is being restored, or was when something broke off"
    if state in (SPENT, RETURNED) or force:
        return ""
    if state in (HELD, MOVED):
        return "it is on its way between two hosts (force: true deletes it)"
    if not manifest.snapshot:
        return "it is not spent: its process exists nowhere else (force: true deletes it)"
    same = (one for one in images if one.manifest.lineage == manifest.lineage and one.life.state != SPENT)
    if any(one.manifest.created > manifest.created for one in same):
        return ""
    return "it is the last snapshot of its process (force: true deletes it)"


def _span(seconds: float) -> str:
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return "0 s"
