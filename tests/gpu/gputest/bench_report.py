# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A page of Markdown from a record of bench/suspend. Pure."""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Tuple

_HEAD = """<!--
Copyright (c) 2026, gpufleet contributors
GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
SPDX-License-Identifier: GPL-3.0-or-later
-->
"""
_WORDS = """- **module**: the module's own wall time, as it returns it in `seconds`: from its first line to its last
- **process**: wall time of the module's process, with the interpreter's start, Ansible's unpacking and importing
- **playbook**: wall time of the whole `ansible-playbook`: one task, connection local, pipelining
- **raw**: the calls of libcuda alone, one thread for each process, nothing held and nothing parked
- **loop**: `cuda-checkpoint --toggle` over the processes, one after another

All of it in one run, over the same processes.
"""
LOOP = "cuda-checkpoint --toggle, one after another"
MODULE, KEEP = "module, huge_pages: auto", "module, huge_pages: keep"
RAW, RAW_SMALL = "raw, huge pages", "raw"
# How many times faster than the loop: suspend, resume.
AIM_MODULE, AIM_PLAYBOOK = (7.0, 4.5), (5.0, 3.0)
# Of the raw calls, for one process.
AIM_ONE = 1.10


def median(rounds: List[Dict[str, Any]], name: str) -> float:
    return statistics.median(float(one[name]) for one in rounds)


def ratios(many: Dict[str, Any]) -> List[Tuple[str, float, float]]:
    """(what, suspend, resume): how many times faster than the loop, medians."""
    rounds = many.get("rounds", {})
    if LOOP not in rounds:
        return []
    loop = (median(rounds[LOOP], "suspend"), median(rounds[LOOP], "resume"))
    found = []
    for name in (MODULE, KEEP, RAW, RAW_SMALL):
        if name in rounds:
            own = " own" if name in (MODULE, KEEP) else ""
            pair = (median(rounds[name], f"suspend{own}"), median(rounds[name], f"resume{own}"))
            found.append((name, loop[0] / pair[0], loop[1] / pair[1]))
        if name in (MODULE, KEEP) and name in rounds:
            pair = (median(rounds[name], "suspend"), median(rounds[name], "resume"))
            found.append((f"process, {name}", loop[0] / pair[0], loop[1] / pair[1]))
            pair = (median(rounds[name], "suspend playbook"), median(rounds[name], "resume playbook"))
            found.append((f"ansible-playbook, {name}", loop[0] / pair[0], loop[1] / pair[1]))
    return found


def over_raw(one: Dict[str, Any]) -> Tuple[float, float]:
    """Module divided by raw, medians over the pairs: suspend, resume."""
    rounds = one["rounds"]
    return (
        median(rounds[MODULE], "suspend own") / median(rounds[RAW], "suspend"),
        median(rounds[MODULE], "resume own") / median(rounds[RAW], "resume"),
    )


def page(record: Dict[str, Any]) -> str:
    meta = record.get("meta", {})
    versions = ", ".join(f"{name} {version}" for name, version in sorted(meta.get("versions", {}).items()))
    simulated = ", simulated" if meta.get("simulated") else ""
    run = (
        f"{meta.get('date')}; driver {meta.get('driver')}{simulated}; {versions}; {meta.get('processors')} processors; "
        f"collection {meta.get('commit') or 'without commit'}, sha256 of plugins/: {meta.get('collection')}; "
        f"{meta.get('pause', 0):g} s between suspend and resume; {meta.get('seconds', '?')} s in all.\n"
    )
    parts = [_HEAD, f"# How long suspend and resume take: {', '.join(meta.get('gpus', []))}\n", run, _WORDS]
    if record.get("many", {}).get("rounds"):
        parts.append(_many(record["many"]))
    if record.get("one", {}).get("rounds"):
        parts.append(_one(record["one"]))
    parts.append(f"Huge-page setting as before: {meta.get('settings as before', 'not read yet')}.\n")
    return "\n".join(parts)


def _seconds(rounds: List[Dict[str, Any]], name: str) -> str:
    return ", ".join(f"{float(one[name]):.2f}" for one in rounds if name in one)


def _table(rounds: Dict[str, List[Dict[str, Any]]]) -> str:
    columns = ("suspend", "resume", "suspend process", "resume process", "suspend playbook", "resume playbook")
    lines = [f"| s | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}\n"]
    for name, all_of in rounds.items():
        if name in (MODULE, KEEP):
            keys = ("suspend own", "resume own", "suspend", "resume", "suspend playbook", "resume playbook")
        else:
            keys = ("suspend", "resume", "", "", "", "")
        cells = [_seconds(all_of, key) for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |\n")
    return "".join(lines)


def _verdict(value: float, aim: float, at_least: bool = True) -> str:
    met = value >= aim if at_least else value <= aim
    return f"{value:.2f} ({'at least' if at_least else 'at most'} {aim:g}: {'met' if met else 'MISSED'})"


def _many(many: Dict[str, Any]) -> str:
    lines = [
        f"## {many['processes']} processes x {many['mib']} MiB on {many['gpus']} GPU(s)\n\n",
        _table(many["rounds"]),
        "\nTimes faster than the loop (medians):\n\n| | suspend | resume |\n|---|---|---|\n",
    ]
    for name, suspend, resume in ratios(many):
        aims = {MODULE: AIM_MODULE, f"ansible-playbook, {MODULE}": AIM_PLAYBOOK}.get(name)
        if aims:
            cells = (_verdict(suspend, aims[0]), _verdict(resume, aims[1]))
        else:
            cells = (f"{suspend:.2f}", f"{resume:.2f}")
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |\n")
    lines.append(_whole(many))
    return "".join(lines)


def _one(one: Dict[str, Any]) -> str:
    lines = [f"## One process of {one['mib']} MiB, interleaved pairs after a warm-up\n\n", _table(one["rounds"])]
    if {MODULE, RAW} <= set(one["rounds"]):
        suspend, resume = over_raw(one)
        lines.append(
            f"\nModule divided by raw (medians): suspend {_verdict(suspend, AIM_ONE, False)}, "
            f"resume {_verdict(resume, AIM_ONE, False)}.\n"
        )
    lines.append(_whole(one))
    return "".join(lines)


def _whole(part: Dict[str, Any]) -> str:
    if "whole" not in part:
        return "\nNot finished.\n"
    equal = part["checksums equal"]
    return f"\nAfterwards every process is whole: {part['whole']}; checksums equal: {sum(equal)} of {len(equal)}.\n"
