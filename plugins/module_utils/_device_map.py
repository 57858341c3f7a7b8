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


class Origin(Protocol):
    """A GPU of the host that a process comes from."""

    @property
    def index(self) -> int:
        """Its number on that host."""

    @property
    def uuid(self) -> str:
        """As NVML names it."""

    @property
    def name(self) -> str:
        """Its model."""


class DeviceMapError(Exception):
    """The map can't be used; str() is the whole message. `problems`: each thing that is wrong."""

    def __init__(self, problems: Sequence[str], remedy: str) -> None:
        super().__init__(f"device_map: {'; '.join(problems)}. {remedy}.")
        self.problems = tuple(problems)
        self.remedy = remedy


@dataclass(frozen=True)
class FormerGpu:
    """A GPU of the host that an image comes from."""

    index: int
    uuid: str
    name: str


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
    wanted: Wanted,
    gpus: Sequence[Gpu],
    needs: Mapping[str, int],
    reserved: Optional[Mapping[str, int]] = None,
    origin: Sequence[Origin] = (),
) -> DeviceMap:
    """The map of one process.

    wanted: None for a plain restore; "auto" keeps GPUs where they are as long as they have room, and moves as few as
    possible to others of the same model that have; a mapping is taken as it is, GPUs by UUID or index. gpus: every GPU
    of the host. needs: bytes that the process held, by GPU UUID. reserved: bytes by GPU UUID that others have claimed,
    for "auto". origin: every GPU of the host that the process comes from, where that may be another one. Raises
    DeviceMapError.
    """
    if wanted is None:
        return DeviceMap()
    moves = bool(origin) and {one.uuid for one in origin} != {gpu.uuid for gpu in gpus}
    if isinstance(wanted, str):
        if wanted != "auto":
            raise DeviceMapError([f"{wanted!r} is no map"], 'Give "auto", or a dictionary of old to new GPUs')
        return _from_elsewhere(origin, gpus, needs, reserved or {}) if moves else _auto(gpus, needs, reserved or {})
    return _explicit(wanted, gpus, origin if moves else gpus)


def _called(gpu: Origin) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})"


def _find(name: object, gpus: Sequence[Origin], host: str = "this host") -> Union[Origin, str]:
    """The GPU of this name, or what is wrong with the name. host: the one that has these GPUs."""
    text = str(name).strip()
    if isinstance(name, bool) or not isinstance(name, (str, int)) or not text:
        return f"{name!r} is no GPU: give an index or a UUID"
    if text.upper().startswith("MIG-"):
        return f"{text} is a MIG device, and CUDA processes can't be suspended with MIG"
    for gpu in gpus:
        if text == str(gpu.index) or text.lower() == gpu.uuid.lower():
            return gpu
    return f"{text} is no GPU of {host}, which has {', '.join(_called(gpu) for gpu in gpus) or 'none'}"


def _explicit(wanted: Mapping[str, str], gpus: Sequence[Gpu], origin: Sequence[Origin]) -> DeviceMap:
    """origin: the GPUs of this host, unless the process comes from another one."""
    problems: List[str] = []
    found: List[Tuple[Origin, Origin]] = []
    sides: Tuple[Tuple[str, Sequence[Origin], str], ...] = (
        ("old", origin, "this host" if origin is gpus else "the host that it comes from"),
        ("new", gpus, "this host"),
    )
    named: Dict[str, List[str]] = {"old": [], "new": []}
    for names in wanted.items():
        pair: List[Origin] = []
        for (side, there, host), name in zip(sides, names):
            gpu = _find(name, there, host)
            if isinstance(gpu, str):
                problems.append(gpu)
            else:
                pair.append(gpu)
                named[side].append(gpu.uuid)
        if len(pair) == 2:
            found.append((pair[0], pair[1]))
    for side, there, _host in sides:
        for gpu in there:
            times = named[side].count(gpu.uuid)
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
    if origin is not gpus:
        return _sorted({old.uuid: new.uuid for old, new in found}, origin)
    return _complete({old.uuid: new.uuid for old, new in found}, gpus)


def _sorted(chosen: Mapping[str, str], origin: Sequence[Origin]) -> DeviceMap:
    ordered = sorted(origin, key=lambda gpu: gpu.index)
    return DeviceMap(tuple((gpu.uuid, chosen[gpu.uuid]) for gpu in ordered))


def _from_elsewhere(
    origin: Sequence[Origin], gpus: Sequence[Gpu], needs: Mapping[str, int], reserved: Mapping[str, int]
) -> DeviceMap:
    """Each GPU of the other host onto one of this host of the same model. One with the same index is taken where it has
    the room; the others go by size, the largest onto the roomiest: if any way of placing them fits, that one does."""
    room = {gpu.uuid: gpu.free_bytes - reserved.get(gpu.uuid, 0) for gpu in gpus}
    chosen: Dict[str, str] = {}
    problems: List[str] = []
    for model in sorted({gpu.name for gpu in (*origin, *gpus)}):
        then = [gpu for gpu in origin if gpu.name == model]
        now = [gpu for gpu in gpus if gpu.name == model]
        if len(then) != len(now):
            problems.append(f"it comes from {len(then)} x {model}, and here are {len(now)}")
            continue
        at = {gpu.index: gpu.uuid for gpu in now}
        same = {gpu.uuid: at[gpu.index] for gpu in then if gpu.index in at}
        if len(same) == len(then) and all(room[new] >= needs.get(old, 0) for old, new in same.items()):
            chosen.update(same)
            continue
        largest = sorted(then, key=lambda gpu: (-needs.get(gpu.uuid, 0), gpu.index))
        roomiest = sorted(now, key=lambda gpu: (-room[gpu.uuid], gpu.index))
        for old, new in zip(largest, roomiest):
            chosen[old.uuid] = new.uuid
            if room[new.uuid] < needs.get(old.uuid, 0):
                problems.append(
                    f"it held {_mib(needs[old.uuid])} on {_called(old)} of the other host, and {_called(new)} here has "
                    f"{_mib(room[new.uuid])}"
                )
    if problems:
        raise DeviceMapError(problems, "Free GPU memory, or choose a host that is equipped alike")
    return _sorted(chosen, origin)


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
