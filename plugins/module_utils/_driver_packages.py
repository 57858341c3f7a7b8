# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of the NVIDIA driver, and whether an upgrade may touch them: apt-mark, and dnf's plugin versionlock.

A program that upgrades a host by itself (unattended-upgrades, dnf-automatic) must not change the driver between the
suspend and the resume of a process.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import Callable, FrozenSet, List, Optional, Protocol, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Command, Said
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import DrainError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines, printable

SECONDS = 120.0
#: How long another package manager may keep the lock.
PATIENCE = 60.0
PAUSE = 2.0
_PATH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
DEB_PATTERNS: Tuple[str, ...] = (
    "nvidia-driver*",
    "nvidia-kernel-*",
    "nvidia-dkms-*",
    "nvidia-open*",
    "libcuda1",
    "libnvidia-*",
    "linux-modules-nvidia-*",
    "cuda-drivers*",
)
RPM_PATTERNS: Tuple[str, ...] = (
    "nvidia-driver*",
    "kmod-nvidia*",
    "akmod-nvidia*",
    "nvidia-kmod*",
    "nvidia-open*",
    "xorg-x11-drv-nvidia*",
    "libnvidia-*",
    "cuda-drivers*",
)
Ask = Callable[[Sequence[str], float], Said]


def _ask(argv: Sequence[str], limit: float) -> Said:
    return Command(argv).finish(limit)


def _find(name: str) -> Optional[str]:
    return shutil.which(name, path=os.pathsep.join(_PATH))


@dataclass(frozen=True)
class Installed:
    """names: of the driver's packages. held: those among them that no upgrade touches."""

    names: Tuple[str, ...]
    held: FrozenSet[str]


class Manager(Protocol):
    name: str

    def read(self) -> Installed:
        """Raises DrainError."""

    def hold(self, names: Sequence[str]) -> None:
        """Raises DrainError."""

    def let_go(self, names: Sequence[str]) -> None:
        """Raises DrainError."""


def find(ask: Ask = _ask, where: Callable[[str], Optional[str]] = _find) -> Tuple[Optional[Manager], str]:
    """The one that this host has, or None and why."""
    dpkg, mark = where("dpkg-query"), where("apt-mark")
    if dpkg and mark:
        return Apt(dpkg, mark, ask), ""
    rpm, dnf = where("rpm"), where("dnf")
    if rpm and dnf:
        said = ask([dnf, "-q", "versionlock", "list"], SECONDS)
        if said.status == 0:
            return Dnf(rpm, dnf, ask), ""
        return None, f"dnf has no versionlock ({_words(said)}): install the package python3-dnf-plugin-versionlock"
    return None, "this host has neither apt-mark nor dnf"


class Apt:
    name = "apt"

    def __init__(self, dpkg: str, mark: str, ask: Ask = _ask) -> None:
        self._dpkg = dpkg
        self._mark = mark
        self._ask = ask

    def read(self) -> Installed:
        # It exits 1 for every pattern that fits nothing.
        said = self._ask([self._dpkg, "-W", "-f", "${db:Status-Abbrev} ${binary:Package}\n", *DEB_PATTERNS], SECONDS)
        if said.status not in (0, 1):
            raise _failed("dpkg-query", said)
        return parse_dpkg(said.out)

    def hold(self, names: Sequence[str]) -> None:
        patiently([self._mark, "hold", *names], self._ask)

    def let_go(self, names: Sequence[str]) -> None:
        patiently([self._mark, "unhold", *names], self._ask)


def parse_dpkg(text: str) -> Installed:
    """Lines of "ii  name": what is wanted (h: hold), what is (i: installed), and whether it is sound."""
    found = [match for match in (re.match(r"([a-z])i.? +(\S+)$", line.rstrip()) for line in lines(text)) if match]
    return Installed(
        names=tuple(sorted(match.group(2) for match in found)),
        held=frozenset(match.group(2) for match in found if match.group(1) == "h"),
    )


class Dnf:
    name = "dnf"

    def __init__(self, rpm: str, dnf: str, ask: Ask = _ask) -> None:
        self._rpm = rpm
        self._dnf = dnf
        self._ask = ask

    def read(self) -> Installed:
        said = self._ask([self._rpm, "-qa", "--qf", "%{NAME}\n", *RPM_PATTERNS], SECONDS)
        if said.status != 0:
            raise _failed("rpm", said)
        names = tuple(sorted(set(said.out.split())))
        locked = self._ask([self._dnf, "-q", "versionlock", "list"], SECONDS)
        if locked.status != 0:
            raise _failed("dnf versionlock list", locked)
        return Installed(names, parse_versionlock(locked.out, names))

    def hold(self, names: Sequence[str]) -> None:
        patiently([self._dnf, "-q", "versionlock", "add", *names], self._ask)

    def let_go(self, names: Sequence[str]) -> None:
        patiently([self._dnf, "-q", "versionlock", "delete", *names], self._ask)


def parse_versionlock(text: str, names: Sequence[str]) -> FrozenSet[str]:
    """Those of `names` that have a lock. dnf 4 prints NAME-EPOCH:VERSION-RELEASE.*, "!" before what is excluded; dnf 5
    prints "Package name: NAME"."""
    found = set()
    for line in lines(text):
        entry = line.strip()
        if entry.startswith("Package name:"):
            found.add(entry.partition(":")[2].strip())
            continue
        match = re.match(r"([A-Za-z0-9._+-]+?)-(?:[0-9]+:)?[^-\s]+-[^-\s]+$", entry)
        if match and not entry.startswith(("!", "#")):
            found.add(match.group(1))
    return frozenset(found & set(names))


def patiently(
    argv: Sequence[str],
    ask: Ask,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Again and again while another package manager has the lock. Raises DrainError."""
    end = now() + PATIENCE
    while True:
        said = ask(argv, SECONDS)
        if said.status == 0:
            return
        if not any("lock" in line for line in said.lines) or now() > end:
            raise _failed(f"{os.path.basename(argv[0])} {argv[1]}", said)
        sleep(PAUSE)


def _failed(what: str, said: Said) -> DrainError:
    return DrainError(
        what,
        _words(said),
        "A driver that is upgraded while processes are suspended can't resume them",
        "Look at what the package manager is busy with, or whether it is broken; without holding packages: "
        "gpu_drain_hold_packages: false (option hold_packages)",
    )


def _words(said: Said) -> str:
    lines: List[str] = [printable(line) for line in said.lines[:3]]
    return said.problem or "; ".join(lines) or f"it ended with status {said.status}"
