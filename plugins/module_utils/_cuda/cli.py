# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`cuda-checkpoint --action`: driver 555 and later."""

from __future__ import annotations

import signal
from typing import Callable, Mapping, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.call import ThreadCall, not_made
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply

NEEDED = ("--get-state", "--action", "--pid")
OPTIONS: Mapping[str, Sequence[str]] = {
    "state": ("--get-state", "--pid"),
    "restore_thread": ("--get-restore-tid", "--pid"),
    "lock": ("--action", "--pid", "--timeout"),
    "checkpoint": ("--action", "--pid"),
    "restore": ("--action", "--pid", "--device-map"),
    "unlock": ("--action", "--pid"),
}


class Cli:
    """can_hold: it can name the restore thread. can_map: restore takes a device map. Both from its help."""

    name = "cli"
    can_lock = True

    def __init__(self, offer: tool.Offer) -> None:
        self.offer = offer
        self.executable = offer.executable
        self.can_hold = "--get-restore-tid" in offer.options
        self.can_map = "--device-map" in offer.options

    def _start(self, call: str, request: tool.Request, read: Callable[[tool.Finished], Reply]) -> ThreadCall:
        words = tool.argv(self.executable, OPTIONS[call], request)
        missing = [word for word in words if word.startswith("--") and word not in self.offer.options]
        if missing:
            version = f" (driver {self.offer.version})" if self.offer.version else ""
            return ThreadCall(lambda: not_made(f"{self.executable}{version} has no {', '.join(missing)}"), call)
        mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return ThreadCall(lambda: read(tool.run(words, mask=mask)), f"cuda-checkpoint {call} {request.pid}")

    def prepare(self) -> None:
        """Nothing: each call is a process of its own."""

    def state(self, pid: int) -> ThreadCall:
        return self._start("state", tool.Request(pid), tool.read_state)

    def restore_thread(self, pid: int) -> ThreadCall:
        return self._start("restore_thread", tool.Request(pid), tool.read_thread)

    def lock(self, pid: int, timeout_ms: int) -> ThreadCall:
        """timeout_ms: 0 waits for ever."""
        return self._start("lock", tool.Request(pid, "lock", timeout_ms=timeout_ms), tool.done)

    def checkpoint(self, pid: int) -> ThreadCall:
        return self._start("checkpoint", tool.Request(pid, "checkpoint"), tool.done)

    def restore(self, pid: int, device_map: Sequence[Tuple[str, str]]) -> ThreadCall:
        """device_map: GPU UUIDs, old and new, every GPU of the host; empty for a plain restore."""
        return self._start("restore", tool.Request(pid, "restore", device_map=tuple(device_map)), tool.done)

    def unlock(self, pid: int) -> ThreadCall:
        return self._start("unlock", tool.Request(pid, "unlock"), tool.done)
