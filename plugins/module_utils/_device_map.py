# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPU a process comes back on. Pure.

The driver takes a map only if it names every GPU of the host, also those that the process does not use (measured), and
brings a process back only on the model that it left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Protocol, Sequence, Set, Tuple, Union

Wanted = Union[None, str, Mapping[str, str]]
_REMEDY = "Name every GPU of this host exactly once on each side, also those that the process does not use"


class Gpu(Protocol):
    """What is read of a GpuSnapshot."""

    @property
    def index(self) -> int:
        """As nvidia-smi numbers it."""

    @property
    def uuid(self) -> str:
        """GPU-..."""

    @property
    def name(self) -> str:
        """Its model."""

    @property
    def free_bytes(self) -> int:
        """Free memory."""


class DeviceMapError(Exception):
    """The map can't be used; str() is the whole message. `problems`: each thing that is wrong."""

    def __init__(self, problems: Sequence[str], remedy: str) -> None:
        super().__init__(f"device_map: {'; '.join(problems)}. {remedy}.")
        self.problems = tuple(problems)
        self.remedy = remedy


@dataclass(frozen=True)
class DeviceMap:
    """pairs: GPU UUIDs, old and new, of every GPU of the host, by index of the old; empty when all stay where they are,
    which is a plain restore."""

    pairs: Tuple[Tuple[str, str], ...] = ()

    def target(self, uuid: str) -> str:
        """The GPU that what was on `uuid` comes back on."""
        return dict(self.pairs).get(uuid, uuid)

    def targets(self, needs: Mapping[str, int]) -> Dict[str, int]:
        """Bytes by the GPU that they come back on."""
        return {self.target(uuid): size for uuid, size in needs.items()}


def resolve(
    wanted: Wanted, gpus: Sequence[Gpu], needs: Mapping[str, int], reserved: Optional[Mapping[str, int]] = None
) -> DeviceMap:
    """The map of one process.

    wanted: None for a plain restore; "auto" keeps GPUs where they are as long as they have room, and moves as few as
    possible to others of the same model that have; a mapping is taken as it is, GPUs by UUID or index. gpus: every GPU
    of the host. needs: bytes that the process held, by GPU UUID. reserved: bytes by GPU UUID that others have claimed,
    for "auto". Raises DeviceMapError.
    """
    if wanted is None:
        return DeviceMap()
    if isinstance(wanted, str):
        if wanted != "auto":
            raise DeviceMapError([f"{wanted!r} is no map"], 'Give "auto", or a dictionary of old to new GPUs')
        return _auto(gpus, needs, reserved or {})
    return _explicit(wanted, gpus)


def _called(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})"


def _find(name: object, gpus: Sequence[Gpu]) -> Union[Gpu, str]:
    """The GPU of this name, or what is wrong with the name."""
    text = str(name).strip()
    if isinstance(name, bool) or not isinstance(name, (str, int)) or not text:
        return f"{name!r} is no GPU: give an index or a UUID"
    if text.upper().startswith("MIG-"):
        return f"{text} is a MIG device, and CUDA processes can't be suspended with MIG"
    for gpu in gpus:
        if text == str(gpu.index) or text.lower() == gpu.uuid.lower():
            return gpu
    return f"{text} is no GPU of this host, which has {', '.join(_called(gpu) for gpu in gpus) or 'none'}"


def _explicit(wanted: Mapping[str, str], gpus: Sequence[Gpu]) -> DeviceMap:
    problems: List[str] = []
    found: List[Tuple[Gpu, Gpu]] = []
    named: Dict[str, List[str]] = {"old": [], "new": []}
    for old, new in wanted.items():
        pair: List[Gpu] = []
        for side, name in (("old", old), ("new", new)):
            gpu = _find(name, gpus)
            if isinstance(gpu, str):
                problems.append(gpu)
            else:
                pair.append(gpu)
                named[side].append(gpu.uuid)
        if len(pair) == 2:
            found.append((pair[0], pair[1]))
    for side, uuids in named.items():
        for gpu in gpus:
            times = uuids.count(gpu.uuid)
            if times == 0:
                problems.append(f"{_called(gpu)} is missing among the {side} ones")
            elif times > 1:
                problems.append(f"{_called(gpu)} is named {times} times among the {side} ones")
    if problems:
        raise DeviceMapError(list(dict.fromkeys(problems)), _REMEDY)
    problems = [
        f"{_called(old)} is a {old.name}, and {_called(new)} a {new.name}" for old, new in found if old.name != new.name
    ]
    if problems:
        raise DeviceMapError(problems, "A process comes back only on a GPU of the same model")
    return _complete({old.uuid: new.uuid for old, new in found}, gpus)


def _complete(chosen: Mapping[str, str], gpus: Sequence[Gpu]) -> DeviceMap:
    """Every other GPU of the host stays where it is, or takes the place of one of its model that came in its stead."""
    complete = dict(chosen)
    taken: Set[str] = set(chosen.values())
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    for gpu in ordered:
        if gpu.uuid not in complete and gpu.uuid not in taken:
            complete[gpu.uuid] = gpu.uuid
            taken.add(gpu.uuid)
    for gpu in ordered:
        if gpu.uuid not in complete:
            place = next(other for other in ordered if other.name == gpu.name and other.uuid not in taken)
            complete[gpu.uuid] = place.uuid
            taken.add(place.uuid)
    pairs = tuple((gpu.uuid, complete[gpu.uuid]) for gpu in ordered)
    return DeviceMap(pairs if any(old != new for old, new in pairs) else ())


def _auto(gpus: Sequence[Gpu], needs: Mapping[str, int], reserved: Mapping[str, int]) -> DeviceMap:
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    strange = sorted(uuid for uuid in needs if uuid not in by_uuid)
    if strange:
        raise DeviceMapError(
            [f"the process used {uuid}, which this host does not have" for uuid in strange],
            "Resume it on the host that it was suspended on, or give the map",
        )
    room = {gpu.uuid: gpu.free_bytes - reserved.get(gpu.uuid, 0) for gpu in gpus}
    order = [gpu.uuid for gpu in sorted(gpus, key=lambda gpu: gpu.index)]
    fits = {
        uuid: [
            other for other in order if by_uuid[other].name == by_uuid[uuid].name and room[other] >= needs.get(uuid, 0)
        ]
        for uuid in order
        if needs.get(uuid, 0) > 0
    }
    chosen: Dict[str, str] = {uuid: uuid for uuid, places in fits.items() if uuid in places}
    for uuid in order:
        if uuid in fits and uuid not in chosen and not _place(uuid, fits, chosen):
            raise _no_room(by_uuid[uuid], gpus, needs, room)
    return _complete(chosen, gpus)


def _place(uuid: str, fits: Mapping[str, Sequence[str]], chosen: Dict[str, str]) -> bool:
    """Finds a place for one more; those who have one may move on for it. False where there is no way.

    The cheapest augmenting path: a place costs 1 unless it is the GPU's own. Each of these paths keeps the number of
    moves the least possible for all that are placed so far.
    """
    owner = {place: each for each, place in chosen.items()}
    cost = {uuid: 0}  # of making each of these look for a place
    taker: Dict[str, str] = {}  # who would take the place, at the price in `best`
    best: Dict[str, int] = {}
    waiting = [uuid]
    while waiting:
        each = waiting.pop(0)
        for place in fits[each]:
            price = cost[each] + (place != each)
            if place == chosen.get(each) or price >= best.get(place, price + 1):
                continue
            best[place], taker[place] = price, each
            if place in owner:
                cost[owner[place]] = price - (place != owner[place])
                waiting.append(owner[place])
    free = [place for place in best if place not in owner]
    if not free:
        return False
    place = min(free, key=lambda each: best[each])
    while place:
        mover = taker[place]
        place, chosen[mover] = chosen.get(mover, ""), place
    return True


def _no_room(gpu: Gpu, gpus: Sequence[Gpu], needs: Mapping[str, int], room: Mapping[str, int]) -> DeviceMapError:
    alike = sorted((other for other in gpus if other.name == gpu.name), key=lambda other: other.index)
    rooms = ", ".join(f"{_called(other)} has {_mib(room[other.uuid])}" for other in alike)
    problem = (
        f"the process held {_mib(needs[gpu.uuid])} on {_called(gpu)}, and no {gpu.name} that it does not need for "
        f"something else has as much room: {rooms}"
    )
    return DeviceMapError([problem], "Free GPU memory and run the task again: the process stays suspended until then")


def _mib(size: int) -> str:
    return f"{size // (1 << 20)} MiB"
