# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a run as one page. Pure.

It stands alone: no script, nothing that is loaded from elsewhere, and a policy in it that forbids both. Whatever it
shows comes from hosts, files and people, so all of it is escaped.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import page_timeline as timeline
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record, report, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.page_host import host_article
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.page_parts import (
    OUTCOMES,
    badge,
    later_attempts,
    moment,
    of_lost,
    of_outcome,
    sentence,
    shown,
    table,
)
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.page_style import STYLE
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Host, Run

#: Which hosts come first where the whole of each is told.
_URGENT = (record.LOST, record.FAILED, record.IN_PROGRESS, record.UNDONE, record.FINISHED)
_NEEDS = frozenset((record.LOST, record.FAILED, record.UNDONE))


def page(data: Mapping[str, Any]) -> str:
    """From what `report` made, also as it was read from report.json."""
    run = record.run_from_json(data["run"])
    hosts = [record.host_from_json(one) for one in data["hosts"]]
    now = float(data["generated"])
    places = {host.host: f"host-{index}" for index, host in enumerate(hosts, 1)}
    title = f"{run.kind.capitalize()} {run.run_id}"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="referrer" content="no-referrer">',
            '<meta name="robots" content="noindex">',
            f"<title>{shown(title)}: {shown(_headline(data, run, hosts))}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#hosts">Skip to the hosts</a>',
            timeline.HATCH,
            *_top(title, data, run, hosts, now),
            "<main>",
            *_attention(hosts, places),
            *_overview(run, hosts, places, now),
            *_details(run, hosts, places, now),
            *_how(run, now),
            "</main>",
            f"<footer>{shown(_foot(data, now))}</footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _headline(data: Mapping[str, Any], run: Run, hosts: Sequence[Host]) -> str:
    left = sum(host.outcome != record.FINISHED for host in hosts)
    batch = max((attempt.batch for attempt in run.current()), default=0)
    return {
        report.FINISHED: f"all {words.plural(len(hosts), 'host')} finished",
        report.STOPPED: f"stopped, {words.plural(left, 'host')} not finished",
        report.INCOMPLETE: f"ended, {words.plural(left, 'host')} not finished",
        report.RUNNING: f"running, batch {batch}",
        report.INTERRUPTED: f"interrupted in batch {batch}, {words.plural(left, 'host')} not finished",
    }.get(data["state"], f"not finished, batch {batch}")


def _top(title: str, data: Mapping[str, Any], run: Run, hosts: Sequence[Host], now: float) -> Iterable[str]:
    yield "<header>"
    yield f"<h1>{shown(title)}</h1>"
    took = f", {words.duration(now - run.created)} before this was written" if now > run.created else ""
    headline = _headline(data, run, hosts)
    yield f"<p><strong>{shown(sentence(headline[:1].upper() + headline[1:]))}</strong>"
    yield f'<span class="soft">Begun {moment(run.created)}{shown(took)}.</span></p>'
    yield '<ul class="tiles" aria-label="Counts">'
    counts = data["counts"]
    yield _tile(counts["hosts"], "host" if counts["hosts"] == 1 else "hosts", "")
    for outcome in (record.FINISHED, record.FAILED, record.LOST, record.UNDONE, record.IN_PROGRESS, record.UNTOUCHED):
        if counts[outcome]:
            yield _tile(counts[outcome], OUTCOMES[outcome], outcome)
    yield "</ul>"
    yield f"<p>{shown(_processes_line(counts))}</p>"
    stopped = [attempt.stopped for attempt in run.current() if attempt.stopped]
    for why in stopped:
        yield f'<div class="box bad"><strong>Why it stopped.</strong> <span class="said">{shown(why)}</span></div>'
    verdict = data.get("budget")
    if verdict and verdict["failed"] and not stopped:
        yield (
            f"<p>Failure budget: {shown(str(len(verdict['failed'])))} of {shown(str(verdict['allowed']))} "
            "allowed failures (gpu_drain_failures_allowed).</p>"
        )
    if data["next"]:
        said = shown(data["next"])
        yield f'<div class="box"><strong>What to do next.</strong> <span class="said">{said}</span></div>'
    yield "</header>"


def _processes_line(counts: Mapping[str, Any]) -> str:
    processes = counts["processes"]
    if not processes["total"]:
        return "No process is known yet."
    told = [f"{processes[key]} {key}" for key in ("running", "suspended", "gone") if processes[key]]
    if processes["unknown"]:
        told.append(f"{processes['unknown']} not looked at")
    text = f"{words.plural(processes['total'], 'process', 'processes')}: {', '.join(told)}."
    if counts["device_bytes"]:
        text += f" {words.size(counts['device_bytes'])} of GPU memory"
        unknown = counts.get("device_bytes_unknown")
        text += f", not known of {words.plural(unknown, 'process', 'processes')}." if unknown else "."
    images = counts["images"]
    if images["total"]:
        text += f" {words.plural(images['total'], 'image')}, {images['unspent']} not restored."
    return text


def _tile(count: int, label: str, kind: str) -> str:
    return f'<li class="{kind}"><b>{count}</b>{of_outcome(kind)}{shown(label)}</li>'


def _attention(hosts: Sequence[Host], places: Mapping[str, str]) -> Iterable[str]:
    bad = sorted((host for host in hosts if host.outcome in _NEEDS), key=_urgency)
    if not bad:
        return
    yield '<section aria-labelledby="attention"><h2 id="attention">Needs attention</h2><ul class="attention">'
    for host in bad:
        where = f", {shown(host.phase)}" if host.phase else ""
        yield f"<li>{_link(host, places)} {badge(host)}{where}"
        for one in host.lost:
            yield f'<p class="lost">{shown(of_lost(one))}</p>'
        if host.message:
            yield f'<p class="said">{shown(host.message)}</p>'
        yield "</li>"
    yield "</ul></section>"


def _overview(run: Run, hosts: Sequence[Host], places: Mapping[str, str], now: float) -> Iterable[str]:
    yield '<section class="overview" aria-labelledby="hosts"><h2 id="hosts">Hosts</h2>'
    axis = timeline.axis_of(hosts, now)
    again = later_attempts(run)
    yield '<ol class="rows">'
    if axis is not None:
        yield '<li class="axis"><span class="name soft">UTC</span><span class="outcome"></span>'
        yield f'<span class="bar">{timeline.scale(axis)}</span><span class="took soft">held for</span></li>'
    for host in hosts:
        line = timeline.line(host, axis, again) if axis is not None and host.timeline else ""
        yield f'<li><span class="name">{_link(host, places)}</span><span class="outcome">{badge(host)}</span>'
        yield f'<span class="bar">{line}</span><span class="took">{shown(_held(host, now))}</span></li>'
    yield "</ol>"
    if axis is not None:
        yield '<ul class="legend" aria-label="Legend">'
        for kind, label in timeline.LEGEND:
            yield f"<li>{timeline.swatch(kind)}{shown(label)}</li>"
        yield f"<li>{timeline.swatch('hook')}a hook or task</li><li>{timeline.swatch('hook open')}no end was told</li>"
        if again:
            yield "<li>dashed upright: the next attempt began</li>"
        yield "</ul>"
    yield "</section>"


def _details(run: Run, hosts: Sequence[Host], places: Mapping[str, str], now: float) -> Iterable[str]:
    told = sorted((host for host in hosts if host.outcome != record.UNTOUCHED or host.timeline), key=_urgency)
    yield '<section aria-labelledby="details"><h2 id="details">Each host</h2>'
    for host in told:
        yield from host_article(run, host, places[host.host], now)
    untouched = [host for host in hosts if host.outcome == record.UNTOUCHED and not host.timeline]
    if untouched:
        count = words.plural(len(untouched), "host")
        yield f'<div class="host"><h3>{count} untouched</h3><p>Nothing was done there:</p>'
        yield '<ul class="plain">'
        for host in untouched:
            yield f'<li id="{places[host.host]}">{shown(host.host)}{shown(_told_of_untouched(host))}</li>'
        yield "</ul></div>"
    yield "</section>"


def _told_of_untouched(host: Host) -> str:
    turn = f", its turn came in batch {host.batch}" if host.batch else ""
    return f"{turn}{': ' + host.message if host.message else ''}"


def _how(run: Run, now: float) -> Iterable[str]:
    yield '<section aria-labelledby="how"><h2 id="how">How it was run</h2><dl>'
    for key in report.SETTINGS:
        if key in run.settings:
            yield f"<dt>{shown(key.replace('_', ' '))}</dt><dd>{shown(words.setting(run.settings[key]))}</dd>"
    yield "</dl>"
    slices = len({attempt.slice for attempt in run.attempts}) > 1
    rows = [
        [
            f"{one.attempt}{f', slice {one.slice}' if slices else ''}",
            words.clock(one.began),
            f"{one.controller.user}@{one.controller.host}, PID {one.controller.pid}",
            str(len(one.hosts)),
            f"{one.batch}, then stopped" if one.stopped else str(one.batch),
        ]
        for one in run.attempts
    ]
    if rows:
        head = (("Attempt", ""), ("Began", ""), ("By", "what"), ("Hosts", "number"), ("Last batch", "number"))
        yield from table(words.plural(len(rows), "attempt"), head, [[shown(cell) for cell in row] for row in rows])
    yield "</section>"


def _foot(data: Mapping[str, Any], now: float) -> str:
    text = f"Written {words.clock(now)}. All times are UTC."
    if data["state"] in (report.RUNNING, report.UNKNOWN):
        text += f" It tells of that moment; {words.STATUS} asks the hosts and writes it anew."
    return text


def _urgency(host: Host) -> int:
    return _URGENT.index(host.outcome) if host.outcome in _URGENT else len(_URGENT)


def _link(host: Host, places: Mapping[str, str]) -> str:
    return f'<a href="#{places[host.host]}">{shown(host.host)}</a>'


def _held(host: Host, now: float) -> str:
    """How long the run had the host, pauses between two attempts included only where it had it all the while."""
    phases = [span for span in timeline.spans(host, now) if span.entry.phase]
    if not phases:
        return ""
    text = words.duration(sum(span.end - span.begin for span in phases))
    return f"{text} so far" if any(span.open for span in phases) else text
