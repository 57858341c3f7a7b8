# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the numbers that the operator gave name processes that may be touched at all."""

from __future__ import annotations

import os
from typing import Callable, Optional, Sequence, Set

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError, Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot

Known = Callable[[Identity], Optional[Operation]]


def check_targets(
    wanted: Sequence[Wanted],
    snapshot: Snapshot,
    remembered: Sequence[Operation],
    own_ancestors: Set[int],
    known: Known = lambda identity: None,
) -> None:
    """Raises ArgumentError on the first number that names no process, a thread, a zombie, a process that runs this
    module, or another process than the one that is meant. known: the last operation of a process.
    """
    for entry in wanted:
        _check(entry, snapshot.process(entry.pid), remembered, own_ancestors, known)


def _check(
    entry: Wanted,
    process: Optional[ProcessSnapshot],
    remembered: Sequence[Operation],
    own_ancestors: Set[int],
    known: Known,
) -> None:
    if process is None:
        raise ArgumentError("pids", f"there is no process {entry.pid}", _remembered_words(entry.pid, remembered))
    if process.is_thread:
        raise ArgumentError(
            "pids",
            f"{entry.pid} is a thread of process {process.thread_group}",
            f"Name the process: {process.thread_group}.",
        )
    if process.is_zombie:
        raise ArgumentError(
            "pids",
            f"{entry.pid} ({process.name}) has ended and is a zombie",
            f"Its parent, PID {process.parent}, has not collected it; nothing can be brought back.",
        )
    if entry.pid in own_ancestors:
        raise ArgumentError(
            "pids",
            f"{entry.pid} ({process.name}) runs this module",
            "A process that Ansible itself hangs on can't be stopped by it.",
        )
    identity = process.identity
    if entry.start_ticks is not None and entry.start_ticks != identity.start_ticks:
        raise ArgumentError(
            "pids",
            f"{entry.pid} is another process now: it started at {identity.start_ticks} ticks, not {entry.start_ticks}",
            "The process that was meant has ended, and its PID was used again.",
        )
    if entry.boot_id is not None and entry.boot_id != identity.boot_id:
        raise ArgumentError(
            "pids",
            f"{entry.pid} was looked up in another boot of this host ({entry.boot_id}, now {identity.boot_id})",
            "No process outlives a reboot.",
        )
    if entry.start_ticks is not None:
        return
    later = known(identity)
    for operation in remembered:
        if operation.identity.pid == entry.pid and operation.identity.start_ticks != identity.start_ticks:
            if later is not None and later.id > operation.id:
                continue  # restored from its image, say: the number is known to be this one's now
            raise ArgumentError(
                "pids",
                f"{entry.pid} ({process.name}), started at {identity.start_ticks} ticks, is not the process that run "
                f"{operation.run_id} worked on: {operation.executable}, started at {operation.identity.start_ticks}",
                "That process has ended, and its PID was used again. To work on the new one, name it with its "
                f"start: {{pid: {entry.pid}, start_ticks: {identity.start_ticks}}}.",
            )


def _remembered_words(pid: int, remembered: Sequence[Operation]) -> str:
    for operation in remembered:
        if operation.identity.pid == pid:
            done = "suspended it" if operation.status == "suspended" else f"came to its step {operation.step} with it"
            return f"The journal knows it: {operation.executable}. Run {operation.run_id} {done}; it has ended since."
    return "Name processes that run on this host."


def own_ancestors() -> Set[int]:
    """This process and everything that it descends from, without PID 1."""
    found: Set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
                pid = int(stream.read().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            break
    return found
