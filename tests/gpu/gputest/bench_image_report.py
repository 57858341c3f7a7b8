# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A page of Markdown from a record of bench/image. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from .bench_report import _HEAD, median

COLD = "-cold"
LOOP, PLUGIN, MODULE, SIZES, TASKS = "loop", "plugin", "module", "module-sizes", "tasks"
#: In their order: a dump before it is measured warms what is not the images'.
WAYS = (LOOP, PLUGIN, MODULE, SIZES, TASKS, LOOP + COLD, PLUGIN + COLD, MODULE + COLD, SIZES + COLD)
#: Steps of an image: until everything is written; until it is on the disk; behind that.
WRITTEN = ("stop", "suspend", "dump", "prove", "compress")
SEALED = (*WRITTEN, "seal")
COMMIT = ("rename", "end")
# How many times faster than CRIU with its cuda plugin on each in turn: to disk before the sync, and back.
AIM_THERE, AIM_BACK = 2.5, 4.0
_WORDS = """- **loop**: for each process in turn `cuda-checkpoint --action lock`, `--action checkpoint`, `criu dump`;
  and back `criu restore`, `--action restore`, `--action unlock`. It hashes and checks nothing. Its sync is `sync`
- **plugin**: `criu dump` and `criu restore` with CRIU's cuda plugin, each in turn
- **module**: one task of `criu_image` with all of them, all at once: its own wall time, with proof, SHA-256 and fsync,
  and on the way back `verify: full`
- **module-sizes**: the same with `verify: sizes` on the way back, which hashes nothing then, as the others don't
- **tasks**: one such task for each
- **before the sync**: until everything is written; of the module without the steps `seal`, `rename` and `end`
- **-cold**: the images are taken out of the page cache before the way back

All of it in one run, over the same processes.
"""


def before_sync(own: float, images: List[Dict[str, Any]]) -> float:
    """Of a task that took `own` seconds: without what its slowest tree took for the seal, and without the commit."""

    def slowest(steps: Tuple[str, ...]) -> float:
        return max(sum(float(image["seconds"].get(step, 0.0)) for step in steps) for image in images)

    return own - (slowest(SEALED) - slowest(WRITTEN)) - slowest(COMMIT)


def there(rounds: List[Dict[str, Any]], synced: bool) -> float:
    """Median seconds to disk, before the sync or with it."""
    ways = [one["there"] for one in rounds]
    if not synced:
        return median(ways, "before the sync")
    return median([{"s": one["all"] if "all" in one else one["before the sync"] + one["sync"]} for one in ways], "s")


def back(rounds: List[Dict[str, Any]], verified: bool = True) -> float:
    """Median seconds of the way back; without the time of verify, which others do not do."""
    ways = [one["back"] for one in rounds]
    return median([{"s": one["all"] - (0.0 if verified else one.get("verify", 0.0))} for one in ways], "s")


def ratios(rounds: Dict[str, List[Dict[str, Any]]]) -> List[Tuple[str, str, float, float, float, float]]:
    """(of, over, to disk before the sync, with it, back, back without verify): how many times faster, medians. Warm is
    compared with warm, cold with cold."""
    found = []
    for one, temperature in [(MODULE, ""), (SIZES, ""), (MODULE + COLD, COLD), (SIZES + COLD, COLD)]:
        for other in (LOOP + temperature, PLUGIN + temperature, TASKS + temperature):
            if one not in rounds or other not in rounds:
                continue
            ours, theirs = rounds[one], rounds[other]
            found.append(
                (
                    one,
                    other,
                    there(theirs, False) / there(ours, False),
                    there(theirs, True) / there(ours, True),
                    back(theirs) / back(ours),
                    back(theirs, False) / back(ours, False),
                )
            )
    return found


def page(record: Dict[str, Any]) -> str:
    meta = record.get("meta", {})
    versions = ", ".join(f"{name} {version}" for name, version in sorted(meta.get("versions", {}).items()))
    simulated = ", simulated" if meta.get("simulated") else ""
    run = (
        f"{meta.get('date')}; driver {meta.get('driver')}{simulated}; {versions}; {meta.get('processors')} processors; "
        f"disk {record.get('disk, MiB/s', '?')} MiB/s, written and synced by four; "
        f"collection {meta.get('commit') or 'without commit'}, sha256 of plugins/: {meta.get('collection')}; "
        f"{'allow: ' + ', '.join(meta['image_allow']) + '; ' if meta.get('image_allow') else ''}"
        f"{meta.get('seconds', '?')} s in all.\n"
    )
    parts = [
        _HEAD,
        f"# {record['trees']} trees of {record['mib']} MiB to disk and back: {_gpus(record)}\n",
        run,
        _WORDS,
    ]
    rounds = record.get("rounds", {})
    if rounds:
        parts.append(_table(rounds))
        parts.append(_ratios(rounds))
        parts.append(_speed(record))
    if record.get("left out"):
        parts.append(f"Left out, since the time was over: {', '.join(record['left out'])}.\n")
    if "whole" in record:
        equal = record["checksums equal"]
        parts.append(
            f"Afterwards every process is whole: {record['whole']}; checksums equal: {sum(equal)} of {len(equal)}.\n"
        )
    else:
        parts.append("Not finished.\n")
    parts.append(f"Huge-page setting as before: {meta.get('settings as before', 'not read yet')}.\n")
    return "\n".join(parts)


def _gpus(record: Dict[str, Any]) -> str:
    there = record.get("meta", {}).get("gpus", [])
    used = record.get("gpus", len(there))
    return ", ".join(there[:used]) + (f", of {len(there)} of the host" if used < len(there) else "")


def _table(rounds: Dict[str, List[Dict[str, Any]]]) -> str:
    lines = [
        "| s | to disk before the sync | with the sync | playbook | back | of it verify | playbook | image MiB |\n",
        f"|{'---|' * 8}\n",
    ]
    for name, found in rounds.items():
        for one in found:
            to, fro = one["there"], one["back"]
            cells = [to["before the sync"], there([one], True), to.get("playbook")]
            cells += [fro["all"], fro.get("verify"), fro.get("playbook")]
            shown = ["" if cell is None else f"{float(cell):.2f}" for cell in cells]
            lines.append(f"| {name} | {' | '.join(shown)} | {one['bytes'] >> 20} |\n")
    return "".join(lines)


def _ratios(rounds: Dict[str, List[Dict[str, Any]]]) -> str:
    found = ratios(rounds)
    if not found:
        return ""
    lines = ["Times faster (medians):\n\n| | to disk before the sync | with the sync | back | back without verify |\n"]
    lines.append(f"|{'---|' * 5}\n")
    for one, other, *values in found:
        cells = [f"{value:.2f}" for value in values]
        if other == PLUGIN:
            cells[0] += _verdict(values[0], AIM_THERE)
            cells[2] += _verdict(values[2], AIM_BACK)
        lines.append(f"| {one} over {other} | {' | '.join(cells)} |\n")
    return "".join(lines)


def _verdict(value: float, aim: float) -> str:
    return f" (at least {aim:g}: {'met' if value >= aim else 'MISSED'})"


def _speed(record: Dict[str, Any]) -> str:
    """Beside the disk."""
    found, disk = record["rounds"].get(MODULE), record.get("disk, MiB/s")
    if not found or not disk:
        return ""
    rate = (found[0]["bytes"] >> 20) / there(found, True)
    return f"The module, sync included, writes {rate:.0f} MiB/s: {rate / disk:.0%} of what the disk takes.\n"
