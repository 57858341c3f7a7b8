# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which CUDA processes an operator means by GPU, user, command, control group, unit, Slurm job or container.

Pure, but for the look-up of user names.
"""

from __future__ import annotations

import pwd
import re
from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import natural

#: PID -> GPU UUID -> bytes, of suspended processes: NVML lists those nowhere.
Held = Mapping[int, Mapping[str, Optional[int]]]
Test = Callable[[ProcessSnapshot], bool]

_UNIT = re.compile(r"\.(service|scope|socket|mount|swap|slice)$")
_SLURM = re.compile(r"(?:^|/)[^/]*slurm[^/]*/(?:uid_\d+/)?job_(\d+)(?:/step_([^/]+))?")
_CONTAINERS = (
    re.compile(r"(?:^|/)(?:docker|libpod|crio|cri-containerd|nerdctl|containerd)[-:]([0-9a-f]{64})(?:\.scope)?(?:/|$)"),
    re.compile(r"(?:^|/)(?:docker|libpod_parent|actions_job|pod[0-9a-f_-]{36})/([0-9a-f]{64})(?:/|$)"),
    re.compile(r"(?:^|/)lxc(?:\.payload)?[./]([^/]+)(?:/|$)"),
    re.compile(r"(?:^|/)machine-([^/]+)\.scope(?:/|$)"),
    re.compile(r"(?:^|/)systemd-nspawn@([^/]+)\.service(?:/|$)"),
    re.compile(r"(?:^|/)kubepods[^/]*/(?:[^/]+/)*([0-9a-f]{64})(?:/|$)"),
)


class SelectError(Exception):
    """A criterion that can't be meant. `argument`: its option; `seen`: what it has; `allowed`: what is allowed."""

    def __init__(self, argument: str, seen: str, allowed: str) -> None:
        super().__init__(f"{argument}: {seen}. {allowed}")
        self.argument = argument
        self.seen = seen
        self.allowed = allowed


@dataclass(frozen=True)
class Place:
    """Where a process runs. cgroup: its most telling path. unit: the innermost systemd service or scope (a slice where
    it is in nothing else). slurm_job, slurm_step: "123", "0" or "batch". container: id or name."""

    cgroup: str
    unit: Optional[str]
    slurm_job: Optional[str]
    slurm_step: Optional[str]
    container: Optional[str]


def unescape(name: str) -> str:
    """A systemd name as a person writes it: "a\\x2db" is "a-b"."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match.group(1), 16)), name)


def _units(path: str) -> List[str]:
    return [part for part in path.split("/") if _UNIT.search(part)]


def place(process: ProcessSnapshot) -> Place:
    """Out of its control groups, and for Slurm without them, its environment."""
    paths = sorted(process.cgroup_paths, key=len, reverse=True)
    units = [unit for path in paths for unit in reversed(_units(path))]
    job, step = _slurm(process)
    container = next((found for path in paths for found in [_container(path)] if found), None)
    return Place(
        cgroup=paths[0] if paths else "",
        unit=next((unit for unit in units if not unit.endswith(".slice")), units[0] if units else None),
        slurm_job=job,
        slurm_step=step,
        container=container,
    )


def places(process: ProcessSnapshot) -> Tuple[str, Optional[str], Optional[str], Optional[str]]:
    """(control group, unit, Slurm job, container)."""
    found = place(process)
    return found.cgroup, found.unit, found.slurm_job, found.container


def units(process: ProcessSnapshot) -> Tuple[str, ...]:
    """Every unit of the system's manager that it is in, the innermost first; those of a user's manager are left out."""
    found: List[str] = []
    for path in process.cgroup_paths:
        inside = re.split(r"/user@\d+\.service/", path)[0] if "/user@" in path else path
        found.extend(unit for unit in reversed(_units(inside)) if unit not in found)
    return tuple(found)


def _slurm(process: ProcessSnapshot) -> Tuple[Optional[str], Optional[str]]:
    for path in process.cgroup_paths:
        match = _SLURM.search(path)
        if match:
            return match.group(1), match.group(2)
    environment = process.environment or {}
    return environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")


def _container(path: str) -> Optional[str]:
    for pattern in _CONTAINERS:
        match = pattern.search(path)
        if match:
            return unescape(match.group(1))
    return None


def _uid_of(name: str) -> Optional[int]:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):  # ValueError: of what can be no name
        return None


def _list(argument: str, value: Any) -> Sequence[Any]:
    if isinstance(value, (list, tuple)) and value:
        return value
    raise SelectError(argument, f"{value!r} is no list with something in it", "Give at least one.")


def _text(argument: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise SelectError(argument, f"{value!r}", "A text that is not empty is allowed.")
    return str(value).strip()


def _gpus(value: Any, snapshot: Snapshot, held: Held) -> Test:
    known: Dict[str, str] = {}
    for gpu in snapshot.gpus:
        known[str(gpu.index)] = gpu.uuid
        known[gpu.uuid] = gpu.uuid
    wanted: Set[str] = set()
    for one in _list("select.gpus", value):
        key = _text("select.gpus", one)
        if key not in known:
            have = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in snapshot.gpus) or "none"
            raise SelectError("select.gpus", f"there is no GPU {key!r}", f"This host has {have}.")
        wanted.add(known[key])
    users = {one.pid for gpu in snapshot.gpus if gpu.uuid in wanted for one in gpu.processes}

    def test(process: ProcessSnapshot) -> bool:
        return process.pid in users or bool(wanted & set(held.get(process.pid) or {}))

    return test


def _users(value: Any, uid_of: Callable[[str], Optional[int]]) -> Test:
    wanted: Set[int] = set()
    for one in _list("select.users", value):
        name = _text("select.users", one)
        number = natural(name)
        uid = uid_of(name) if number is None else number
        if uid is None:
            raise SelectError("select.users", f"this host knows no user {name!r}", "A user name or a uid is allowed.")
        wanted.add(uid)
    return lambda process: process.uid in wanted


def _command(value: Any) -> Test:
    text = _text("select.command", value)
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise SelectError(
            "select.command", f"{text!r} is no regular expression: {error}", "It is searched for in the command line."
        ) from None
    return lambda process: bool(pattern.search(" ".join(process.command) or process.name))


def _executable(value: Any) -> Test:
    pattern = _text("select.executable", value)

    def test(process: ProcessSnapshot) -> bool:
        path = process.executable.partition(" (deleted)")[0]
        return fnmatchcase(path if "/" in pattern else path.rpartition("/")[2], pattern)

    return test


def _cgroup(value: Any) -> Test:
    wanted = "/" + _text("select.cgroup", value).strip("/")
    return lambda process: any(
        wanted == "/" or path == wanted or path.startswith(wanted + "/") for path in process.cgroup_paths
    )


def _unit(value: Any) -> Test:
    name = _text("select.unit", value)
    wanted = name if _UNIT.search(name) else f"{name}.service"
    return lambda process: any(
        wanted in (unit, unescape(unit)) for path in process.cgroup_paths for unit in _units(path)
    )


def _slurm_job(value: Any) -> Test:
    text = _text("select.slurm_job", value)
    job, _separator, step = text.partition(".")
    if natural(job) is None or text.endswith("."):
        raise SelectError(
            "select.slurm_job", f"{text!r} is no job", "A job id is allowed, or JOB.STEP (123, 123.0, 123.batch)."
        )

    def test(process: ProcessSnapshot) -> bool:
        own_job, own_step = _slurm(process)
        return own_job == job and (not step or own_step == step)

    return test


def _container_test(value: Any, processes: Sequence[ProcessSnapshot]) -> Test:
    wanted = _text("select.container", value)
    ids = {place(process).container for process in processes} - {None}
    matching = {one for one in ids if one is not None and (one == wanted or _abbreviates(wanted, one))}
    if len(matching) > 1 and wanted not in matching:
        raise SelectError(
            "select.container", f"{wanted!r} fits {', '.join(sorted(matching))}", "Give more of the id of one of them."
        )
    return lambda process: place(process).container in ({wanted} & matching or matching)


def _abbreviates(wanted: str, identifier: str) -> bool:
    return bool(re.match(r"^[0-9a-f]{4,63}$", wanted)) and len(identifier) == 64 and identifier.startswith(wanted)


CRITERIA: FrozenSet[str] = frozenset(
    ("all", "cgroup", "command", "container", "executable", "gpus", "slurm_job", "unit", "users")
)


def select(
    criteria: Mapping[str, Any],
    snapshot: Snapshot,
    held: Held,
    uid_of: Callable[[str], Optional[int]] = _uid_of,
) -> Tuple[int, ...]:
    """PIDs, in order, of the CUDA processes that meet every criterion; suspended ones, and those in `held`, are among
    them. None is a possible answer. Criteria that are None, and `all: false`, are not there.

    Raises SelectError for a criterion that is unknown, malformed, or names what the host does not have; and for none.
    """
    given = {name: value for name, value in criteria.items() if value is not None and (name, value) != ("all", False)}
    odd = sorted(set(given) - CRITERIA)
    if odd:
        raise SelectError("select", f"{', '.join(odd)} is no criterion", f"Known: {', '.join(sorted(CRITERIA))}.")
    if not given:
        raise SelectError("select", "it has no criterion", "Give one, or all: true for every CUDA process.")
    candidates = [one for one in snapshot.processes if one.may_be_cuda or one.pid in held]
    makers: Dict[str, Callable[[Any], Test]] = {
        "all": lambda _value: lambda _process: True,
        "gpus": lambda value: _gpus(value, snapshot, held),
        "users": lambda value: _users(value, uid_of),
        "command": _command,
        "executable": _executable,
        "cgroup": _cgroup,
        "unit": _unit,
        "slurm_job": _slurm_job,
        "container": lambda value: _container_test(value, candidates),
    }
    tests = [makers[name](value) for name, value in sorted(given.items())]
    return tuple(sorted(process.pid for process in candidates if all(test(process) for test in tests)))
