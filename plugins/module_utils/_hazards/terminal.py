# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who started a process, and what becomes of it when that one sees it stopped."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, WARNING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import (
    IMAGES,
    SUSPEND,
    Context,
    ProcessHazard,
    name_of,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot


class ControllingTty(ProcessHazard):
    """CRIU refuses the terminal of somebody else's session unless it is told --shell-job."""

    id = "controlling_tty"
    actions = IMAGES
    option = "controlling_tty"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        if not process.tty:
            return None
        around = context.snapshot.around_of(process.pid)
        terminal = "a terminal" if around is None or not around.terminal else around.terminal
        return self.finding(
            name_of(process),
            f"it was started from {terminal}, which belongs to session {process.session}",
            "CRIU refuses it unless it may take the terminal of whoever restores in its place, and an Ansible task has "
            "none to give",
            "Start it without a terminal (setsid, nohup is not enough; systemd-run), or consent",
            process.pid,
        )


class ParkUnsafeParent(ProcessHazard):
    """A parked process is stopped. gunicorn's master kills workers that don't report in time (its `timeout`, 30 s by
    default): that one is lost. A shell takes its terminal back and says that the job is stopped: nothing is lost."""

    id = "park_unsafe_parent"
    actions = frozenset((SUSPEND,))
    option = "park_unsafe_parent"

    def detect(self, context: Context, process: ProcessSnapshot) -> Optional[Finding]:
        around = context.snapshot.around_of(process.pid)
        if around is None:
            return None
        parent = around.parent
        if parent is not None and any("gunicorn" in word for word in (parent.name, *parent.command[:3])):
            return self.finding(
                name_of(process),
                f"its parent, PID {parent.pid} ({parent.name}), is gunicorn's master",
                "The master kills a worker that has not reported for as long as its timeout says (30 s by default), "
                "and starts another one in its place",
                "Start gunicorn with --timeout 0, or consent if it was",
                process.pid,
                severity=BLOCKING,
            )
        if not around.terminal:
            return None
        started = f"it was started from {around.terminal}"
        if parent is not None:
            started += f" by PID {parent.pid} ({parent.name})"
        return self.finding(
            name_of(process),
            started + (", in its foreground" if around.foreground else ""),
            "A shell says that the job is stopped and takes the terminal back, so that it goes on in the background "
            "after it is resumed; if the terminal is closed meanwhile, the hangup ends it at its resume",
            "Leave the terminal open until it is resumed (tmux), then fg; start jobs without a terminal",
            process.pid,
            severity=WARNING,
            option="",
        )
