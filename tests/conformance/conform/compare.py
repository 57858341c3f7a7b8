# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is what was seen now what was recorded? Pure."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from typing import Any, Collection, Dict, List, Optional

from .record import Entry, Recording, Section


@dataclass
class Report:
    """`unreferenced`: ran here, but the recording's host could not show it."""

    equal: List[str] = field(default_factory=list)
    differences: Dict[str, List[str]] = field(default_factory=dict)
    unreferenced: Dict[str, str] = field(default_factory=dict)
    skipped: Dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.differences

    def json(self) -> str:
        return json.dumps(
            {
                "equal": self.equal,
                "different": self.differences,
                "without_reference": self.unreferenced,
                "skipped": self.skipped,
            },
            indent=1,
        )

    def text(self) -> str:
        lines = []
        for name in sorted(self.differences):
            lines.append(f"DIFFERENT {name}")
            lines += [f"    {line}" for line in self.differences[name]]
        for name, reason in sorted(self.skipped.items()):
            lines.append(f"skipped {name}: {reason}")
        for name, reason in sorted(self.unreferenced.items()):
            lines.append(f"no reference for {name}: recorded as {reason}")
        lines.append(
            f"{len(self.equal)} equal, {len(self.differences)} different, {len(self.skipped)} skipped, "
            f"{len(self.unreferenced)} without reference"
        )
        return "\n".join(lines)


def _lines(entry: Entry) -> List[str]:
    if isinstance(entry, str):
        return [entry]
    return [json.dumps(observation, sort_keys=True, ensure_ascii=False) for observation in entry]


def _flat(observation: Dict[str, Any], prefix: str = "") -> Dict[str, str]:
    flat: Dict[str, str] = {}
    for key, value in observation.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        elif key != "do":
            flat[prefix + key] = json.dumps(value, ensure_ascii=False)
    return flat


def _changes(old: Dict[str, Any], new: Dict[str, Any]) -> List[str]:
    """Of two observations of the same call, only what differs."""
    left, right = _flat(old), _flat(new)
    lines = [f"  {old['do']}"]
    for key in sorted(set(left) | set(right)):
        if left.get(key) != right.get(key):
            lines.append(f"      {key}: recorded {left.get(key, 'nothing')}, seen here {right.get(key, 'nothing')}")
    return lines


def difference(recorded: Entry, seen: Entry) -> List[str]:
    """[] when equal; else the observations that differ, "-" recorded only, "+" seen here only."""
    old, new = _lines(recorded), _lines(seen)
    if old == new:
        return []
    if isinstance(recorded, str) or isinstance(seen, str):
        return [*(f"- {line}" for line in old[:3]), *(f"+ {line}" for line in new[:3])]
    lines: List[str] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        pairs = min(b - a, d - c)
        for offset in range(pairs):
            left, right = recorded[a + offset], seen[c + offset]
            if left.get("do") == right.get("do"):
                lines += _changes(left, right)
            else:
                lines += [f"- {old[a + offset]}", f"+ {new[c + offset]}"]
        lines += [f"- {line}" for line in old[a + pairs : b]]
        lines += [f"+ {line}" for line in new[c + pairs : d]]
    return lines


def _compare_entry(report: Report, name: str, recorded: Optional[Entry], seen: Optional[Entry]) -> None:
    if recorded is None:
        report.differences[name] = [
            "not in the recording: record again",
            *(["seen here: " + line for line in _lines(seen or [])][:3]),
        ]
        return
    if isinstance(recorded, str) and recorded.startswith(("not applicable", "not run")):
        if isinstance(seen, str) and not seen.startswith("error"):
            report.equal.append(name)
        elif isinstance(seen, str):
            report.differences[name] = [seen]
        else:
            report.unreferenced[name] = recorded
        return
    if seen is None:
        report.differences[name] = ["recorded, but not run here"]
        return
    found = difference(recorded, seen)
    if found:
        report.differences[name] = found
    else:
        report.equal.append(name)


def _compare_section(
    report: Report, recorded: Section, seen: Section, names: Optional[Collection[str]], backends: Collection[str]
) -> None:
    for name in sorted(set(recorded) | set(seen)):
        if names is not None and name not in names:
            continue
        for backend in sorted(set(recorded.get(name, {})) | set(seen.get(name, {}))):
            if backend in backends:
                _compare_entry(
                    report, f"{backend} {name}", recorded.get(name, {}).get(backend), seen.get(name, {}).get(backend)
                )


def sequence_difference(recorded: str, seen: str) -> List[str]:
    """The first call at which two runs of one sequence part, and what came before it."""
    old, new = recorded.split("; "), seen.split("; ")
    for index in range(min(len(old), len(new))):
        if old[index] != new[index]:
            return ["after: " + "; ".join(old[max(0, index - 5) : index]), f"- {old[index]}", f"+ {new[index]}"]
    return [f"- {recorded}", f"+ {seen}"]


def _compare_sequences(
    report: Report, recorded: Dict[str, Any], seen: Dict[str, Any], backends: Collection[str]
) -> None:
    for backend in sorted(recorded):
        if backend not in backends:
            continue
        here = seen.get(backend, {"lines": {}})
        if here.get("seed", recorded[backend]["seed"]) != recorded[backend]["seed"]:
            report.differences[f"{backend} sequences"] = ["another seed: the sequences are not the same"]
            continue
        bad = 0
        for index, line in recorded[backend]["lines"].items():
            name = f"{backend} sequence {index}"
            now = here["lines"].get(index)
            if now is None:
                report.differences[name] = ["recorded, but not run here"]
            elif now != line:
                bad += 1
                report.differences[name] = sequence_difference(line, now) if bad <= 20 else ["different, too"]
            else:
                report.equal.append(name)


def compare(
    recorded: Recording,
    seen: Recording,
    *,
    names: Optional[Collection[str]] = None,
    backends: Collection[str] = ("libcuda", "cli"),
    sequences: bool = True,
) -> Report:
    """`names`: only these cases (None: all)."""
    report = Report()
    _compare_section(report, recorded.cases, seen.cases, names, backends)
    for name in sorted(recorded.real_only):
        if names is not None and name not in names:
            continue
        reason = recorded.reasons.get(name, "only on a real GPU")
        for backend in recorded.real_only[name]:
            if backend not in backends:
                continue
            now = seen.real_only.get(name, {}).get(backend)
            if now is None or isinstance(now, str):
                report.skipped[f"{backend} {name}"] = reason
            else:
                _compare_entry(report, f"{backend} {name}", recorded.real_only[name][backend], now)
    if sequences:
        _compare_sequences(report, recorded.sequences, seen.sequences, backends)
    return report
