# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd does to a service that is parked, or ends because it is dumped."""

from __future__ import annotations

from typing import List, Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    IMAGES,
    SUSPEND,
    Context,
    ProcessHazard,
    comma,
    name_of,
    span,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._units import Unit
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import natural

#: Of Restart=: those that follow a main process which was ended by SIGKILL, as CRIU ends it.
RESTARTS = frozenset(("always", "on-failure", "on-abnormal", "on-abort"))
#: A watchdog that long is one that unit_policy: hold has switched off (`_unit_hold_plan`).
HELD_LEAST_SECONDS = 5 * 365 * 86400.0


def service_of(context: Context, process: ProcessSnapshot) -> Optional[Unit]:
    """The innermost service that it is in; None for none, or where nobody looked."""
    names = [name for name in units(process) if name.endswith(".service")]
    return context.snapshot.unit(names[0]) if names else None


def _goes_with(context: Context, process: ProcessSnapshot, main: int) -> bool:
    """Does a main process end with it: it is the same, below it, unknown, or its parent, such as `sh -c`? One further
    up, such as sshd of a job that was started over SSH, does not."""
    around = context.snapshot.around_of(process.pid)
    ties = None if around is None else around.ties
    members = () if ties is None else tuple(member.pid for member in ties.members)
    return main in (0, process.pid, process.parent, *members)


class SystemdWatchdog(ProcessHazard):
    """WatchdogSec=: the service has to report in time, or systemd kills it."""

    id = "systemd_watchdog"
    actions = frozenset((SUSPEND,))
    option = "systemd_watchdog"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        unit = service_of(context, process)
        told = natural((process.environment or {}).get("WATCHDOG_USEC", ""))
        seconds = 0.0 if unit is None else unit.watchdog
        if unit is not None and unit.watchdog:
            evidence = f"its unit {unit.name} has a watchdog of {seconds:g} s (WatchdogUSec)"
            if seconds >= HELD_LEAST_SECONDS:
                evidence = f"its unit {unit.name} has a watchdog, which is held: off for a while only"
        elif told and (unit is None or unit.problem):
            evidence = f"it was told a watchdog of {told / 1e6:g} s (WATCHDOG_USEC in its environment)"
        elif unit is not None and unit.problem:
            return self.finding(
                name_of(process),
                f"whether its unit {unit.name} has a watchdog can't be seen: {unit.problem}",
                "systemd kills a service that does not report in time, and a parked one does not",
                f"Look on the host itself: systemctl show -p WatchdogUSec {unit.name}",
                process.pid,
                severity=WARNING,
            )
        else:
            return None
        return self.finding(
            name_of(process),
            evidence,
            "A parked process does not report, so systemd kills it when that time is over",
            "Hold the unit (unit_policy: hold), or consent if another process of it reports",
            process.pid,
        )


class SystemdRuntime(ProcessHazard):
    """RuntimeMaxSec=: at its end systemd ends the unit, parked or not. Measured with systemd 257: a change in a drop-in
    is in force for a running unit with the next daemon-reload; where the time is over by then, it ends at once."""

    id = "systemd_runtime"
    actions = frozenset((SUSPEND,))
    option = "systemd_runtime"
    #: Seconds. Suspending, what is done meanwhile, and resuming take at least some minutes.
    MARGIN = 600.0

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        seen = [context.snapshot.unit(name) for name in units(process)]
        limited = [(one.runtime_left, one) for one in seen if one is not None and one.runtime_left is not None]
        if not limited:
            return None
        left, unit = min(limited, key=lambda pair: pair[0])
        section = "Scope" if unit.name.endswith(".scope") else "Service"
        rest = f"of which {span(left)} are left" if left > 0 else "and that is over"
        return self.finding(
            name_of(process),
            f"its unit {unit.name} may be active for {span(unit.runtime)} (RuntimeMaxSec=), {rest}",
            "The time runs on while it is suspended; at its end systemd ends everything in the unit",
            f"Compare it with your window. Where it is short, write [{section}] and RuntimeMaxSec=infinity into "
            f"/run/systemd/system/{unit.name}.d/runtime.conf, and run systemctl daemon-reload: that is in force at "
            "once. unit_policy does not hold it: let go of with the time over, the unit would end at that moment",
            process.pid,
            severity=WARNING if left >= self.MARGIN else "",
        )


class SystemdRestart(ProcessHazard):
    """Restart=: dump ends the process, and systemd starts the service anew beside its image."""

    id = "systemd_restart"
    actions = IMAGES
    option = "systemd_restart"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        unit = service_of(context, process)
        if unit is None:
            return None
        if unit.problem:
            return self.finding(
                name_of(process),
                f"whether systemd starts its unit {unit.name} anew can't be seen: {unit.problem}",
                "A second copy on the GPU while the first is in an image takes its place, its ports and its files",
                f"Look on the host itself: systemctl show -p Restart {unit.name}",
                process.pid,
                severity=WARNING,
            )
        if unit.restart not in RESTARTS:
            return None
        if not _goes_with(context, process, unit.main_pid):
            return None
        main = "" if unit.main_pid in (0, process.pid) else f", whose main process is PID {unit.main_pid},"
        return self.finding(
            name_of(process),
            f"its unit {unit.name}{main} has Restart={unit.restart}",
            "When the dump ends it, systemd starts a second copy, which takes its GPU, its ports and its files",
            "Hold the unit (unit_policy: hold), or consent if nothing starts it anew",
            process.pid,
        )


class SystemdOomd(ProcessHazard):
    """systemd-oomd ends whole groups under memory pressure, and a suspended process has much memory."""

    id = "systemd_oomd"
    actions = frozenset((SUSPEND,))
    severity = WARNING

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        watched: List[str] = []
        for name in units(process):
            unit = context.snapshot.unit(name)
            if unit is not None and unit.oomd:
                watched.append(f"{name} ({' and '.join(unit.oomd)})")
        if not watched:
            return None
        return self.finding(
            name_of(process),
            f"systemd-oomd may kill what is in {comma(watched)}",
            "A suspended process holds the content of its GPUs in host memory, so that it is the first to be chosen",
            "Give its unit ManagedOOMPreference=omit, or the units above it ManagedOOMMemoryPressure=auto and "
            "ManagedOOMSwap=auto",
            process.pid,
        )
