# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CRIU's log leaves open, from /proc, right after CRIU has refused: which file a descriptor is, who has a PID, who
traces a process, where a thread waits. Paths, names and PIDs only.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Dict, Iterator, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log import Decoded, decode
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kinds import BY_ID
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, printable

#: Descriptors, threads or processes that are named.
MOST = 4
#: Bytes. A disk that has less is full: CRIU's log grows by more in one dump.
ROOM = 1 << 20


def refused(log: str, doing: str, name: str, status: Optional[int], place: str = "", proc: str = "/proc") -> CriuError:
    """The refusal of CRIU as an error. doing: "dump" or "restore". name: of the tree, where the log does not say whom
    it is about. status: of CRIU, None while it runs. place: the directory of its log.
    """
    found = _without_room(look(decode(log, doing), proc), place)
    ended = "it has not ended" if status is None else f"it ended with status {status}"
    said = "; ".join(found.lines) or f"criu {doing}: {ended}"
    return CriuError(found.subject or name, said, found.reason, found.remedy, found.option)


def look(decoded: Decoded, proc: str = "/proc") -> Decoded:
    """With what can be seen of it now, as further lines. Raises nothing."""
    if decoded.pid is None:
        return decoded
    seen: List[str] = []
    if decoded.kind in ("device_file", "unsupported_file", "io_uring"):
        seen = list(_files(proc, decoded))
    elif decoded.kind == "pid_in_use":
        seen = [_holder(proc, decoded.pid)]
    elif decoded.kind == "cannot_trace":
        seen = list(_tracer(proc, decoded.pid))
    elif decoded.kind == "timeout":
        seen = list(_waiting(proc, decoded.pid))
    path = decoded.path
    if decoded.kind == "device_file" and seen and not path:
        path = seen[0].split(" is ", 1)[1]
    return replace(decoded, lines=(*decoded.lines, *seen[:MOST]), path=path)


def _without_room(decoded: Decoded, place: str) -> Decoded:
    """A log on a full disk ends before it says so."""
    if not place or decoded.kind not in ("unfinished", "no_log"):
        return decoded
    try:
        room = os.statvfs(place)
    except OSError:
        return decoded
    if room.f_bavail * room.f_frsize >= ROOM and (room.f_favail or not room.f_files):
        return decoded
    known = BY_ID["no_space"]
    return replace(
        decoded,
        kind=known.id,
        reason=known.reason,
        remedy=known.remedy,
        lines=(f"{place} has no room left, and so the log ends early", *decoded.lines),
    )


def _files(proc: str, decoded: Decoded) -> Iterator[str]:
    place = os.path.join(proc, str(decoded.pid), "fd")
    numbers = [str(decoded.descriptor)] if decoded.descriptor is not None else sorted(_list(place), key=_number)
    for number in numbers:
        try:
            target = printable(os.readlink(os.path.join(place, number)))
        except OSError:
            continue
        if decoded.descriptor is not None or decoded.kind != "io_uring" or "[io_uring]" in target:
            yield f"descriptor {number} is {target}"


def _holder(proc: str, pid: int) -> str:
    """Who has a PID: a process, a thread, a zombie, or members of a group or session that goes by it."""
    status = _status(proc, pid)
    if status:
        name, leader = status.get("Name", ""), int(status.get("Tgid", "0"))
        if leader != pid:
            return f"{pid} is a thread ({name}) of PID {leader} ({_status(proc, leader).get('Name', '')})"
        if status.get("State", "")[:1] == "Z":
            parent = status.get("PPid", "0")
            return f"PID {pid} is a zombie ({name}) that its parent, PID {parent}, has not reaped"
        return f"PID {pid} is {name}"
    members = [f"PID {one} ({name})" for one, name in _members(proc, pid)]
    if members:
        return f"a process group or session goes by {pid}: {', '.join(members[:MOST])}"
    return f"nobody has {pid} now"


def _members(proc: str, number: int) -> Iterator[Tuple[int, str]]:
    for one in sorted((name for name in _list(proc) if name.isdigit()), key=int):
        text = _text(os.path.join(proc, one, "stat"))
        # Behind the name, in parentheses: state, parent, group, session.
        words = text[text.rfind(")") + 1 :].split()
        if len(words) > 3 and str(number) in words[2:4]:
            yield int(one), printable(text[text.find("(") + 1 : text.rfind(")")])


def _tracer(proc: str, pid: int) -> Iterator[str]:
    status = _status(proc, pid)
    tracer = int(status.get("TracerPid", "0"))
    if tracer:
        yield f"PID {tracer} ({_status(proc, tracer).get('Name', '')}) traces it"
    if status.get("State", "")[:1] == "Z":
        yield "it is a zombie: it has ended, and its parent has not reaped it"


def _waiting(proc: str, pid: int) -> Iterator[str]:
    for thread in sorted(_list(os.path.join(proc, str(pid), "task")), key=_number):
        state = _status(proc, f"{pid}/task/{thread}").get("State", "")
        if state[:1] == "D":
            place = _text(os.path.join(proc, str(pid), "task", thread, "wchan")).strip("\0 \n0")
            yield f"thread {thread} waits in the kernel{f' ({place})' if place else ''}"


def _status(proc: str, pid: object) -> Dict[str, str]:
    """Fields of a process; none where it is not there."""
    pairs = (line.partition(":") for line in kernel_lines(_text(os.path.join(proc, str(pid), "status"))))
    return {name: printable(value.strip()) for name, _colon, value in pairs}


def _text(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 16).decode(errors="replace")
    except OSError:
        return ""


def _list(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1
