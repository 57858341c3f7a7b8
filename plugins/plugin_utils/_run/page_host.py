# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that a report tells of one host. Pure."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import page_timeline as timeline
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record, report, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.page_parts import (
    badge,
    later_attempts,
    of_lost,
    sentence,
    shown,
    table,
)
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.page_timeline import Span
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Entry, Host, Run


def host_article(run: Run, host: Host, place: str, now: float) -> Iterable[str]:
    yield f'<article class="host" id="{place}" aria-labelledby="{place}-name"><header>'
    yield f'<h3 id="{place}-name">{shown(host.host)}</h3>{badge(host)}'
    facts = [one for one in (host.phase, host.mode and f"mode {host.mode}", f"batch {host.batch}") if one]
    facts += [f"attempt {host.attempt}"] if len(run.attempts) > 1 else []
    still = _stood_still(host, now)
    facts += [still] if still else []
    yield f'<span class="soft">{shown(", ".join(facts))}</span></header>'
    if host.lost:
        yield '<div class="box bad"><strong>Gone.</strong><ul class="plain">'
        yield from (f"<li>{shown(of_lost(one))}</li>" for one in host.lost)
        yield "</ul></div>"
    if host.message:
        yield f'<p class="said">{shown(host.message)}</p>'
    if host.next:
        yield f'<div class="box"><strong>Next.</strong> <span class="said">{shown(sentence(host.next))}</span></div>'
    yield from _steps(run, host, now)
    yield from _processes(host)
    yield from _images(host)
    yield from _findings(host)
    yield from _others(host)
    yield "</article>"


def _steps(run: Run, host: Host, now: float) -> Iterable[str]:
    axis = timeline.axis_of([host], now)
    if axis is None:
        return
    again = later_attempts(run)
    yield '<table class="steps"><caption class="soft" style="text-align:left">Timeline, '
    yield f"{shown(words.clock(axis.begin))} to {shown(words.clock(axis.end))}</caption>"
    yield '<thead><tr><th scope="col">Step</th><th scope="col" class="number">Began</th>'
    yield '<th scope="col" class="number">Took</th><th scope="col">Over time</th></tr></thead>'
    before = 0
    yield "<tbody>"
    for span in timeline.spans(host, axis.end):
        entry = span.entry
        if entry.attempt != before and (before or entry.attempt > 1):
            yield f'</tbody><tbody><tr class="again"><th colspan="4" scope="rowgroup">Attempt {entry.attempt}</th></tr>'
        before = entry.attempt
        inner = "" if entry.phase else " inner"
        when = "" if entry.failed_at is None else f" {axis.clock(entry.failed_at)}"
        mark = f' <span class="failed">\u2715 failed{shown(when)}</span>' if entry.failed else ""
        yield f'<tr><td class="step{inner}">{shown(entry.what.replace("_", " "))}{mark}</td>'
        yield f'<td class="number">{shown(axis.clock(entry.began))}</td>'
        yield f'<td class="number">{shown(_lasted(span))}</td>'
        yield f'<td class="line">{timeline.step(span, axis, again)}</td></tr>'
        if entry.text and entry.text != host.message:
            yield f'<tr class="note"><td colspan="4" class="said soft">{shown(entry.text)}</td></tr>'
    yield "</tbody></table>"


def _lasted(span: Span) -> str:
    entry = span.entry
    if entry.what in record.LAST_PHASES or entry.ended == entry.began:
        return ""
    if span.open and not entry.phase:
        return "no end told"
    text = words.duration(span.end - span.begin)
    if span.open:
        text = f"{text} so far"
    return text


def _processes(host: Host) -> Iterable[str]:
    if not host.processes:
        return
    head = (("PID", "number"), ("Program and owner", "what"), ("GPU memory", "number"), ("State", ""))
    rows = [
        (
            shown(str(_pid(one))),
            _program(one),
            shown(words.size(one.get("device_bytes"))),
            shown(report.process_state(one).replace("unknown", "-")),
        )
        for one in host.processes
    ]
    yield from table(words.plural(len(rows), "process", "processes"), head, rows)


def _program(process: Mapping[str, Any]) -> str:
    path, owner = str(process.get("executable") or "-"), _owner(process)
    return f'<span class="mono">{shown(path)}</span> <span class="soft">{shown(owner)}</span>'


def _images(host: Host) -> Iterable[str]:
    if not host.images:
        return
    head = (("PID", "number"), ("Directory", "what"), ("Size", "number"), ("State", ""))
    rows = [
        (
            shown(str(one.get("pid", "-"))),
            f'<span class="mono">{shown(str(one.get("path", "-")))}</span>',
            shown(words.size(one.get("bytes"))),
            shown(str(one.get("state", "-"))),
        )
        for one in host.images
    ]
    yield from table(words.plural(len(rows), "image"), head, rows)


def _findings(host: Host) -> Iterable[str]:
    if not host.findings:
        return
    yield f'<h4>{shown(words.plural(len(host.findings), "finding"))}</h4><ul class="plain">'
    for one in sorted(host.findings, key=lambda finding: finding.get("severity") != "blocking"):
        blocks = one.get("severity") == "blocking" and not one.get("past")
        kind = "failed" if blocks else "undone"
        severity = f"{one.get('severity', '')}{' before, settled since' if one.get('past') else ''}"
        parts = [f"{one.get('subject', '')}: {one.get('evidence', '')}"]
        parts += [str(one[key]) for key in ("reason", "remedy") if one.get(key)]
        if one.get("option") and blocks:
            parts.append(f"Override: gpu_drain_allow: [{one['option']}]")
        text = " ".join(sentence(part) for part in parts)
        yield (
            f'<li><span class="badge {kind}">{shown(severity)}</span> '
            f'<span class="mono">{shown(str(one.get("id", "")))}</span> {shown(text)}{_reference(one)}</li>'
        )
    yield "</ul>"


def _reference(finding: Mapping[str, Any]) -> str:
    where = str(finding.get("reference") or "")
    return f' <a href="{shown(where)}">More about it</a>' if where.startswith("https://") else ""


def _others(host: Host) -> Iterable[str]:
    rows: List[Tuple[str, str]] = []
    if host.scheduler and host.scheduler.get("kind") not in (None, "none"):
        rows.append(("Scheduler", _scheduler(host.scheduler)))
    packages = host.packages
    if packages.get("held") or packages.get("already"):
        rows.append(("Packages", _packages(packages)))
    elif packages.get("why"):
        rows.append(("Packages", f"none held: {packages['why']}"))
    for one in host.holders:
        files = ", ".join(str(name) for name in one.get("files") or ())
        rows.append(("Holds a GPU", f"PID {one.get('pid')} ({one.get('executable')}), user {one.get('user')}: {files}"))
    if host.estimate.get("seconds") and not isinstance(host.estimate["seconds"], Mapping):
        rows.append(("Estimate", words.duration(float(host.estimate["seconds"]))))
    if rows:
        yield "<h4>Around it</h4><dl>"
        yield from (f"<dt>{shown(name)}</dt><dd>{shown(value)}</dd>" for name, value in rows)
        yield "</dl>"


def _scheduler(stamp: Mapping[str, Any]) -> str:
    whose = "drained by this run" if stamp.get("ours") else "drained by somebody else, left so"
    work = stamp.get("jobs", stamp.get("pods")) or ()
    parts = [f"{stamp['kind']}, node {stamp.get('node', '-')}: {whose}"]
    if stamp.get("reason"):
        parts.append(f"reason {stamp['reason']}")
    if work:
        parts.append(words.plural(len(work), "job" if "jobs" in stamp else "pod"))
    return ", ".join(parts)


def _packages(packages: Mapping[str, Any]) -> str:
    parts = []
    if packages.get("held"):
        parts.append(f"held meanwhile ({packages.get('manager', '-')}): {', '.join(packages['held'])}")
    if packages.get("already"):
        parts.append(f"held before: {', '.join(packages['already'])}")
    return "; ".join(parts)


def _stood_still(host: Host, now: float) -> str:
    """How long the processes may have stood still: each time from the suspend until the restore was done."""
    begun: Optional[float] = None
    total = 0.0
    for entry in sorted((one for one in host.timeline if one.phase), key=lambda one: one.began):
        if entry.what == record.SUSPENDING and begun is None:
            begun = _could_stand(host, entry)
        if entry.what in (record.RESTORED, record.UNDONE_PHASE) and begun is not None:
            total += entry.began - begun
            begun = None
    if not host.processes or (begun is None and not total):
        return ""
    if begun is None:
        return f"processes stood still for {words.duration(total)} at most"
    return f"processes stand still for {words.duration(total + now - begun)} at most"


def _could_stand(host: Host, suspending: Entry) -> Optional[float]:
    """When the first process may have been stopped: nothing is before the look has passed, or at all if it has not."""
    looks = [one for one in host.timeline if (one.what, one.attempt) == (record.PREFLIGHT, suspending.attempt)]
    if any(one.failed for one in looks):
        return None
    end = suspending.ended
    passed = [one.began for one in looks if suspending.began <= one.began and (end is None or one.began <= end)]
    return min(passed, default=suspending.began)


def _owner(process: Mapping[str, Any]) -> str:
    parts = [str(process[key]) for key in ("user", "unit") if process.get(key)]
    parts += [f"job {process['slurm_job']}"] if process.get("slurm_job") else []
    parts += [f"container {str(process['container'])[:12]}"] if process.get("container") else []
    return ", ".join(parts)


def _pid(process: Mapping[str, Any]) -> Any:
    return process.get("pid", (process.get("identity") or {}).get("pid", "-"))
