# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cuda-checkpoint answered, by driver version: 580 recorded on a GPU, the others from the simulated driver."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

_FOLDER = Path(__file__).with_name("recordings")
DRIVERS = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


@dataclass(frozen=True)
class Recorded:
    """call, arguments: of a backend, without the PID. reply: what has to be read out of the answer."""

    call: str
    arguments: dict[str, Any]
    argv: list[str]
    status: int
    out: str
    err: str
    reply: dict[str, Any]

    @property
    def pid(self) -> int:
        return int(self.argv[self.argv.index("--pid") + 1])

    @property
    def refused_in_words(self) -> bool:
        return "process ID" in self.err

    @property
    def expected(self) -> tuple[bool, Optional[int], str, Optional[str], Optional[int]]:
        reply = self.reply
        return reply["ok"], reply["code"], reply["text"], reply.get("state"), reply.get("tid")


@dataclass(frozen=True)
class Driver:
    version: str
    help: str
    exchanges: tuple[Recorded, ...]


def driver(version: str) -> Driver:
    raw = json.loads((_FOLDER / f"{version}.json").read_text())
    return Driver(raw["driver"], "\n".join(raw["help"]), tuple(Recorded(**each) for each in raw["exchanges"]))
