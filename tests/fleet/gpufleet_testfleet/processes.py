# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes as /proc shows them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def all_pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def state_and_start(pid: int) -> tuple[str, int] | None:
    """State letter and start time in ticks; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def is_alive(pid: int) -> bool:
    found = state_and_start(pid)
    return found is not None and found[0] not in "ZX"


def namespace(pid: int | str, kind: str) -> str | None:
    """The namespace's name, such as net:[4026531840]; None if the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def ancestors(pid: int) -> set[int]:
    """The process and all its parents."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            break
        pid = int(stat[stat.rindex(")") + 2 :].split()[1])
    return found


def pids_inside(pid: int) -> list[int]:
    """The process's PID in each PID namespace from ours inwards."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return []
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return []


def init_of(pids: list[int]) -> int | None:
    """Of the processes of one host, its PID 1."""
    for pid in pids:
        inside = pids_inside(pid)
        if len(inside) == 2 and inside[1] == 1 and is_alive(pid):
            return pid
    return None


def command_line(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()
