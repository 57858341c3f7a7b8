# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ansible-playbook this is, and whether another one still runs."""

from __future__ import annotations

import getpass
import os
import platform
from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import natural
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Controller


def of_parent(parent: int) -> Controller:
    """An action plugin runs in a child of ansible-playbook: parent is its PID, the same for all tasks of one run."""
    return Controller(
        host=platform.node(),
        user=_user(),
        pid=parent,
        start_ticks=_start_ticks(parent) or 0,
        boot_id=_boot_id(),
    )


def alive(controller: Controller) -> Optional[bool]:
    """None: it is of another machine, so this one can't tell."""
    if controller.host != platform.node():
        return None
    boot = _boot_id()
    if controller.boot_id and boot and controller.boot_id != boot:
        return False
    ticks = _start_ticks(controller.pid)
    if ticks is None:
        # No /proc, as on macOS: a PID without a start time may be somebody else's by now, and is taken for the run.
        return not os.path.isdir("/proc/self") and _exists(controller.pid)
    return not controller.start_ticks or controller.start_ticks == ticks


def text(controller: Controller) -> str:
    """As the module gpu_drain takes it."""
    return (
        f"{controller.host} {controller.user} {controller.pid}:{controller.start_ticks}:{controller.boot_id}".strip()
    )[:200]


def parsed(told: str) -> Optional[Controller]:
    """What `text` made; None for anything else."""
    words = told.split(" ")
    numbers = words[-1].split(":")
    if len(words) != 3 or len(numbers) != 3:
        return None
    pid, ticks = natural(numbers[0]), natural(numbers[1])
    return None if pid is None or ticks is None else Controller(words[0], words[1], pid, ticks, numbers[2])


def has_terminal(pid: int) -> bool:
    """Whether this process can ask a person. True where that can't be seen."""
    try:
        target = os.readlink(f"/proc/{pid}/fd/0")
    except OSError:
        return True
    return target.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))


def _user() -> str:
    try:
        return getpass.getuser().replace(" ", "_")
    except (KeyError, OSError, ImportError):
        return str(os.getuid())


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def _start_ticks(pid: int) -> Optional[int]:
    """None: no such process, or one that has ended and waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
