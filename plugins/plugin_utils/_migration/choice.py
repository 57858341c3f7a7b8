# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the hosts that were asked is to get the processes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple


@dataclass(frozen=True)
class Candidate:
    """host: as the inventory calls it. has: trees that are there already, so that it must be this one. refusals: why
    not, one text each; empty: it fits. warnings: how many findings more. processes: that use its GPUs. free: GPU memory
    that would be left on the fullest GPU, bytes."""

    host: str
    has: int
    refusals: Tuple[str, ...]
    warnings: int
    processes: int
    free: int


@dataclass(frozen=True)
class Choice:
    """host: "" for none. why: in words. refused: host and reasons of the others that do not fit."""

    host: str
    why: str
    refused: Tuple[Tuple[str, Tuple[str, ...]], ...]


def choose(candidates: Sequence[Candidate]) -> Choice:
    """One that has some of them already, if it fits; else the one with the fewest warnings, of those the one with the
    fewest processes on its GPUs, then the one with the most GPU memory left; then by name."""
    fit = [one for one in candidates if not one.refusals]
    refused = tuple((one.host, one.refusals) for one in candidates if one.refusals)
    if not fit:
        return Choice("", f"none of {len(candidates)} fits", refused)
    best = min(fit, key=lambda one: (-one.has, one.warnings, one.processes, -one.free, one.host))
    if best.has:
        why = "it has them already"
    elif len(fit) == 1:
        why = "the only one that fits" if len(candidates) > 1 else "it fits"
    else:
        why = (
            f"the best of {len(fit)} that fit: {best.warnings} warnings, {best.processes} processes on its GPUs, "
            f"{best.free // (1 << 20)} MiB of GPU memory left"
        )
    return Choice(best.host, why, refused)


def candidate_of(result: Mapping[str, Any], moved: Sequence[str] = ()) -> Candidate:
    """Of what a task with gpu_migration_info has left of one host in a loop. moved: machine ids that trees were given
    up for."""
    host = str(result.get("item", ""))
    if result.get("unreachable") or result.get("failed") or "fits" not in result:
        return Candidate(host, 0, (f"it can't be looked at: {_words(result)}",), 0, 0, 0)
    findings: List[Mapping[str, Any]] = list(result.get("findings") or ())
    return Candidate(
        host=host,
        has=len(result.get("here") or ()) + (1 if result.get("machine") in moved else 0),
        refusals=tuple(str(one) for one in result.get("refusals") or ()),
        warnings=sum(1 for one in findings if one.get("severity") == "warning"),
        processes=int(result.get("processes") or 0),
        free=int(result.get("free_bytes") or 0),
    )


def _words(result: Mapping[str, Any]) -> str:
    return " ".join(str(result.get("msg") or "it gave no answer").split())[:500]


def as_data(choice: Choice, results: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """seen: what the chosen host has returned."""
    seen = next((dict(one) for one in results if choice.host and one.get("item") == choice.host), {})
    return {
        "host": choice.host,
        "why": choice.why,
        "refused": [{"host": host, "why": list(reasons)} for host, reasons in choice.refused],
        "seen": seen,
    }
