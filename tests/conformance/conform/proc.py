# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /proc says about a process. Parsing is pure; only the functions at the end read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Tuple

MIB = 1 << 20


@dataclass(frozen=True)
class Mapping:
    start: int
    end: int
    path: str

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Snapshot:
    """One reading of one process; empty where it is gone."""

    pid: int
    state: str = ""
    parent: int = 0
    tracer: int = 0
    rss_anon: int = 0
    threads: Tuple[str, ...] = ()
    descriptors: Tuple[str, ...] = ()
    mappings: Tuple[Mapping, ...] = field(default_factory=tuple)
    sockets: Tuple[str, ...] = ()

    @property
    def life(self) -> str:
        if not self.state:
            return "dead"
        return "zombie" if self.state in "ZX" else "alive"

    @property
    def run_class(self) -> str:
        if self.life != "alive":
            return "-"
        return {"T": "stop", "t": "traced"}.get(self.state, "run")


def parse_status(text: str) -> Dict[str, str]:
    fields = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            fields[key] = value.strip()
    return fields


def parse_maps(text: str) -> List[Mapping]:
    found = []
    for line in text.splitlines():
        parts = line.split(None, 5)
        if len(parts) < 5:
            continue
        start, _dummy, end = parts[0].partition("-")
        found.append(Mapping(int(start, 16), int(end, 16), parts[5] if len(parts) > 5 else ""))
    return found


def parse_unix(text: str) -> Dict[str, str]:
    """Inode of each unix socket -> the name that it is bound to ("" for none)."""
    found = {}
    for line in text.splitlines()[1:]:
        parts = line.split(None, 7)
        if len(parts) >= 7:
            found[parts[6]] = parts[7] if len(parts) > 7 else ""
    return found


def device_names(paths: List[str]) -> List[str]:
    return sorted({path[len("/dev/") :] for path in paths if path.startswith("/dev/nvidia")})


def how_often(count: int) -> str:
    return "none" if count == 0 else "once" if count == 1 else "more"


def uvm_extra(mappings: Tuple[Mapping, ...]) -> List[int]:
    """Sizes of the mappings of /dev/nvidia-uvm beyond the one of 2 MiB that every CUDA process has."""
    sizes = sorted(m.size for m in mappings if m.path.startswith("/dev/nvidia-uvm") and "tools" not in m.path)
    if 2 * MIB in sizes:
        sizes.remove(2 * MIB)
    return sizes


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def threads_of(pid: int) -> List[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def state_of(pid: int) -> str:
    """The state letter, "" for a process that is gone."""
    text = _read(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split()[0] if ")" in text else ""


def snapshot(pid: int) -> Snapshot:
    status = parse_status(_read(f"/proc/{pid}/status"))
    if not status.get("State"):
        return Snapshot(pid)
    descriptors = []
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        names = []
    for name in names:
        try:
            descriptors.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
    inodes = {target[8:-1] for target in descriptors if target.startswith("socket:[")}
    unix = parse_unix(_read(f"/proc/{pid}/net/unix")) if inodes else {}
    return Snapshot(
        pid=pid,
        state=status["State"][:1],
        parent=int(status.get("PPid", "0") or 0),
        tracer=int(status.get("TracerPid", "0") or 0),
        rss_anon=int(status.get("RssAnon", "0 kB").split()[0]) * 1024,
        threads=tuple(sorted(_read(f"/proc/{pid}/task/{tid}/comm").strip() for tid in threads_of(pid))),
        descriptors=tuple(sorted(descriptors)),
        mappings=tuple(parse_maps(_read(f"/proc/{pid}/maps"))),
        sockets=tuple(sorted(unix[inode] for inode in inodes if unix.get(inode))),
    )


def rss_anon(pid: int) -> int:
    return int(parse_status(_read(f"/proc/{pid}/status")).get("RssAnon", "0 kB").split()[0]) * 1024


def holds_device(pid: int) -> bool:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/dev/nvidia"):
                return True
        except OSError:
            continue
    return False


def marked(variable: str, value: str) -> List[int]:
    """Every process, restored ones included, whose environment has VARIABLE=value."""
    wanted = f"{variable}={value}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                if wanted in stream.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found
