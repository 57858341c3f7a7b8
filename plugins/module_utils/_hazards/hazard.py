# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a detector is, and what it is given. Pure: nothing here reads anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from typing import ClassVar, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around import Ties
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, Finding, reference
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

LOCK = "lock"
SUSPEND = "suspend"
RESUME = "resume"
DUMP = "dump"
MIGRATE = "migrate"
#: What leaves an image: a migration dumps, too.
IMAGES = frozenset((DUMP,))
ACTIONS = frozenset((LOCK, SUSPEND, RESUME, DUMP))
#: That make driver calls or hold threads.
LIVE = frozenset((LOCK, SUSPEND, RESUME))

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Context:
    """What is asked for, and what is known.

    snapshot: one reading of the host. targets: PIDs. action: "lock", "suspend", "resume" or "dump".
    device_bytes: PID -> GPU UUID -> bytes, None for a size that nobody knows; a PID that is not there, or has nothing,
    is unknown as a whole. For "resume": what they held, by the GPU that they shall come back to.
    parked_by_us: PIDs that are stopped or traced by our own worker. uid: of the caller, effective.
    reserved: GPU UUID -> bytes that others have claimed. criu: version of the one that is to dump, () for unknown.
    left_stopped: PID -> the last run that found it stopped by somebody else and left it so.
    """

    snapshot: Snapshot
    targets: Tuple[int, ...]
    action: str
    device_bytes: Mapping[int, Mapping[str, Optional[int]]]
    parked_by_us: FrozenSet[int]
    uid: int
    reserved: Mapping[str, int]
    criu: Tuple[int, ...] = ()
    left_stopped: Mapping[int, str] = field(default_factory=dict)

    @property
    def processes(self) -> Tuple[ProcessSnapshot, ...]:
        """The targets that were seen."""
        found = (self.snapshot.process(pid) for pid in self.targets)
        return tuple(process for process in found if process is not None)

    def bytes_of(self, pid: int) -> Optional[int]:
        """What it holds on all GPUs; None is unknown."""
        sizes = list((self.device_bytes.get(pid) or {}).values())
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None


class Hazard(ABC):
    """One thing that can go wrong. actions: those that it speaks against. option: its name for `allow:`, or "".

    exclusive: where it holds, nothing else needs to be said about that process.
    """

    id: ClassVar[str]
    actions: ClassVar[FrozenSet[str]]
    severity: ClassVar[str] = BLOCKING
    option: ClassVar[str] = ""
    exclusive: ClassVar[bool] = False

    @abstractmethod
    def detect_all(self, context: Context, processes: Sequence[ProcessSnapshot]) -> List[Finding]:
        """About all targets. Empty: not seen, and everything that would show it was seen."""

    def finding(
        self,
        subject: str,
        evidence: str,
        reason: str,
        remedy: str,
        pid: Optional[int],
        severity: str = "",
        option: Optional[str] = None,
    ) -> Finding:
        """severity, option: the class's own where not given."""
        return Finding(
            id=self.id,
            severity=severity or self.severity,
            subject=printable(subject),
            evidence=printable(evidence),
            reason=reason,
            remedy=printable(remedy),
            option=self.option if option is None else option,
            reference=reference(self.id),
            pid=pid,
        )


class ProcessHazard(Hazard):
    """One that each process has for itself."""

    @abstractmethod
    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        """About one target. None: not seen, and everything that would show it was seen."""

    def detect_all(self, context: Context, processes: Sequence[ProcessSnapshot]) -> List[Finding]:
        found = [self.detect(context, process) for process in processes]
        return [finding for finding in found if finding is not None]


def ties_of(context: Context, process: ProcessSnapshot) -> Optional[Ties]:
    """None: nobody looked, it may not be seen, or it has ended: FilesUnknown tells."""
    around = context.snapshot.around_of(process.pid)
    return None if around is None else around.ties


def name_of(process: ProcessSnapshot) -> str:
    return f"PID {process.pid} ({printable(process.name)})"


def names_of(processes: Iterable[ProcessSnapshot], most: int = 8) -> str:
    """ "PID 3 (a), PID 4 (b) and 7 more"."""
    names = [name_of(process) for process in processes]
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1] if names else ""]))


def size(count: int) -> str:
    """Bytes for a person."""
    if abs(count) >= GIB:
        return f"{count / GIB:.1f} GiB"
    if abs(count) >= MIB:
        return f"{count / MIB:.0f} MiB"
    return f"{count / 1024:.0f} KiB" if abs(count) >= 1024 else f"{count} bytes"


def span(seconds: float) -> str:
    """Hours and minutes for a person."""
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def comma(words: Iterable[str], most: int = 6) -> str:
    everything = list(words)
    rest = len(everything) - most
    return ", ".join(everything[:most]) + (f" and {rest} more" if rest > 0 else "")
