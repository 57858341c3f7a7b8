# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has become of the processes of a drain, out of what was seen and what the journal remembers. Pure."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _drain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

RUNNING, IN_MEMORY, GONE = "running", "suspended", "gone"
UNSPENT, RESTORING, SPENT = "unspent", "restoring", "spent"
MISSING, DAMAGED, UNFINISHED = "missing", "damaged", "unfinished"
#: From the first suspend until everything is proved to run. Who ends later has ended by itself.
LOSABLE: FrozenSet[str] = frozenset(
    (_drain.SUSPENDING, _drain.SUSPENDED, _drain.MAINTENANCE, _drain.RESTORING, _drain.UNDOING)
)


@dataclass(frozen=True)
class Seen:
    """A CUDA process that lives. suspended: it holds no device. stopped: by a signal, a tracer or its freezer.
    selected: the selection of the drain matches it. half_way: it holds its devices, and the last step with it was
    broken off: it may be locked, which only the driver can tell."""

    identity: Identity
    executable: str
    suspended: bool
    stopped: bool
    selected: bool
    half_way: bool = False


@dataclass(frozen=True)
class Member:
    """A process that uses CUDA, in an image. came: who it is since it was restored; None: it was not, or has ended."""

    identity: Identity
    executable: str
    device_bytes: Optional[int]
    came: Optional[Identity] = None


@dataclass(frozen=True)
class ImageSeen:
    """state: one of those above. why: what is wrong with it, "" for nothing. bytes: None where it is not known.
    lives: whether anybody of a spent one is alive, or of a dump that was not finished."""

    path: str
    pid: int
    state: str
    bytes: Optional[int]
    members: Tuple[Member, ...] = ()
    lives: bool = False
    why: str = ""


@dataclass(frozen=True)
class Known:
    """A process that the drain has suspended, by its own row or by the journal. park: it is to be stopped meanwhile.
    resumed: the journal tells that it was brought back."""

    identity: Identity
    executable: str
    device_bytes: Optional[int]
    park: bool = True
    resumed: bool = False


@dataclass(frozen=True)
class Scene:
    """Everything that was read. ours: of those in `seen` that are suspended or half way, the ones that a run of the
    drain has brought there."""

    phase: str
    mode: str
    boot_id: str
    seen: Tuple[Seen, ...]
    known: Tuple[Known, ...]
    images: Tuple[ImageSeen, ...]
    ours: FrozenSet[Identity] = frozenset()


@dataclass(frozen=True)
class Process:
    identity: Identity
    executable: str
    device_bytes: Optional[int]
    state: str


@dataclass(frozen=True)
class Lost:
    what: str
    why: str


@dataclass(frozen=True)
class Verdict:
    """processes: of the drain. pids: those that are suspended in memory, or half way. others: PIDs that somebody else
    suspended."""

    processes: Tuple[Process, ...]
    pids: Tuple[Identity, ...]
    others: Tuple[int, ...]
    lost: Tuple[Lost, ...]


def suspender(operations: Sequence[Operation]) -> Optional[Operation]:
    """The operation that took a process from running to suspended, out of all of its operations, oldest first; None:
    nobody did, or it was taken back since.

    Later ones did not that renewed a guard, failed to resume it, or found it half way.
    """
    half_way: Optional[Operation] = None
    for operation in reversed(operations):
        if operation.goal == "checkpointed":
            if operation.status == "undone":
                return half_way
            if operation.state_before in ("running", "locked"):
                return operation
            if operation.state_before != "checkpointed":
                half_way = operation
        elif operation.status == "done":
            return half_way
    return half_way


def last_suspend(operations: Sequence[Operation]) -> Optional[Operation]:
    """The same, also where it was brought back later, by whomever."""
    for index in range(len(operations), 0, -1):
        found = suspender(operations[:index])
        if found is not None:
            return found
    return None


def judge(scene: Scene) -> Verdict:
    seen = {one.identity: one for one in scene.seen}
    processes: Dict[Identity, Process] = {}
    lost: List[Lost] = [_lost_image(image) for image in scene.images if _is_lost(image)]
    covered = {member.identity: (image, member) for image in scene.images for member in image.members}
    for known in scene.known:
        process = _of(known, seen, covered)
        processes.setdefault(process.identity, process)
        image = covered[known.identity][0] if known.identity in covered else None
        if process.state == GONE and (image is None or not _is_lost(image)):
            lost.append(Lost(_name(known), _why(known, scene.boot_id, image)))
    remembered = {known.identity for known in scene.known}
    for _image, member in covered.values():
        if member.identity not in remembered:
            process = _of(Known(member.identity, member.executable, member.device_bytes), seen, covered)
            processes.setdefault(process.identity, process)
    for one in scene.seen:
        if one.selected and (scene.phase in _drain.BEGINNINGS or not scene.phase):
            process = Process(one.identity, one.executable, None, IN_MEMORY if one.suspended else RUNNING)
            processes.setdefault(one.identity, process)
    suspended = sorted((one for one in scene.seen if one.suspended), key=lambda one: one.identity.pid)
    return Verdict(
        processes=tuple(sorted(processes.values(), key=lambda one: one.identity.pid)),
        pids=tuple(
            one.identity
            for one in sorted(scene.seen, key=lambda one: one.identity.pid)
            if (one.suspended or one.half_way) and one.identity in scene.ours
        ),
        others=tuple(one.identity.pid for one in suspended if one.selected and one.identity not in scene.ours),
        lost=tuple(lost) if scene.phase in LOSABLE else (),
    )


def _of(known: Known, seen: Mapping[Identity, Seen], covered: Mapping[Identity, Tuple[ImageSeen, Member]]) -> Process:
    """Who it is now, and what it does."""
    image, member = covered.get(known.identity, (None, None))
    identity, state = known.identity, GONE
    if identity not in seen and image is not None and member is not None:
        if image.state in (UNSPENT, RESTORING):
            state = IN_MEMORY
        if member.came is not None:
            identity, state = member.came, RUNNING
    alive = seen.get(identity)
    if alive is not None:
        state = IN_MEMORY if alive.suspended else RUNNING
    return Process(identity, known.executable, known.device_bytes, state)


def _is_lost(image: ImageSeen) -> bool:
    return image.state in (MISSING, DAMAGED) or (image.state == SPENT and not image.lives)


def _lost_image(image: ImageSeen) -> Lost:
    why = image.why or "it was restored, and everything that came out of it has ended since"
    return Lost(f"image {printable(image.path)} (PID {image.pid})", why)


def _name(known: Known) -> str:
    return f"PID {known.identity.pid} ({printable(known.executable)})"


def _why(known: Known, boot_id: str, image: Optional[ImageSeen]) -> str:
    if image is not None:
        return f"it was restored from {printable(image.path)}, and has ended since"
    if known.identity.boot_id != boot_id:
        return "it was suspended in memory, and the host has booted since"
    if known.resumed:
        return "it was brought back, and has ended since"
    return "it ended while it was suspended, or on the way there"


# What has to be true before a phase is written


def unsuspended(scene: Scene) -> Tuple[str, ...]:
    """What keeps `suspended` from being true; empty: it is."""
    problems: List[str] = []
    park = {one.identity: one.park for one in scene.known}
    for one in scene.seen:
        name = f"PID {one.identity.pid} ({printable(one.executable)})"
        if not one.selected:
            continue
        if not one.suspended:
            problems.append(f"{name} runs with its GPU")
        elif scene.mode == "disk":
            problems.append(f"{name} is suspended in memory, and in no image")
        elif not one.stopped and park.get(one.identity, True):
            problems.append(f"{name} is suspended, but its threads run without their GPU")
    for image in scene.images:
        if image.state != UNSPENT and not _is_lost(image):
            problems.append(f"image {printable(image.path)} is {image.state}{': ' + image.why if image.why else ''}")
    return tuple(problems)


def unrestored(scene: Scene, verdict: Verdict) -> Tuple[str, ...]:
    """What keeps `restored`, and `undone`, from being true but for what is lost; empty: nothing."""
    problems: List[str] = []
    for one in verdict.processes:
        if one.state == IN_MEMORY:
            problems.append(f"PID {one.identity.pid} ({printable(one.executable)}) is suspended still")
    for known in scene.seen:
        if known.half_way and known.identity in scene.ours:
            name = f"PID {known.identity.pid} ({printable(known.executable)})"
            problems.append(f"{name} may be locked: the last step with it was broken off")
    for image in scene.images:
        if image.state == UNFINISHED and image.lives:
            problems.append(f"image {printable(image.path)} was begun, and its processes are held")
        elif image.state in (UNSPENT, RESTORING):
            problems.append(f"image {printable(image.path)} is {image.state}")
    return tuple(problems)
