# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module's side of its workers: start them, give each a command, wait for all with a deadline.

The module itself makes no driver call and has no thread: whatever hangs or dies, it is one worker with one process.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from typing import Callable, Dict, List, Mapping, Optional, Set

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Command, Outcome, outcome_from


class Pool:
    """start: makes a worker serve one end of a socket for a PID, in a process of its own, whose PID it returns."""

    def __init__(self, start: Callable[[int, socket.socket], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._start = start
        self._clock = clock
        self._channels: Dict[int, socket.socket] = {}
        self._buffers: Dict[int, bytearray] = {}
        self.workers: Dict[int, int] = {}

    def ensure(self, pid: int) -> None:
        """A worker for this process, if it has none that answers."""
        if pid in self._channels:
            return
        ours, theirs = socket.socketpair()
        self.workers[pid] = self._start(pid, theirs)
        theirs.close()
        self._channels[pid] = ours
        self._buffers[pid] = bytearray()

    def run(
        self, commands: Mapping[int, Command], seconds: float, parallel: int = 0, stop_on_failure: bool = False
    ) -> Dict[int, Outcome]:
        """The outcome of each command. seconds: from the start of each; past it the state is unknown and the worker is
        left to finish alone. parallel: how many at once, 0 for all. stop_on_failure: after a failure the commands that
        have not started never do, and have no outcome.
        """
        waiting: List[int] = list(commands)
        outcomes: Dict[int, Outcome] = {}
        deadlines: Dict[int, float] = {}
        failed = False
        with selectors.DefaultSelector() as selector:
            while deadlines or (waiting and not (failed and stop_on_failure)):
                while waiting and not (failed and stop_on_failure) and (not parallel or len(deadlines) < parallel):
                    pid = waiting.pop(0)
                    self.ensure(pid)
                    if not self._send(pid, commands[pid]):
                        outcomes[pid] = self._lost(pid, commands[pid])
                        self._forget(pid)
                        failed = True
                        continue
                    deadlines[pid] = self._clock() + seconds
                    selector.register(self._channels[pid], selectors.EVENT_READ, pid)
                if not deadlines:
                    continue
                pause = max(0.0, min(deadlines.values()) - self._clock())
                ready: Set[int] = {int(key.data) for key, _event in selector.select(min(pause, 3600.0))}
                for pid in sorted(deadlines):
                    outcome = self._read(pid, commands[pid]) if pid in ready else None
                    if outcome is None and self._clock() >= deadlines[pid]:
                        outcome = self._late(pid, commands[pid], seconds)
                    if outcome is None:
                        continue
                    selector.unregister(self._channels[pid])
                    del deadlines[pid]
                    if outcome.lost_worker or outcome.late:
                        self._forget(pid)
                    outcomes[pid] = outcome
                    failed = failed or not outcome.ok
        return outcomes

    def leave(self, pids: Set[int]) -> None:
        """Tell these workers that the module is done with their processes; each knows whether to stay as guard."""
        for pid in sorted(pids & set(self._channels)):
            self._send(pid, Command("leave"))
            self._forget(pid)

    def abandon(self) -> None:
        """End every connection without a word: each worker undoes a lock that nobody will use any more."""
        for pid in list(self._channels):
            self._forget(pid)

    def _send(self, pid: int, command: Command) -> bool:
        try:
            self._channels[pid].sendall(command.line())
        except OSError:
            return False
        return True

    def _read(self, pid: int, command: Command) -> Optional[Outcome]:
        try:
            data = self._channels[pid].recv(65536)
        except OSError:
            data = b""
        if not data:
            return self._lost(pid, command)
        buffer = self._buffers[pid]
        buffer += data
        line, newline, rest = bytes(buffer).partition(b"\n")
        if not newline:
            return None
        self._buffers[pid] = bytearray(rest)
        return outcome_from(line)

    def _lost(self, pid: int, command: Command) -> Outcome:
        return Outcome(
            ok=False,
            state="unknown",
            step=command.do,
            text=f"its worker (PID {self.workers[pid]}) ended in the middle of it",
            lost_worker=True,
        )

    def _late(self, pid: int, command: Command, seconds: float) -> Outcome:
        return Outcome(
            ok=False,
            state="unknown",
            step=command.do,
            text=f"no answer of the driver within {seconds:.3g} s; its state is unknown",
            remedy=f"Its worker (PID {self.workers[pid]}) goes on waiting. Run the task again: it waits for it, "
            "and carries on from whatever the driver finished.",
            late=True,
        )

    def _forget(self, pid: int) -> None:
        self._channels.pop(pid).close()
        self._buffers.pop(pid)
        try:
            os.waitpid(self.workers[pid], os.WNOHANG)
        except ChildProcessError:
            pass
