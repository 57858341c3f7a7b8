# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A page of Markdown from a record. Pure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

_HEAD = """<!--
Copyright (c) 2026, gpufleet contributors
GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
SPDX-License-Identifier: GPL-3.0-or-later
-->
"""
_TITLES = {
    "cycle": "One, four and eight processes",
    "jax": "JAX",
    "image": "To disk and back",
    "kills": "Killed at each step",
    "park": "Disturbed while parked",
    "one-fails": "One of eight fails",
    "gates": "Gates",
    "ways": "Other ways",
    "facts": "What libcuda does",
    "bad": "Bad input",
}


def page(record: Dict[str, Any]) -> str:
    meta = record.get("meta", {})
    parts: List[str] = [_HEAD, f"# Run on {_where(meta)}\n", _meta(meta), _counts(record)]
    for part, title in _TITLES.items():
        tests = {name: one for name, one in record["tests"].items() if name.partition("/")[0] == part}
        if tests:
            parts.append(f"## {title}\n\n{_table(tests)}")
            if part == "kills":
                parts.append(_kills(tests))
            if part == "image":
                parts.append(_images(tests))
            parts += [_details(name, one) for name, one in tests.items() if _details(name, one)]
    parts.append(_after(record.get("after", {})))
    return "\n".join(parts).rstrip() + "\n"


def _where(meta: Dict[str, Any]) -> str:
    gpus = meta.get("gpus", [])
    simulated = ", simulated" if meta.get("simulated") else ""
    return f"{len(gpus)} x {gpus[0] if gpus else '?'}, driver {meta.get('driver', '?')}{simulated}"


def _meta(meta: Dict[str, Any]) -> str:
    rows = [
        ("date", meta.get("date")),
        ("driver, CUDA", f"{meta.get('driver')}, {meta.get('cuda')}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(meta.get("versions", {}).items()))),
        ("collection", f"{meta.get('commit') or 'no commit'}; sha256 of plugins/: {meta.get('collection')}"),
        ("processors", meta.get("processors")),
        ("control groups", ", ".join(f"{name} v{version}" for name, version in meta.get("cgroups", {}).items())),
        ("a minute", f"{meta.get('minute')} s"),
        ("seconds", meta.get("seconds")),
    ]
    if meta.get("stand_ins"):
        rows.append(("frameworks", "**none: simulated workloads stand in for them**"))
    if meta.get("image_allow"):
        rows.append(("allow of every criu_image", ", ".join(meta["image_allow"])))
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {_cell(value)} |\n" for name, value in rows)


def _counts(record: Dict[str, Any]) -> str:
    counts: Dict[str, int] = {}
    for one in record["tests"].values():
        counts[one["status"]] = counts.get(one["status"], 0) + 1
    sums = [entry for one in record["tests"].values() for entry in one.get("sums", [])]
    equal = sum(1 for entry in sums if entry["equal"])
    held = [item for one in record["tests"].values() for item in one.get("expectations", [])]
    ok = sum(1 for item in held if item["ok"])
    return (
        f"Tests: {', '.join(f'{number} {status}' for status, number in sorted(counts.items()))}. "
        f"Expectations: {ok} of {len(held)} held. Checksums compared afterwards: {len(sums)}, equal: {equal}.\n"
    )


def _table(tests: Dict[str, Any]) -> str:
    lines = ["| test | | s | checksums equal | what was seen |\n|---|---|---|---|---|\n"]
    for name, one in tests.items():
        sums = one.get("sums", [])
        equal = f"{sum(1 for entry in sums if entry['equal'])} of {len(sums)}" if sums else ""
        seen = "<br>".join(_cell(text) for text in [one.get("reason"), *one.get("summary", [])] if text)
        what = f"`{name}`: {_cell(one.get('about', ''))}"
        lines.append(f"| {what} | {one['status']} | {one.get('seconds', '')} | {equal} | {seen} |\n")
    return "".join(lines)


def kills(tests: Dict[str, Any]) -> Dict[Tuple[str, str], Dict[str, int]]:
    """(call, step) -> victim -> how often, over all lanes. Keys of the records are "call step victim"."""
    found: Dict[Tuple[str, str], Dict[str, int]] = {}
    for one in tests.values():
        for key, count in one.get("facts", {}).get("hits", {}).items():
            call, _space, rest = key.partition(" ")
            step, _space, victim = rest.rpartition(" ")
            row = found.setdefault((call, step), {})
            row[victim] = row.get(victim, 0) + count
    return found


def _kills(tests: Dict[str, Any]) -> str:
    found = kills(tests)
    victims = sorted({victim for row in found.values() for victim in row})
    lines = [
        "The step that the journal showed when SIGKILL had been sent, over all lanes:\n\n",
        f"| call, step | {' | '.join(victims)} |\n|---|{'---|' * len(victims)}\n",
    ]
    for (call, step), row in sorted(found.items()):
        lines.append(f"| {call}, {step} | {' | '.join(str(row.get(victim, 0)) for victim in victims)} |\n")
    return "".join(lines)


_STEPS = ("stop", "suspend", "dump", "prove", "compress", "seal", "rename", "end")
_BACK = ("verify", "unpack", "restore", "resume", "continue")


def _images(tests: Dict[str, Any]) -> str:
    """What each image held and how long its steps took."""
    found = [
        (name.partition("/")[2], one) for name, test in tests.items() for one in test.get("facts", {}).get("images", [])
    ]
    if not found:
        return ""
    lines = [
        "Seconds of each step of an image. `module`: of the task, by the module itself. Tests ran at the same time.\n"
    ]
    for state, steps in (("present", _STEPS), ("restored", _BACK)):
        used = [step for step in steps if any(step in one[state]["steps"] for _name, one in found)]
        lines.append(f"\n| {state} | processes | GPU MiB | image MiB | module | {' | '.join(used)} |\n")
        lines.append(f"|---|{'---|' * (4 + len(used))}\n")
        for name, one in found:
            cells = [f"`{name}` {one['what']}", one["processes"], one["device_bytes"] >> 20, one["bytes"] >> 20]
            cells += [_two(one[state]["module"]), *(_two(one[state]["steps"].get(step)) for step in used)]
            lines.append(f"| {' | '.join(map(_cell, cells))} |\n")
    return "".join(lines)


def _two(value: Any) -> str:
    return "" if value is None else f"{float(value):.2f}"


def _details(name: str, one: Dict[str, Any]) -> str:
    lines = []
    wrong = [item for item in one.get("expectations", []) if not item["ok"]]
    if wrong:
        lines.append(f"Not as expected in `{name}`:\n")
        lines += [f"- {_cell(item['what'])}: {_cell(str(item.get('seen', ''))[:500])}" for item in wrong]
    told = name.startswith(("facts/", "jax/", "image/", "park/", "one-fails/"))
    facts = {key: value for key, value in one.get("facts", {}).items() if told and key != "images"}
    if facts:
        lines.append(f"\n`{name}`:\n" if lines else f"`{name}`:\n")
        lines += [f"- {_cell(key)}: {_cell(_flat(value))}" for key, value in facts.items()]
    return "\n".join(lines) + "\n" if lines else ""


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_flat(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(_flat(inner) for inner in value) or "none"
    return str(value)


def _after(after: Dict[str, Any]) -> str:
    left = {name: value for name, value in after.items() if value}
    if not left:
        return "## Afterwards\n\nHuge-page settings as before; no live operation and no reservation in the journal.\n"
    return (
        "## Afterwards\n\nLeft:\n\n"
        + "\n".join(f"- {name}: {_cell(str(value))}" for name, value in left.items())
        + "\n"
    )


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


if __name__ == "__main__":
    import json

    print(page(json.loads(Path(sys.argv[1]).read_text())), end="")
