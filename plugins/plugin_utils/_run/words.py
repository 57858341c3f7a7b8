# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the operator does next, about a host and about a run. Pure.

No command line of the controller is repeated: it may hold secrets. "The same command" is the one that began the run.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Iterable, List, Mapping, Optional, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Host, Run

RECOVER = "gpufleet.checkpoint.recover"
STATUS = "gpufleet.checkpoint.status"
#: Longer lists of hosts end with how many more there are.
MOST_NAMES = 20


def clock(at: float) -> str:
    """A point in time, in UTC, as in `2026-11-30 09:41:07Z`."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def duration(seconds: float) -> str:
    """`0.4 s`, `42 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def size(count: Optional[float]) -> str:
    """Bytes with a binary unit: `512 B`, `3.2 GiB`. A dash for what is not known."""
    if count is None:
        return "-"
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def plural(count: int, one: str, many: str = "") -> str:
    """`1 host`, `2 hosts`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def names(hosts: Sequence[str]) -> str:
    more = len(hosts) - MOST_NAMES
    return ", ".join(hosts[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def same_command(run_id: str) -> str:
    return f"Run {again(run_id)}: it resumes this run"


def again(run_id: str) -> str:
    """With the id, because the command may have had another one, `new` among them."""
    return f"the same command again with -e gpu_drain_run_id={run_id}"


def where(host: Host) -> str:
    """The last that was heard of a host: `suspending at 2026-11-30 09:41:07Z`."""
    if not host.timeline:
        return "its turn came"
    last = max(host.timeline, key=lambda entry: entry.ended or entry.began)
    phases = [entry for entry in host.timeline if entry.phase]
    told = last.what if last.phase or not phases else f"{last.what} ({phases[-1].what})"
    return f"{told} at {clock(last.ended or last.began)}"


def of_host(host: Host) -> str:
    """What is next for this host; "" where nothing is."""
    if host.outcome == record.FINISHED:
        return ""
    if host.outcome == record.LOST or host.lost:
        return (
            f"Some of its processes are gone, each with the reason. What lives is restored by {again(host.run_id)}, or "
            f"by {RECOVER}. The host is released only once gpu_drain_accept_loss: true says that the loss is known"
        )
    if host.outcome == record.UNDONE:
        return f"It is as before the run, and in service. Settle why it failed. {same_command(host.run_id)}"
    if host.outcome == record.UNTOUCHED:
        return "Nothing was done to it. " + same_command(host.run_id)
    settle = "Settle why it failed. " if host.outcome == record.FAILED else ""
    if host.phase in (record.SUSPENDED, record.MAINTENANCE):
        return (
            f"Its processes are suspended and stay so. {settle}Run {again(host.run_id)}: it repeats the maintenance "
            f"and goes on; or, if the maintenance is done, {RECOVER} with gpu_drain_maintenance_done: true brings it "
            "back"
        )
    if host.phase in (record.RESTORING, record.RESTORED):
        return f"{settle}{same_command(host.run_id)}; or {RECOVER} finishes this host alone"
    if host.phase in (record.CLAIMED, record.SUSPENDING, record.UNDOING):
        return f"{settle}{same_command(host.run_id)}; or {RECOVER} takes this host back as it was"
    return f"{settle}{same_command(host.run_id)}"


def while_at_work(host: Host) -> str:
    """The same, while the run goes on: nothing is to be done about a host that it is at, or has yet to come to."""
    if host.outcome in (record.IN_PROGRESS, record.UNTOUCHED):
        return ""
    following = host.next or of_host(host)
    return f"Once this run has ended: {following}" if following else ""


def of_run_at_work(hosts: Iterable[Host]) -> str:
    bad = [host.host for host in hosts if host.outcome in (record.FAILED, record.LOST, record.UNDONE)]
    after = f". Once it has ended, settle what failed on {names(bad)}" if bad else ""
    return f"Wait: this run is at work, and {STATUS} shows how far it is{after}."


def of_run(run: Run, hosts: Iterable[Host]) -> str:
    """What is next for the run; "" where nothing is."""
    known = {host.host: host for host in hosts}
    all_hosts = [known.get(name, Host(run_id=run.run_id, host=name)) for name in run.order]
    left = [host for host in all_hosts if host.outcome != record.FINISHED]
    if not left:
        return ""
    settle = [host.host for host in left if host.outcome in (record.FAILED, record.LOST, record.UNDONE)]
    silent = [host.host for host in left if host.outcome == record.IN_PROGRESS]
    parts: List[str] = []
    if settle:
        parts.append(f"Settle what failed on {names(settle)}")
    if silent:
        parts.append(f"Look at {names(silent)}: the last word says where each was ({STATUS} asks the hosts)")
    parts.append(same_command(run.run_id))
    return ". ".join(parts) + f". It tries {plural(len(left), 'host')}; finished ones are only looked at again."


def setting(value: Any) -> str:
    """A setting as the operator would write it, in one line."""
    if value is None or value in ("", [], ()):
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {setting(one)}" for key, one in value.items() if one not in (None, False, [], ""))
    if isinstance(value, (list, tuple)):
        return ", ".join(setting(one) for one in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
