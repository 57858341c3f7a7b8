# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many hosts may fail before a run touches no more of them. Pure.

Ansible's own max_fail_percentage does not stop after a block with rescue, nor for unreachable hosts, and it counts per
batch. This one counts hosts over all batches, slices and attempts, and unreachable ones too: they leave no word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import batches, record, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Attempt, Host, Run

_BAD = frozenset((record.FAILED, record.UNDONE, record.LOST))


@dataclass(frozen=True)
class Verdict:
    """failed: each host that counts, and why. allowed: how many may. canary: the first batch alone is why. finish:
    the hosts of the batch that are suspended, and go on once the run is limited to them. message: for the operator;
    "" where nothing failed and nothing stops."""

    stop: bool
    failed: Tuple[Tuple[str, str], ...]
    allowed: int
    canary: bool
    finish: Tuple[str, ...]
    message: str


def verdict(run: Run, hosts: Mapping[str, Host], attempt: Attempt) -> Verdict:
    """Before the batch that `attempt` is at touches a host. Raises ValueError for settings that are no number."""
    allowed = int(run.settings.get("failures_allowed") or 0)
    states = [hosts.get(name, Host(run_id=run.run_id, host=name)) for name in run.order]
    counted = [(host, why) for host in states for why in [_why(run, host)] if why]
    failed = tuple((host.host, why) for host, why in counted)
    canaries = [host.host for host, _why_it_failed in counted if _in_first_batch(host, attempt)]
    canary = bool(canaries) and len(batches.entries(run.settings.get("serial"))) > 1
    mine = [host for host in states if _of(host, attempt) and host.batch == attempt.batch]
    finish = tuple(host.host for host in mine if host.phase in record.BEYOND_CLAIMED)
    over = len(failed) > allowed or canary
    stop = over and (not mine or len(finish) < len(mine))
    told = Verdict(stop, failed, allowed, canary and len(failed) <= allowed, finish if stop else (), "")
    return Verdict(
        told.stop, told.failed, told.allowed, told.canary, told.finish, _message(run, states, attempt, told, over)
    )


def _why(run: Run, host: Host) -> str:
    """Why this host counts as failed; "" if it does not."""
    trying = next((one for one in run.current() if host.host in one.hosts), None)
    if trying is None:
        if host.outcome in _BAD:
            return _said(host)
        silent = host.outcome == record.IN_PROGRESS or (host.outcome == record.UNTOUCHED and host.batch > 0)
        return f"no word since {words.where(host)}" if silent else ""
    if not _of(host, trying):
        return ""
    if host.outcome in _BAD:
        return _said(host)
    if host.outcome != record.FINISHED and host.batch < trying.batch:
        return f"no word since {words.where(host)}"
    return ""


def _said(host: Host) -> str:
    return f"{host.outcome}: {host.message}" if host.message else host.outcome


def _of(host: Host, attempt: Attempt) -> bool:
    """Whether the turn of the host has come in this attempt."""
    return (host.attempt, host.slice) == (attempt.attempt, attempt.slice) and host.host in attempt.hosts


def _in_first_batch(host: Host, attempt: Attempt) -> bool:
    return _of(host, attempt) and host.batch == 1 < attempt.batch


def _message(run: Run, states: List[Host], attempt: Attempt, told: Verdict, over: bool) -> str:
    if not told.failed:
        return ""
    reasons = "; ".join(f"{name}: {why}" for name, why in told.failed[: words.MOST_NAMES])
    more = len(told.failed) - words.MOST_NAMES
    counted = (
        f"{len(told.failed)} of {words.plural(len(states), 'host')} failed, {told.allowed} may "
        f"(gpu_drain_failures_allowed): {reasons}{f'; and {more} more' if more > 0 else ''}"
    )
    if not told.stop:
        if not over:
            return f"Run {run.run_id}: {counted}."
        return (
            f"Run {run.run_id}: {counted}. Batch {attempt.batch} goes on: all its hosts are suspended already, and are "
            "finished rather than left."
        )
    why = (
        "the first batch of an attempt is a canary: one failure in it stops" if told.canary else "the budget is used up"
    )
    bad = [name for name, _why_it_failed in told.failed]
    untouched = [one for one in states if one.outcome == record.UNTOUCHED and not one.phase and one.host not in bad]
    stay = "untouched host stays as it is" if len(untouched) == 1 else "untouched hosts stay as they are"
    parts = [
        f"Run {run.run_id} stops before batch {attempt.batch}, because {why}. {counted}",
        f"{len(untouched)} {stay}, and so does every other host",
    ]
    if told.finish:
        parts.append(
            f"{words.names(told.finish)} of this batch {'is' if len(told.finish) == 1 else 'are'} suspended: "
            f"{words.again(run.run_id)} and --limit {','.join(told.finish)} finishes them now"
        )
    leave_out = ":".join(f"!{name}" for name in bad[: words.MOST_NAMES])
    parts.append(
        f"Settle what failed. {words.same_command(run.run_id)}, those that failed first. To go on without "
        f"{'it' if len(bad) == 1 else 'them'}: {words.again(run.run_id)}, --limit 'all:{leave_out}"
        f"{':...' if more > 0 else ''}' and gpu_drain_failures_allowed: {max(len(bad), told.allowed)}"
    )
    return ". ".join(parts) + "."
