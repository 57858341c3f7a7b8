# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CRIU refused, on whom, and what helps: out of its log. Pure.

The first line that says why, not the last error. Nothing of a process's memory stands in such a log; paths, names and
PIDs do, and are told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Match, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kinds import BOTH, BY_ID
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_lines import Holder, Line, Reading, read
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_rules import (
    ADDRESS,
    CONSEQUENCE,
    GHOST,
    HARMLESS,
    IMAGE,
    LOCK,
    MAPPING,
    SOCKET,
    STUCK,
    SURE,
    TERMINAL,
    UNSURE,
    Rule,
)

#: Lines of evidence, and characters of each.
LINES = 3
CHARACTERS = 300
_ABSENT = re.compile(r"No (\S+\.img) image\Z")
_END = re.compile(r"(?:Dumping|Restore) finished successfully|(?:Dumping|Restoring) FAILED")


@dataclass(frozen=True)
class Decoded:
    """kind: an id of log_kinds. subject: a path or "PID 12 (name)", "" where the log does not say whose it is.
    reason, remedy: sentences without their full stop. option: of criu_image, with its value. lines: what CRIU said.
    pid: whom it is about; with pid_in_use the PID that is taken. path: absolute. descriptor: of the file.
    """

    kind: str
    subject: str
    reason: str
    remedy: str
    option: str = ""
    lines: Tuple[str, ...] = ()
    pid: Optional[int] = None
    path: str = ""
    descriptor: Optional[int] = None


def decode(log: str, doing: str) -> Decoded:
    """doing: "dump" or "restore". Never raises, whatever the log holds, and also with its middle left out."""
    reading = read(log)
    for rules in (SURE, UNSURE):
        for number, line in enumerate(reading.lines):
            known = _first(rules, line, doing)
            if known:
                return _told(*known, number, reading)
    if not reading.lines:
        return _made("no_log", Holder(), "", ())
    return _untold(reading, doing)


def _untold(reading: Reading, doing: str) -> Decoded:
    """No rule knows a line of it."""
    errors = [line for line in reading.lines if _is_error(line)]
    if errors:
        return _made("unknown", errors[0].task, "", _texts(errors))
    ends = [line for line in reading.lines if _END.match(line.text)]
    if ends:
        return _made("unknown" if "FAILED" in ends[-1].text else "finished", Holder(), "", _texts(ends[-1:]))
    # The last line may be cut off: CRIU was still writing when it was read.
    for number in range(len(reading.lines) - 1, max(len(reading.lines) - 4, -1), -1):
        known = _first(STUCK, reading.lines[number], doing)
        if known:
            return _told(*known, number, reading)
    return _made("unfinished", reading.lines[-1].task, "", _texts(reading.lines[-1:]))


def _is_error(line: Line) -> bool:
    return line.level == "Error" and not HARMLESS.search(line.text) and not CONSEQUENCE.search(line.text)


def _first(rules: Iterable[Rule], line: Line, doing: str) -> Optional[Tuple[Rule, Match[str]]]:
    if HARMLESS.search(line.text) or CONSEQUENCE.search(line.text):
        return None
    for rule in rules:
        if rule.doing in (BOTH, doing) and (rule.plain or line.level == "Error" or line.bare):
            match = rule.pattern.search(line.text)
            if match:
                return rule, match
    return None


def _told(rule: Rule, match: Match[str], number: int, reading: Reading) -> Decoded:
    line = reading.lines[number]
    groups = {name.rstrip("23"): text for name, text in match.groupdict().items() if text}
    holder = _holder(rule, number, groups.get("ino", ""), reading)
    if "pid" in groups:
        pid = int(groups["pid"])
        holder = holder if pid == holder.pid else Holder(pid, reading.names.get(pid, ""), holder.path)
    if "fd" in groups:
        holder = Holder(holder.pid, holder.name, holder.path, int(groups["fd"]))
    evidence = [line]
    if not line.level and not line.bare:
        # The error itself comes next.
        evidence = [later for later in reading.lines[number + 1 :] if _is_error(later)][:1] + evidence
    said = _texts(evidence)
    if line.seen and rule.whose in _SEEN:
        said = (f"{_SEEN[rule.whose]} {line.seen}", *said)
    return _made(rule.kind, holder, groups.get("path", ""), said)


def _holder(rule: Rule, number: int, inode: str, reading: Reading) -> Holder:
    """Whom it is about."""
    line = reading.lines[number]
    if rule.whose == IMAGE:
        absent = _ABSENT.match(reading.lines[number - 1].text) if number else None
        return Holder(line.task.pid, line.task.name, absent.group(1) if absent else "")
    if rule.whose == SOCKET:
        return reading.sockets.get(inode, Holder())
    if rule.whose == TERMINAL and reading.terminals:
        return reading.terminals[0]
    if rule.whose == LOCK and reading.locks:
        return reading.locks[0]
    if rule.whose == GHOST:
        one = reading.ghosts[0] if len(set(reading.ghosts)) == 1 else ""
        return Holder(line.task.pid, line.task.name, one)
    if rule.whose == MAPPING:
        return Holder(line.task.pid, line.task.name, line.seen)
    return line.task


def _made(kind: str, holder: Holder, path: str, lines: Tuple[str, ...]) -> Decoded:
    known = BY_ID[kind]
    place = _absolute(path or holder.path, kind in _WITHOUT_SLASH)
    process = "" if holder.pid is None else f"PID {holder.pid}" + (f" ({holder.name})" if holder.name else "")
    return Decoded(
        kind=kind,
        subject=process or place if kind in _OF_PROCESSES or not place else place,
        reason=known.reason,
        remedy=known.remedy,
        option=known.option,
        lines=lines,
        pid=holder.pid,
        path=place,
        descriptor=holder.descriptor,
    )


#: What is told beside the words of CRIU.
_SEEN = {MAPPING: "it maps", ADDRESS: "it binds"}
#: Told of the process, though there is a path.
_OF_PROCESSES = frozenset(
    ("device_mapping", "external_unix_stream", "external_unix_socket", "terminal", "lost_mount", "unsupported_file")
)
#: CRIU names files without their first slash when it restores them.
_WITHOUT_SLASH = frozenset(
    ("bad_file_size", "missing_file", "file_access", "file_mode", "build_id", "link_remap_missing", "no_space")
)


def _absolute(path: str, without_slash: bool) -> str:
    if path in ("null", "(null)", "(empty-image)"):
        return ""
    return f"/{path}" if without_slash and path and not path.startswith("/") else path


def _texts(lines: Iterable[Line]) -> Tuple[str, ...]:
    return tuple(line.text[:CHARACTERS] for line in list(lines)[:LINES])
