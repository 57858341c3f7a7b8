# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the operator asked for, checked before anything is looked at."""

from __future__ import annotations

import os
import re
import time
from typing import Any, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_map import FormerGpu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import natural

PID_LIMIT = 4194304  # the kernel's PID_MAX_LIMIT on 64-bit machines


class ArgumentError(Exception):
    """Bad input: which argument, what was seen, what is allowed."""

    def __init__(self, argument: str, seen: str, allowed: str) -> None:
        super().__init__(f"{argument}: {seen}. {allowed}")
        self.argument = argument
        self.seen = seen
        self.allowed = allowed


@dataclass(frozen=True)
class Wanted:
    """One entry of pids: a PID, or an identity as cuda_checkpoint_info returns it."""

    pid: int
    start_ticks: Optional[int] = None
    boot_id: Optional[str] = None


@dataclass(frozen=True)
class Options:
    """The options of cuda_checkpoint, typed. Times in seconds. origin: every GPU of the host that the processes come
    from, empty for this one."""

    goal: str
    pids: Tuple[Wanted, ...]
    select: Optional[Mapping[str, Any]]
    allow: FrozenSet[str]
    park: bool
    guard: str
    backend: str
    executable: str
    parallel: int
    lock_timeout: float
    step_timeout: float
    rollback: bool
    device_map: Union[str, Mapping[str, str], None]
    huge_pages: str
    full_command: bool
    journal: str
    run_id: str
    check: bool
    unit_policy: str = "refuse"
    origin: Tuple[FormerGpu, ...] = ()


def parse_pids(raw: Sequence[Any]) -> Tuple[Wanted, ...]:
    """Raises ArgumentError."""
    wanted = tuple(_parse_pid(index, entry) for index, entry in enumerate(raw))
    seen: List[int] = []
    for entry in wanted:
        if entry.pid in seen:
            raise ArgumentError("pids", f"{entry.pid} is there twice", "Name each process once.")
        seen.append(entry.pid)
    if not wanted:
        raise ArgumentError("pids", "the list is empty", "Name at least one process, or use select.")
    return wanted


def _parse_pid(index: int, entry: Any) -> Wanted:
    where = f"pids[{index}]"
    if isinstance(entry, Mapping):
        odd = sorted(str(key) for key in entry if key not in ("pid", "start_ticks", "boot_id"))
        if odd or "pid" not in entry or "start_ticks" not in entry:
            raise ArgumentError(
                where,
                f"a dictionary with the keys {', '.join(sorted(map(str, entry))) or '(none)'}",
                "An identity has pid and start_ticks, and may have boot_id.",
            )
        boot_id = entry.get("boot_id")
        return Wanted(
            _number(f"{where}.pid", entry["pid"], 1, PID_LIMIT),
            _number(f"{where}.start_ticks", entry["start_ticks"], 0, (1 << 63) - 1),
            str(boot_id) if boot_id else None,
        )
    return Wanted(_number(where, entry, 1, PID_LIMIT))


def _number(where: str, value: Any, least: int, most: int) -> int:
    allowed = f"A whole number from {least} to {most} is allowed."
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ArgumentError(where, f"{value!r} is no number", allowed)
    text = str(value)
    # int() takes much that a person would not call a PID: "1_000", " 12", Arabic digits.
    number = natural(text)
    if number is None:
        raise ArgumentError(where, f"{value!r} is no PID" if where.startswith("pids") else f"{value!r}", allowed)
    if not least <= number <= most:
        raise ArgumentError(where, f"{text} is out of range", allowed)
    return number


def parse_allow(raw: Sequence[str], known: FrozenSet[str]) -> FrozenSet[str]:
    """Raises ArgumentError on a name that overrides nothing: a misspelt consent is no consent."""
    for name in raw:
        if name not in known:
            raise ArgumentError(
                "allow", f"{name!r} is no hazard that can be overridden", f"Known: {', '.join(sorted(known))}."
            )
    return frozenset(raw)


def parse_device_map(raw: Any) -> Union[str, Mapping[str, str], None]:
    """Raises ArgumentError. None, "auto", or a mapping of GPU (UUID or index) to GPU."""
    if raw is None or raw == "auto":
        return raw if raw is None else "auto"
    if isinstance(raw, Mapping) and raw:
        for key, value in raw.items():
            for gpu in (key, value):
                if isinstance(gpu, bool) or not isinstance(gpu, (int, str)) or str(gpu) == "":
                    raise ArgumentError(
                        "device_map", f"{gpu!r} is no GPU", "A GPU is named by its UUID or by its index."
                    )
        return {str(key): str(value) for key, value in raw.items()}
    raise ArgumentError(
        "device_map", f"{raw!r}", "'auto' or a dictionary that maps every GPU of the host to one is allowed."
    )


def check_dots(name: str, path: Optional[str]) -> None:
    """Raises ArgumentError: what .. means depends on what lies on the way, such as a symbolic link."""
    if path is not None and ".." in path.split("/"):
        raise ArgumentError(name, f"{path!r} has .. in it", "An absolute path without it is allowed.")


def parse_place(name: str, path: Optional[str]) -> str:
    """The path of a directory, spelt in one way; "" for none. Raises ArgumentError."""
    if path is None:
        return ""
    check_dots(name, path)
    if not os.path.isabs(path):
        raise ArgumentError(name, repr(path), "An absolute path is allowed.")
    return "/" + os.path.normpath(path).lstrip("/")


def check_ranges(parallel: int, lock_timeout: float, step_timeout: float) -> None:
    """Raises ArgumentError."""
    if parallel < 0:
        raise ArgumentError("parallel", str(parallel), "0 (all at once) or more is allowed.")
    if not 0 < lock_timeout <= 86400:
        raise ArgumentError("lock_timeout", f"{lock_timeout:g}", "More than 0 and at most 86400 seconds are allowed.")
    if not 0 <= step_timeout <= 604800:
        raise ArgumentError(
            "step_timeout", f"{step_timeout:g}", "0 (from the bytes to move) to 604800 seconds are allowed."
        )


def parse_select(raw: Optional[Mapping[str, Any]]) -> Optional[Mapping[str, Any]]:
    """Raises ArgumentError. Only the criteria that were given."""
    if raw is None:
        return None
    given = {name: value for name, value in raw.items() if value is not None and value is not False}
    if not given:
        raise ArgumentError("select", "no criterion is given", "Give at least one; every process is `all: true`.")
    return given


def parse_guard(wanted: str, park: bool) -> str:
    """Raises ArgumentError. What "auto" means; a process that is not parked has nothing to guard."""
    if not park and wanted not in ("auto", "none"):
        raise ArgumentError("guard", f"{wanted} with park off", "Only a parked process can be guarded.")
    return ("holder" if park else "none") if wanted == "auto" else wanted


def parse_run_id(raw: Optional[str]) -> str:
    """Raises ArgumentError. Without one: the time, and something random."""
    if raw is None:
        return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
    if not re.match(r"[A-Za-z0-9._-]{1,64}\Z", raw):
        raise ArgumentError("run_id", repr(raw), "Up to 64 letters, digits, dots, underscores and hyphens are allowed.")
    return raw
