# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a run as data: all that is known of it at one moment. Pure.

`page` makes the page from this, and from nothing else. Sizes are bytes, times seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import budget, record, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Host, Run

FINISHED = "finished"
STOPPED = "stopped"
INCOMPLETE = "incomplete"
RUNNING = "running"
INTERRUPTED = "interrupted"
UNKNOWN = "unknown"

#: The settings that are reported; whatever else `settings` may hold is the controller's own.
SETTINGS = ("mode", "select", "serial", "failures_allowed", "scheduler", "declares", "store", "window")
_SUSPENDED = frozenset(("suspended", "checkpointed", "locked"))


def report(run: Run, hosts: Mapping[str, Host], now: float, alive: Optional[bool] = None) -> Dict[str, Any]:
    """alive: whether an ansible-playbook of the run lives; None where that is not known."""
    shown = [hosts.get(name, Host(run_id=run.run_id, host=name)) for name in run.order]
    now_is = state(run, shown, alive)
    at_work = now_is == RUNNING
    shown = [
        replace(host, next=words.while_at_work(host) if at_work else host.next or words.of_host(host)) for host in shown
    ]
    last = max(run.attempts, key=lambda one: one.attempt, default=None)
    verdict = None if last is None else asdict(budget.verdict(run, hosts, last))
    if verdict is not None:
        verdict["failed"] = [{"host": name, "why": why} for name, why in verdict["failed"]]
    less = replace(run, settings={key: run.settings[key] for key in SETTINGS if key in run.settings})
    return {
        "schema": record.SCHEMA,
        "generated": now,
        "state": now_is,
        "next": words.of_run_at_work(shown) if at_work else words.of_run(run, shown),
        "counts": counts(shown),
        "budget": verdict,
        "run": record.run_to_json(less),
        "hosts": [record.host_to_json(_with_past(host)) for host in shown],
    }


def _with_past(host: Host) -> Host:
    """What blocked a host that has finished since does so no more."""
    if host.outcome != record.FINISHED:
        return host
    return replace(
        host,
        findings=tuple({**one, "past": True} if one.get("severity") == "blocking" else one for one in host.findings),
    )


def state(run: Run, hosts: List[Host], alive: Optional[bool]) -> str:
    """Where the run is; `unknown`: hosts are under way, and whether anybody still drives them is not known."""
    if hosts and all(host.outcome == record.FINISHED for host in hosts):
        return FINISHED
    if any(attempt.stopped for attempt in run.current()):
        return STOPPED
    tried = {name for attempt in run.current() for name in attempt.hosts}
    waiting = [h for h in hosts if h.host in tried and h.outcome in (record.UNTOUCHED, record.IN_PROGRESS)]
    if not waiting:
        return INCOMPLETE
    return UNKNOWN if alive is None else RUNNING if alive else INTERRUPTED


def counts(hosts: List[Host]) -> Dict[str, Any]:
    processes = [process_state(one) for host in hosts for one in host.processes]
    images = [one for host in hosts for one in host.images]
    return {
        "hosts": len(hosts),
        **{outcome: sum(host.outcome == outcome for host in hosts) for outcome in record.OUTCOMES},
        "processes": {
            "total": len(processes),
            **{one: processes.count(one) for one in ("running", "suspended", "gone", "unknown")},
        },
        "images": {"total": len(images), "unspent": sum(one.get("state") == "unspent" for one in images)},
        "device_bytes": sum(_device_bytes(host)[0] for host in hosts),
        "device_bytes_unknown": sum(_device_bytes(host)[1] for host in hosts),
        "losses": sum(len(host.lost) for host in hosts),
    }


def _device_bytes(host: Host) -> Tuple[int, int]:
    """What its processes hold, or held when they were suspended; and of how many that is not known. Before the suspend
    the look at the host knows it, of all of them together."""
    told = [one.get("device_bytes") for one in host.processes]
    if told and not any(one is not None for one in told) and host.estimate.get("bytes"):
        return int(host.estimate["bytes"]), 0
    return sum(int(one or 0) for one in told), sum(one is None for one in told)


def process_state(process: Mapping[str, Any]) -> str:
    """`running`, `suspended`, `gone`, or `unknown`: the last that any task told of it."""
    told = str(process.get("state") or process.get("after") or "")
    if told in _SUSPENDED:
        return "suspended"
    return told if told in ("running", "gone") else "unknown"
