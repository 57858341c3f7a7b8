# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recordings: JSON in a stable order, one observation a line, so that their differences read well.

A case's entry per backend is a list of observations, or a line: "not applicable: ...", "not run: ...", "error: ...".
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Union

Entry = Union[str, List[Dict[str, Any]]]
Section = Dict[str, Dict[str, Entry]]


@dataclass
class Recording:
    meta: Dict[str, Any] = field(default_factory=dict)
    cases: Section = field(default_factory=dict)
    real_only: Section = field(default_factory=dict)
    reasons: Dict[str, str] = field(default_factory=dict)
    sequences: Dict[str, Dict[str, Any]] = field(default_factory=dict)

    def put(self, name: str, backend: str, entry: Entry, real_only: str = "") -> None:
        section = self.real_only if real_only else self.cases
        section.setdefault(name, {})[backend] = entry
        if real_only:
            self.reasons[name] = real_only

    def put_sequence(self, backend: str, seed: int, count: int, index: int, line: str) -> None:
        part = self.sequences.setdefault(backend, {"seed": seed, "count": count, "lines": {}})
        part["lines"][str(index)] = line


def _one(value: Any) -> str:
    return json.dumps(value, sort_keys=False, ensure_ascii=False)


def _section(section: Section, indent: str) -> str:
    blocks = []
    for name in sorted(section):
        parts = []
        for backend in sorted(section[name]):
            entry = section[name][backend]
            if isinstance(entry, str):
                parts.append(f"{indent}  {_one(backend)}: {_one(entry)}")
            else:
                lines = ",\n".join(f"{indent}   {_one(observation)}" for observation in entry)
                parts.append(
                    f"{indent}  {_one(backend)}: [\n{lines}\n{indent}  ]" if lines else f"{indent}  {_one(backend)}: []"
                )
        blocks.append(f"{indent}{_one(name)}: {{\n" + ",\n".join(parts) + f"\n{indent}}}")
    return "{\n" + ",\n".join(blocks) + f"\n{indent[:-1]}}}" if blocks else "{}"


def dumps(recording: Recording) -> str:
    sequences = []
    for backend in sorted(recording.sequences):
        part = recording.sequences[backend]
        lines = sorted(part["lines"].items(), key=lambda item: int(item[0]))
        body = ",\n".join(f"   {_one(index)}: {_one(line)}" for index, line in lines)
        sequences.append(
            f'  {_one(backend)}: {{"seed": {part["seed"]}, "count": {part["count"]}, "lines": {{\n{body}\n  }}}}'
        )
    meta = json.dumps(recording.meta, indent=1).replace("\n", "\n ")
    return (
        f'{{\n "meta": {meta},\n'
        f' "cases": {_section(recording.cases, "  ")},\n'
        f' "real_only": {_section(recording.real_only, "  ")},\n'
        f' "reasons": {json.dumps(recording.reasons, sort_keys=True)},\n'
        ' "sequences": {' + ("\n" + ",\n".join(sequences) + "\n " if sequences else "") + "}\n}\n"
    )


def loads(text: str) -> Recording:
    data = json.loads(text)
    for key in ("meta", "cases", "real_only", "sequences"):
        if not isinstance(data.get(key), dict):
            raise ValueError(f"no recording: {key!r} is missing")
    return Recording(data["meta"], data["cases"], data["real_only"], data.get("reasons", {}), data["sequences"])


def read(path: Path) -> Recording:
    try:
        return loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write(path: Path, text: str) -> None:
    """Whole or not at all: a run that is killed leaves the last whole one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(str(partial), str(path))
