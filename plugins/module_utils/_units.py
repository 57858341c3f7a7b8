# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of systemd, as `systemctl show` tells them."""

from __future__ import annotations

import os
import re
import time
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Command, Said
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines, natural

#: Seconds that systemd has to answer.
DEADLINE = 10.0

PROPERTIES = (
    "Id",
    "LoadState",
    "MainPID",
    "WatchdogUSec",
    "Restart",
    "StandardOutput",
    "StandardError",
    "ManagedOOMSwap",
    "ManagedOOMMemoryPressure",
    "RuntimeMaxUSec",
    "ActiveEnterTimestampMonotonic",
)
_SPAN = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]+)")
_SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
    "month": 2629800.0,
    "y": 31557600.0,
}


@dataclass(frozen=True)
class Unit:
    """problem: why nothing is known of it, "" where it is. watchdog: seconds, 0 for none. restart: "no" and so on, ""
    for what is no service. main_pid: 0 for none. oomd: what systemd-oomd may kill it for, "swap", "memory pressure".
    runtime: seconds that it may be active (RuntimeMaxSec=), 0 for no limit; runtime_left: how many of them were left
    when that was read, None for no limit.
    """

    name: str
    problem: str = ""
    watchdog: float = 0.0
    restart: str = ""
    output: str = ""
    error: str = ""
    main_pid: int = 0
    oomd: Tuple[str, ...] = ()
    runtime: float = 0.0
    runtime_left: Optional[float] = None


def parse_span(text: str) -> float:
    """Seconds of "1min 30s"; 0 for "0", "infinity" and nothing."""
    return sum(float(number) * _SECONDS.get(unit, 0.0) for number, unit in _SPAN.findall(text))


def parse_show(text: str) -> List[Dict[str, str]]:
    """The blocks of `systemctl show`, in their order."""
    blocks: List[Dict[str, str]] = [{}]
    for line in lines(text):
        if not line.strip():
            blocks.append({})
            continue
        name, separator, value = line.partition("=")
        if separator:
            blocks[-1][name] = value
    return [block for block in blocks if block]


def unit_of(name: str, shown: Dict[str, str], now: float = 0.0) -> Unit:
    """now: on the kernel's clock since boot (CLOCK_MONOTONIC), in seconds."""
    if shown.get("LoadState") in (None, "not-found"):
        return Unit(name, "systemd does not know it")
    entered = natural(shown.get("ActiveEnterTimestampMonotonic", ""))
    runtime = parse_span(shown.get("RuntimeMaxUSec", ""))
    oomd = (("ManagedOOMSwap", "swap"), ("ManagedOOMMemoryPressure", "memory pressure"))
    return Unit(
        name,
        watchdog=parse_span(shown.get("WatchdogUSec", "")),
        restart=shown.get("Restart", ""),
        output=shown.get("StandardOutput", ""),
        error=shown.get("StandardError", ""),
        main_pid=natural(shown.get("MainPID", "")) or 0,
        oomd=tuple(word for key, word in oomd if shown.get(key) == "kill"),
        runtime=runtime,
        runtime_left=round(entered / 1e6 + runtime - now, 3) if entered and runtime else None,
    )


def units_of(names: Sequence[str], said: Said, now: float = 0.0) -> Tuple[Unit, ...]:
    """What one call with these names came to. What it does not tell is unknown. now: see unit_of."""
    problem = said.problem or ("" if said.out.strip() else next(iter(said.lines), "systemctl says nothing"))
    if problem:
        return tuple(Unit(name, problem) for name in names)
    blocks = parse_show(said.out)
    by_id = {block.get("Id", ""): block for block in blocks}
    if len(blocks) == len(names):
        return tuple(unit_of(name, block, now) for name, block in zip(names, blocks))
    return tuple(
        unit_of(name, by_id[name], now) if name in by_id else Unit(name, "systemctl does not tell it") for name in names
    )


def _ask(argv: Sequence[str]) -> Said:
    return Command(argv).finish(DEADLINE)


def read_units(
    names: Iterable[str],
    ask: Callable[[Sequence[str]], Said] = _ask,
    booted: Optional[bool] = None,
    clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
) -> Tuple[Unit, ...]:
    """Of each of these units, by one call of systemctl. booted: systemd runs this host. clock: see unit_of."""
    wanted = sorted(set(names))
    if not wanted:
        return ()
    if not (os.path.isdir("/run/systemd/system") if booted is None else booted):
        return tuple(Unit(name, "systemd can't be reached from here") for name in wanted)
    said = ask(["systemctl", "show", "--no-pager", *(f"--property={name}" for name in PROPERTIES), "--", *wanted])
    return units_of(wanted, said, clock())
