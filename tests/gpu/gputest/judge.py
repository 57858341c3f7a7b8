# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pure judgements over what the modules returned."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List

Result = Dict[str, Any]

# What a run in check mode has to foretell.
_FORETOLD = ("before", "after", "changed", "plan")


def _processes(result: Result) -> Dict[Any, Result]:
    return {one.get("pid"): one for one in result.get("processes") or []}


def differences(foretold: Result, happened: Result) -> List[str]:
    """What a run with --check --diff said that did not come true."""
    found = []
    for key in ("changed", "state", "diff"):
        if foretold.get(key) != happened.get(key):
            found.append(f"{key}: foretold {foretold.get(key)!r}, happened {happened.get(key)!r}")
    before, after = _processes(foretold), _processes(happened)
    if set(before) != set(after):
        found.append(f"processes: foretold {sorted(map(str, before))}, happened {sorted(map(str, after))}")
    for pid in sorted(set(before) & set(after), key=str):
        for key in _FORETOLD:
            if before[pid].get(key) != after[pid].get(key):
                found.append(f"PID {pid} {key}: foretold {before[pid].get(key)!r}, happened {after[pid].get(key)!r}")
    return found


def image_differences(foretold: Result, happened: Result) -> List[str]:
    """The same for criu_image, whose check mode can't know how large an image will be."""
    found = []
    for key in ("changed", "state", "diff"):
        if foretold.get(key) != happened.get(key):
            found.append(f"{key}: foretold {foretold.get(key)!r}, happened {happened.get(key)!r}")
    before = {one.get("path"): one for one in foretold.get("images") or []}
    after = {one.get("path"): one for one in happened.get("images") or []}
    if set(before) != set(after):
        found.append(f"images: foretold {sorted(map(str, before))}, happened {sorted(map(str, after))}")
    for path in sorted(set(before) & set(after), key=str):
        for key in ("before", "after", "changed", "pid"):
            if before[path].get(key) != after[path].get(key):
                found.append(f"{path} {key}: foretold {before[path].get(key)!r}, happened {after[path].get(key)!r}")
    return found


def not_reached(result: Result, state: str, pids: Iterable[int]) -> List[str]:
    """Which processes the result does not show in `state`."""
    processes = _processes(result)
    return [
        f"PID {pid}: after is {processes.get(pid, {}).get('after')!r}"
        for pid in pids
        if processes.get(pid, {}).get("after") != state
    ]


def lacks(text: str, words: Iterable[str]) -> List[str]:
    """Which of the words a message does not say. "a|b": one of them is enough."""
    return [word for word in words if not any(one in text for one in word.split("|"))]


def slim(result: Result) -> Result:
    """What of a result goes into the record."""
    dropped = ("invocation", "_ansible_no_log", "_ansible_verbose_always", "ansible_facts")
    return {key: value for key, value in result.items() if key not in dropped}
