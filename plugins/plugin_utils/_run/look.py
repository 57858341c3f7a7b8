# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the journals of hosts say, in a line each, and what is to be done about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record, words

NOTHING, UNDO, FINISH, REPORT = "nothing", "undo", "finish", "report"
UNDOABLE = (record.CLAIMED, record.SUSPENDING, record.UNDOING)
WAITING = (record.SUSPENDED, record.MAINTENANCE)
RESTORE = "gpufleet.checkpoint.restore"


@dataclass(frozen=True)
class Decision:
    """do: NOTHING, UNDO, FINISH or REPORT (a person has to decide, and nothing is touched)."""

    do: str
    why: str


def open_row(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of what gpu_drain_info returned, the drain that has the host; empty if none has."""
    row = told.get("drain") or {}
    return row if row.get("phase") and row.get("closed") is None and row["phase"] not in record.LAST_PHASES else {}


def status(name: str, told: Mapping[str, Any], life: str) -> str:
    """life: of the controller of its run, "alive here", "dead", "elsewhere" or ""."""
    row = open_row(told)
    if not row:
        last = told.get("drain") or {}
        if not last.get("phase"):
            return f"{name} no drain{_single(told)}"
        at = last.get("closed") or last.get("since")
        ended = f"; last {last.get('run_id')} {last['phase']}{f' at {words.clock(float(at))}' if at else ''}"
        why = f"; {_failure(last)}" if last["phase"] == record.UNDONE_PHASE and last.get("failures") else ""
        return f"{name} no drain{ended}{why}{_single(told)}"
    who = str(row.get("controller") or "").split(" ")
    lives = "" if _at_rest(row) else life
    by = f", {who[1]}@{who[0]}{f', {lives}' if lives else ''}" if len(who) > 1 else ""
    states = [str(one.get("state")) for one in row.get("processes") or ()]
    unspent = [one for one in row.get("images") or () if one.get("state") == "unspent"]
    since = f" since {words.clock(float(row['since']))}" if row.get("since") else ""
    parts = [
        f"{name} {row['phase']}{since}, run {row.get('run_id')} (attempt {row.get('attempt')}{by})",
        f"{states.count('running')} running, {states.count('suspended')} suspended, {states.count('gone')} gone",
        f"{words.plural(len(unspent), 'image')} unspent",
        f"scheduler {_scheduler(row.get('scheduler') or {})}",
    ]
    if row.get("lost"):
        parts.append("LOST " + ", ".join(f"{one.get('what')} ({one.get('why')})" for one in row["lost"]))
    if row.get("message"):
        parts.append(_failure(row) if row.get("failures") else f"failed: {row['message']}")
    return "; ".join([*parts, f"next: {following(row, life)}"])


def following(row: Mapping[str, Any], life: str) -> str:
    """What the operator does next about an open drain."""
    run, phase = row.get("run_id"), row["phase"]
    if life == "alive here":
        return "wait, its run is at work"
    if row.get("kind") == "suspend":
        if phase in UNDOABLE:
            return f"the same command again{_taking(row, life, 'gpu_suspend')}, or {words.RECOVER} takes it back"
        return f"{RESTORE}{'' if _at_rest(row) else _taking(row, life, 'gpu_restore')} brings its processes back"
    same = f"{words.again(str(run))}{_taking(row, life, 'gpu_drain', 'and')}"
    if phase in UNDOABLE:
        return f"{same}; or {words.RECOVER} takes it back"
    if row.get("lost"):
        return f"{same}; what lives is restored, and the host is released with gpu_drain_accept_loss: true"
    if phase in WAITING:
        return f"{same} repeats the maintenance; or {words.RECOVER} with gpu_drain_maintenance_done: true"
    return f"{same}; or {words.RECOVER} finishes it"


def _taking(row: Mapping[str, Any], life: str, role: str, joined: str = "with") -> str:
    if life != "elsewhere":
        return ""
    return f" {joined} {role}_take_over: {row.get('run_id')}, once its controller is known to be dead"


def recover(
    told: Mapping[str, Any],
    life: str,
    run_id: str = "",
    take_over: str = "",
    maintenance_done: bool = False,
) -> Decision:
    """run_id: the only run that is meant, "" for any."""
    row = open_row(told)
    if not row:
        single = suspended_alone(told)
        if not single:
            return Decision(NOTHING, "no drain has it")
        pids = ", ".join(str(pid) for pid, _run in single)
        return Decision(
            REPORT,
            f"no drain has it, and tasks of their own have suspended PID {pids}: gpufleet.checkpoint.cuda_checkpoint "
            f"with state: running and pids: [{pids}] resumes them",
        )
    run, phase = str(row.get("run_id")), str(row["phase"])
    if run_id and run_id not in (row.get("runs") or [run]):
        return Decision(REPORT, f"run {run} has it, which is not the one that is meant (gpu_drain_run_id: {run_id})")
    if life == "alive here":
        return Decision(REPORT, f"run {run} is at work on this controller; it is at {phase}")
    if _at_rest(row):
        return Decision(REPORT, f"its processes were suspended on purpose (run {run}); {RESTORE} brings them back")
    if life == "elsewhere" and take_over != run:
        return Decision(
            REPORT,
            f"run {run} was begun on another controller ({row.get('controller')}); see there that it has ended, and "
            f"give gpu_drain_take_over: {run}",
        )
    if phase in UNDOABLE:
        return Decision(UNDO, f"run {run} ended at {phase}: nothing was done to the host that can't be taken back")
    if phase in WAITING and not maintenance_done:
        return Decision(
            REPORT,
            f"run {run} ended at {phase}: whether the maintenance is done nobody but you knows. With "
            "gpu_drain_maintenance_done: true its processes are brought back now; the same drain again repeats it",
        )
    return Decision(FINISH, f"run {run} ended at {phase}: its processes are brought back and the host is released")


def suspended_alone(told: Mapping[str, Any]) -> Tuple[Tuple[int, str], ...]:
    """PID and run of the processes that no drain has, and that are suspended all the same."""
    found: List[Tuple[int, str]] = []
    for one in told.get("cuda") or ():
        if one.get("state") not in (None, "", "running"):
            found.append((int(one["pid"]), str(one.get("run_id") or "")))
    return tuple(found)


def _failure(row: Mapping[str, Any]) -> str:
    """Those of the last attempt that failed, each under the phase in which it happened."""
    last = row["failures"][-1]["attempt"]
    mine = [one for one in row["failures"] if one["attempt"] == last]
    return "; ".join(f"failed in {one['phase']} at {words.clock(float(one['at']))}: {one['message']}" for one in mine)


def _at_rest(row: Mapping[str, Any]) -> bool:
    """Suspended by itself: that playbook has ended as it should, and any controller may bring the processes back."""
    return row.get("kind") == "suspend" and row["phase"] == record.SUSPENDED


def _single(told: Mapping[str, Any]) -> str:
    single = suspended_alone(told)
    if not single:
        return ""
    pids = ", ".join(str(pid) for pid, _run in single)
    return (
        f"; PID {pids} suspended by tasks of their own; next: gpufleet.checkpoint.cuda_checkpoint with state: running"
    )


def _scheduler(stamp: Mapping[str, Any]) -> str:
    kind: Optional[str] = stamp.get("kind")
    if not kind or kind == "none":
        return "-"
    return f"{kind} {'ours' if stamp.get('ours') else 'theirs'}"
