# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a drain has come, as one line. Pure. Nothing of what a node said is in it but numbers and names of phases;
names of hosts are escaped."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import List

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._progress.course import Course, Left
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record, words

_LONGEST_NAME = 60
#: Told at the end, behind what hosts are at.
_LAST = (record.FAILED, record.UNDONE, record.UNTOUCHED)
_WORDS = {record.UNDONE: "put back"}


def summary(course: Course, now: float, over: bool = False) -> str:
    """now: of the clock that the course knows, as seconds since the epoch."""
    parts: List[str] = []
    if course.batches:
        parts.append(f"batch {course.batch}/{course.batches}")
    parts.append(hosts(course))
    parts.append(memory(course))
    if not over:
        parts.append(eta(course.left(now), now))
    return "; ".join(part for part in parts if part)


def hosts(course: Course) -> str:
    counts = course.counts()
    total = sum(counts.values())
    done = counts.pop(record.FINISHED, 0)
    order = [phase for phase in record.PHASES if phase in counts and phase not in _LAST]
    told = [f"{counts[key]} {_WORDS.get(key, key)}" for key in (*order, *_LAST) if counts.get(key)]
    return f"{done}/{words.plural(total, 'host')} done" + (f" ({', '.join(told)})" if told else "")


def memory(course: Course) -> str:
    away, back, total = course.sizes()
    if not total:
        return ""
    more = f", {words.plural(course.unknown, 'host')} not looked at" if course.unknown else ""
    return f"{words.size(away)} suspended, {words.size(back)} back, of {words.size(total)}{more}"


def eta(left: Left, now: float) -> str:
    if left.seconds is None:
        return f"ETA unknown: {left.why}"
    if left.least:
        return f"ETA unknown: at least {words.duration(left.seconds)} more ({left.why})"
    at = datetime.fromtimestamp(now + left.seconds, timezone.utc)
    return f"ETA {at.strftime('%H:%M')}Z, in about {words.duration(left.seconds)}"


def named(name: str) -> str:
    """A host's name, for a terminal."""
    text = printable(name)
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 3] + "..."


def of_host(course: Course, name: str) -> str:
    """What became of one host."""
    host = course.hosts[name]
    what = host.phase or "its claim"
    if host.failed:
        after = host.phase in (record.UNDOING, record.UNDONE_PHASE)
        return f"{named(name)}: {what} after a failure" if after else f"{named(name)}: failed in {what}"
    told = words.plural(host.processes, "process", "processes") if host.processes else ""
    size = words.size(host.size) if host.processes and host.size else ""
    about = ", ".join(part for part in (told, size) if part)
    return f"{named(name)}: {what}" + (f" ({about})" if about else "")
