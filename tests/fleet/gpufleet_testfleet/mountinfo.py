# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""/proc/PID/mountinfo."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    root: str
    point: str
    fstype: str
    source: str
    options: frozenset[str]


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)


def parse(text: str) -> list[Mount]:
    mounts = []
    for line in text.splitlines():
        before, _dummy, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(tail) < 2:
            continue
        options = frozenset(tail[2].split(",")) if len(tail) > 2 else frozenset()
        mounts.append(Mount(_unescape(fields[3]), _unescape(fields[4]), tail[0], _unescape(tail[1]), options))
    return mounts


def of_process(pid: int | str) -> list[Mount]:
    """The mounts that a process sees; none if it is gone."""
    try:
        return parse(Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape"))
    except OSError:
        return []
