# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bars of a report: phases and hooks over a time axis, as SVG whose widths are percentages. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Entry, Host

#: What a phase looks like. Several look alike: the steps of each host name them all.
LOOKS = {
    record.CLAIMED: "prepare",
    record.SUSPENDING: "move",
    record.SUSPENDED: "down",
    record.MAINTENANCE: "down",
    record.RESTORING: "move",
    record.RESTORED: "back",
    record.UNDOING: "undo",
    record.UNDONE_PHASE: "undo",
}
LEGEND = (
    ("prepare", "claimed: hooks, scheduler"),
    ("move", "suspending, restoring"),
    ("down", "suspended, maintenance"),
    ("back", "restored: health, release"),
    ("undo", "undoing"),
)
#: At the end of a host's line, and beside its outcome.
SIGNS = {
    record.FINISHED: ("\u2713", "good"),
    record.FAILED: ("\u2715", "bad"),
    record.LOST: ("!", "bad"),
    record.UNDONE: ("\u21a9", "warn"),
    record.IN_PROGRESS: ("\u2026", "warn"),
    record.UNTOUCHED: ("", ""),
}
#: Of the lines' width, that nothing is so short that it can't be seen.
_LEAST = 0.7
#: How much of the width is time; in the rest stands how a host ended.
_SHARE = 96.5
#: So many characters of a label fit into one percent of the width of a line, on a screen and on paper.
_LETTERS = 1.0
_LETTERS_ON_PAPER = 0.6
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
HATCH = (
    '<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs><pattern id="hatch" width="6" '
    'height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch-paper" width="6" '
    'height="6"/><line class="hatch-line" x1="0" y1="0" x2="0" y2="6"/></pattern></defs></svg>'
)


@dataclass(frozen=True)
class Axis:
    """From one time to a later one. days: whether a time needs its date to be told."""

    begin: float
    end: float

    @property
    def days(self) -> bool:
        return words.clock(self.begin)[:10] != words.clock(self.end)[:10]

    def percent(self, at: float) -> float:
        share = (at - self.begin) / max(self.end - self.begin, 1e-3)
        return round(_SHARE * min(max(share, 0.0), 1.0), 3)

    def clock(self, at: float) -> str:
        """`08:00:00`, with the day before it where the axis crosses midnight."""
        return words.clock(at)[5 if self.days else 11 : 19]

    def ticks(self, most: int = 6) -> Tuple[Tuple[float, str], ...]:
        """At round times, at most so many, with what to write there."""
        span = self.end - self.begin
        step = next((one for one in _STEPS if span / one <= most), max(span / most, _STEPS[-1]))
        first = -(-self.begin // step) * step
        times = (first + step * number for number in range(int((self.end - first) // step) + 1))
        return tuple((at, self.clock(at) if step < 60 else self.clock(at)[:-3]) for at in times)


@dataclass(frozen=True)
class Span:
    entry: Entry
    begin: float
    end: float
    open: bool


def spans(host: Host, end: float) -> List[Span]:
    """Phases last until the next, or `end` of the axis. What has no end lasts as long as nothing else was told: for
    ever if it is the last word."""
    entries = sorted(host.timeline, key=lambda entry: (entry.began, not entry.phase))
    made = []
    for index, entry in enumerate(entries):
        if entry.ended is not None:
            made.append(Span(entry, entry.began, entry.ended, False))
            continue
        later = [one.began for one in entries[index + 1 :] if one.phase or not entry.phase]
        made.append(Span(entry, entry.began, max(later[0] if later else end, entry.began), True))
    return made


def axis_of(hosts: Sequence[Host], now: float) -> Optional[Axis]:
    """Over all that was told of these hosts; until now if something lasts. None if nothing was told."""
    entries = [entry for host in hosts for entry in host.timeline]
    if not entries:
        return None
    begin = min(entry.began for entry in entries)
    end = max(entry.ended or entry.began for entry in entries)
    if any(entry.ended is None for entry in entries):
        end = max(end, now)
    return Axis(begin, max(end, begin + 1))


def look(entry: Entry) -> str:
    return LOOKS.get(entry.what, "back") if entry.phase else "hook"


def scale(axis: Axis) -> str:
    """The times above the lines."""
    parts = ['<svg width="100%" height="16" aria-hidden="true">']
    for at, text in axis.ticks():
        where = axis.percent(at)
        anchor = "start" if where < 6 else "end" if where > 94 else "middle"
        parts.append(f'<text x="{where}%" y="12" text-anchor="{anchor}">{text}</text>')
    return "".join([*parts, "</svg>"])


def line(host: Host, axis: Axis, attempts: Sequence[float]) -> str:
    """One host: its phases behind each other, its hooks as a thin line below, and how it ended. attempts: when later
    attempts began."""
    shown = spans(host, axis.end)
    parts = [f'<svg width="100%" height="24" role="img" aria-label="{_escaped(_told(host, axis))}">']
    parts += [_upright("grid", axis.percent(at), 24) for at, _text in axis.ticks()]
    for span in shown:
        parts.append(_phase(span, axis) if span.entry.phase else _rect(span, axis, 20, 3))
    parts += [_upright("again", axis.percent(at), 24) for at in attempts if axis.begin < at < axis.end]
    sign, kind = SIGNS[host.outcome]
    if shown and sign and host.outcome != record.IN_PROGRESS:
        where = max(sum(_place(span, axis)) for span in shown)
        parts.append(f'<text class="end {kind}" x="{round(where, 3)}%" dx="3" y="16">{sign}</text>')
    return "".join([*parts, "</svg>"])


def step(span: Span, axis: Axis, attempts: Sequence[float]) -> str:
    """One entry on a line of its own. The words beside it say the same."""
    parts = ['<svg width="100%" height="14" aria-hidden="true">']
    parts += [_upright("again", axis.percent(at), 14) for at in attempts if axis.begin < at < axis.end]
    parts += [_rect(span, axis, 2, 10), "</svg>"]
    return "".join(parts)


def swatch(kind: str) -> str:
    return f'<svg width="22" height="12" aria-hidden="true"><rect class="{kind}" width="22" height="12"/></svg>'


def _told(host: Host, axis: Axis) -> str:
    phases = [f"{entry.what} {axis.clock(entry.began)}" for entry in host.timeline if entry.phase]
    return f"{host.host}: {', '.join(phases) or 'nothing yet'}; {host.outcome.replace('_', ' ')}"


def _phase(span: Span, axis: Axis) -> str:
    left, width = _place(span, axis)
    text = span.entry.what
    label = ""
    if len(text) + 2 <= width * _LETTERS:
        wide = " wide" if len(text) + 2 <= width * _LETTERS_ON_PAPER else ""
        label = f'<text class="on {look(span.entry)}{wide}" x="5" y="14">{_escaped(text)}</text>'
    inner = f'<svg x="{left}%" width="{width}%" y="3" height="15">{label}</svg>' if label else ""
    return _rect(span, axis, 3, 15) + inner


def _rect(span: Span, axis: Axis, y: int, height: int) -> str:
    left, width = _place(span, axis)
    kind = "bad" if span.entry.failed and not span.entry.phase else look(span.entry)
    kind += " open" if span.open and not span.entry.phase else ""
    return f'<rect class="{kind}" x="{left}%" width="{width}%" y="{y}" height="{height}"/>'


def _place(span: Span, axis: Axis) -> Tuple[float, float]:
    left, right = axis.percent(span.begin), axis.percent(span.end)
    width = max(right - left, _LEAST)
    return round(min(left, _SHARE - width), 3), round(width, 3)


def _upright(kind: str, where: float, height: int) -> str:
    return f'<line class="{kind}" x1="{where}%" x2="{where}%" y1="0" y2="{height}"/>'


def _escaped(text: str) -> str:
    return escape(printable(text), quote=True)
