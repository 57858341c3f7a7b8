# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that give no answer: stopped, frozen, or in a debugger's hands."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import CgroupSnapshot, own_group
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    LIVE,
    Context,
    ProcessHazard,
    comma,
    name_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot

_HANGS = "Every driver call on it would hang for as long as that lasts, whatever the timeout of the lock"


def is_own_freezer(group: CgroupSnapshot, process: ProcessSnapshot) -> bool:
    """The group that the guard "cgroup" puts around a parked process."""
    name = group.path.rpartition("/")[2]
    return group.version == 2 and name == own_group(process.pid, process.identity.start_ticks)


class StoppedOrFrozen(ProcessHazard):
    """Measured: conformance cases stopped/* and frozen/*. What our own worker stopped is no hazard."""

    id = "stopped_or_frozen"
    actions = LIVE
    option = "stopped"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        ours = process.pid in context.parked_by_us
        frozen = [group for group in process.cgroups if group.frozen]
        foreign = [group for group in frozen if not (ours and is_own_freezer(group, process))]
        if foreign or (process.frozen and not frozen):
            return self._frozen(process, foreign[0] if foreign else None)
        if ours:
            return None
        if process.state == "T":
            run = context.left_stopped.get(process.pid)
            return self.finding(
                name_of(process),
                "it is stopped (State: T), and not by us: "
                + (
                    "a SIGSTOP, a job control stop, or a scheduler's suspend"
                    if run is None
                    else f"run {run} found it stopped by somebody else, and left it so"
                ),
                _HANGS,
                "Continue it (kill -CONT), or consent that it is continued for the lock only and stopped again",
                process.pid,
            )
        if process.frozen is None:
            return self.finding(
                name_of(process),
                "whether a control group freezes it can't be seen: "
                + (comma(group.path for group in process.cgroups if group.frozen is None) or "/proc/PID/cgroup")
                + " can't be read",
                _HANGS,
                "Look at cgroup.freeze (freezer.state in version 1) of its groups",
                process.pid,
                severity=WARNING,
            )
        return None

    def _frozen(self, process: ProcessSnapshot, where: Optional[CgroupSnapshot]) -> Finding:
        if where is None:
            evidence = "it is frozen, by a control group that can't be seen here (it waits in the kernel's freezer)"
            remedy = "Have it thawed by what froze it (a container runtime, a scheduler)"
        else:
            file = "cgroup.freeze" if where.version == 2 else "freezer.state"
            evidence = f"its control group {where.path} is frozen"
            remedy = f"Have it thawed ({file} in {where.directory}) by what froze it (a container runtime, a scheduler)"
        return self.finding(name_of(process), evidence, _HANGS, remedy, process.pid, option="")


class Traced(ProcessHazard):
    """A process has one tracer at most, and ours must be it."""

    id = "traced"
    actions = LIVE

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if process.pid in context.parked_by_us:
            return None
        stopped = [thread for thread in process.threads if thread.state == "t"]
        if not process.tracer_pid and not stopped:
            return None
        if process.tracer_pid:
            tracer = context.snapshot.process(process.tracer_pid)
            evidence = f"PID {process.tracer_pid}{'' if tracer is None else f' ({tracer.name})'} traces it"
        else:
            evidence = (
                f"thread {stopped[0].tid} ({stopped[0].name}) is in a tracing stop, by a tracer that can't be seen"
            )
        return self.finding(
            name_of(process),
            evidence,
            "Its threads can't be held while another program traces it, and one that the tracer has stopped lets "
            "driver calls hang",
            "End the debugger, profiler or strace, or detach it",
            process.pid,
        )
