# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a drain would do, from what the hosts were seen to be. Pure. Sizes are bytes, times seconds."""

from __future__ import annotations

import textwrap
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import batches, record, words

_WIDTH = 120
_NAME_WIDTH = 40
_COLUMNS = ("host", "batch", "mode", "ready", "processes", "GPU memory", "image", "time", "scheduler")
_LEFT = ("host", "mode", "ready", "scheduler")


def plan(results: Mapping[str, Mapping[str, Any]], serial: Any = None) -> Dict[str, Any]:
    """results: by host, in the order of the run:

    - `mode`: memory or disk
    - `preflight`: what gpu_preflight returned; absent where it gave no answer
    - `drain`: what gpu_drain_info returned
    - `scheduler`: the stamp that the scheduler's look gave
    - `errors`: texts of what else would keep the host from being drained
    - `unreachable`: true for a host that did not answer

    serial: as the run will have it. Raises ValueError for one that Ansible would refuse.
    """
    made = batches.batches(tuple(results), serial)
    number = {name: index for index, names in enumerate(made, 1) for name in names}
    hosts = [_host(name, number[name], told) for name, told in results.items()]
    return {
        "hosts": hosts,
        "batches": [list(names) for names in made],
        "totals": {
            "hosts": len(hosts),
            "ready": sum(host["ready"] for host in hosts),
            "batches": len(made),
            "processes": sum(host["processes"] or 0 for host in hosts),
            "bytes": sum(host["bytes"] or 0 for host in hosts),
            "image_bytes": sum(host["image_bytes"] or 0 for host in hosts),
            "seconds": _total_seconds(hosts),
        },
    }


def _host(name: str, batch: int, told: Mapping[str, Any]) -> Dict[str, Any]:
    mode = str(told.get("mode") or "memory")
    capability = record.CAPABILITY.get(mode, mode)
    look = told.get("preflight") or {}
    estimate = look.get("estimate") or {}
    mine = [one for one in look.get("findings") or () if capability in (one.get("capabilities") or (capability,))]
    held_by = _holder((told.get("drain") or {}).get("drain"))
    stamp = told.get("scheduler") or {}
    blockers = [_text(one) for one in mine if one.get("severity") == "blocking"]
    warnings = [_text(one) for one in mine if one.get("severity") != "blocking"]
    blockers += [str(one) for one in told.get("errors") or ()]
    if told.get("unreachable"):
        blockers.append("It does not answer, so nothing is known of it")
    elif not estimate:
        blockers.append(str(look.get("msg") or "gpu_preflight gave no answer"))
    if held_by:
        blockers.append(f"It is held by {held_by}")
    if stamp.get("ours") is False:
        why = f" ({stamp['reason']})" if stamp.get("reason") else ""
        warnings.append(f"{stamp.get('kind', 'The scheduler')}: somebody else has drained it{why}, and it is left so")
    return {
        "host": name,
        "batch": batch,
        "mode": mode,
        "ready": not blockers,
        "processes": None if not estimate else len(look.get("processes") or ()),
        "bytes": estimate.get("device_bytes"),
        "image_bytes": estimate.get("image_bytes") if mode == "disk" else None,
        "seconds": (estimate.get("total_seconds") or {}).get(capability),
        "blockers": blockers,
        "warnings": warnings,
        "held_by": held_by,
        "scheduler": _scheduler(stamp),
    }


def _text(finding: Mapping[str, Any]) -> str:
    parts = [f"{finding.get('id')}: {finding.get('subject')}: {finding.get('evidence')}"]
    parts += [str(finding[key]) for key in ("reason", "remedy") if finding.get(key)]
    if finding.get("option") and finding.get("severity") == "blocking":
        parts.append(f"Override: gpu_drain_allow: [{finding['option']}]")
    return ". ".join(part.rstrip(".") for part in parts)


def _holder(row: Optional[Mapping[str, Any]]) -> str:
    """Whose open row it is; "" for none."""
    if not row or not row.get("phase") or row["phase"] in record.LAST_PHASES:
        return ""
    since = f" since {words.clock(float(row['since']))}" if row.get("since") else ""
    who = str(row.get("controller") or "").split(" ")
    by = f", by {who[1]} on {who[0]}" if len(who) > 1 else ""
    return f"run {row.get('run_id')}, {row['phase']}{since}{by}"


def _scheduler(stamp: Mapping[str, Any]) -> str:
    if not stamp or stamp.get("kind") in (None, "none"):
        return "-"
    work = stamp.get("jobs", stamp.get("pods"))
    told = (
        f", {words.plural(len(work), 'job' if 'jobs' in stamp else 'pod')}" if isinstance(work, (list, tuple)) else ""
    )
    return f"{stamp['kind']}{'' if stamp.get('ours') is not False else ', not ours'}{told}"


def _total_seconds(hosts: Sequence[Mapping[str, Any]]) -> Optional[float]:
    """Of the batches in turn, each as long as its slowest host. Maintenance is not in it. None if a host is unknown."""
    slowest: Dict[int, float] = {}
    for host in hosts:
        if host["seconds"] is None:
            return None
        slowest[host["batch"]] = max(slowest.get(host["batch"], 0.0), float(host["seconds"]))
    return round(sum(slowest.values()), 3)


def table(made: Mapping[str, Any]) -> str:
    """For a terminal, at most 120 columns wide: a line per host, totals, then what speaks against it."""
    rows = [_row(host) for host in made["hosts"]]
    totals = made["totals"]
    rows.append(
        (
            words.plural(totals["hosts"], "host"),
            str(totals["batches"]),
            "",
            f"{totals['ready']} of {totals['hosts']}",
            str(totals["processes"]),
            words.size(totals["bytes"]),
            words.size(totals["image_bytes"]) if totals["image_bytes"] else "-",
            "-" if totals["seconds"] is None else words.duration(totals["seconds"]),
            "",
        )
    )
    widths = [max(len(row[index]) for row in (_COLUMNS, *rows)) for index in range(len(_COLUMNS))]
    widths[-1] = min(widths[-1], max(_WIDTH - sum(widths[:-1]) - 2 * (len(widths) - 1), 9))
    lines = [_line(_COLUMNS, widths), _line(tuple("-" * width for width in widths), widths)]
    lines += [_line(row, widths) for row in rows[:-1]]
    lines += [lines[1], _line(rows[-1], widths)]
    for title, key in (("Blocks", "blockers"), ("Warnings", "warnings")):
        told = _grouped(made["hosts"], key)
        if told:
            lines += ["", f"{title}:"]
        for text, names in told:
            lines += textwrap.wrap(
                f"{words.names(names)}: {text}", _WIDTH, initial_indent="  ", subsequent_indent="    "
            )
    if any(host["seconds"] is not None for host in made["hosts"]):
        lines += ["", "Times are estimates, there and back, without the maintenance; batches run one after another."]
    return "\n".join(line.rstrip() for line in lines)


def _row(host: Mapping[str, Any]) -> Tuple[str, ...]:
    return (
        _cut(host["host"], _NAME_WIDTH),
        str(host["batch"]),
        host["mode"],
        "yes" if host["ready"] else "NO",
        "-" if host["processes"] is None else str(host["processes"]),
        words.size(host["bytes"]),
        words.size(host["image_bytes"]),
        "-" if host["seconds"] is None else words.duration(host["seconds"]),
        host["scheduler"],
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells: List[str] = []
    for index, text in enumerate(row):
        cut = _cut(text, widths[index])
        cells.append(cut.ljust(widths[index]) if _COLUMNS[index] in _LEFT else cut.rjust(widths[index]))
    return "  ".join(cells)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _grouped(hosts: Sequence[Mapping[str, Any]], key: str) -> List[Tuple[str, List[str]]]:
    """Each text once, with the hosts that it is about."""
    found: Dict[str, List[str]] = {}
    for host in hosts:
        for text in host[key]:
            names = found.setdefault(text, [])
            if host["host"] not in names:
                names.append(host["host"])
    return list(found.items())
