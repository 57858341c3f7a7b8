# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`cuda-checkpoint --toggle`: all that drivers 550 to 554 have.

A toggle turns round when it is repeated, so each one is made only after a look that shows which way it goes, and
never two at once on one process. There is no state query: what the process holds tells its state. There is no lock,
and no restore thread is named, so nothing can be held.
"""

from __future__ import annotations

import fcntl
import os
import signal
from typing import Optional, Protocol, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.call import ThreadCall, not_made
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply, text
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Mapping, read_process

OPTIONS = ("--toggle", "--pid")
_ILLEGAL_STATE, _NOT_INITIALIZED, _OPERATING_SYSTEM = 401, 3, 304


class Evidence(Protocol):
    """What is read of a ProcessSnapshot. None: it could not be read."""

    @property
    def uvm_mappings(self) -> Optional[Tuple[Mapping, ...]]:
        """Of /dev/nvidia-uvm."""

    @property
    def looks_suspended(self) -> Optional[bool]:
        """Whether it has CUDA and holds no device."""

    @property
    def may_be_cuda(self) -> Optional[bool]:
        """Whether anything of CUDA is seen of it."""


def judge(pid: int, seen: Optional[Evidence]) -> Reply:
    """The state that the evidence shows: "running", which may be locked, too, or "checkpointed". seen: None where there
    is no such process.

    A process with a context maps /dev/nvidia-uvm, once for each GPU in use, and not while it is suspended. One whose
    restore failed holds GPUs again, but without that mapping. All measured, with a later driver.
    """
    if seen is None or seen.uvm_mappings is None:
        return Reply(False, _OPERATING_SYSTEM, text(_OPERATING_SYSTEM), 0.0)
    if seen.uvm_mappings:
        return Reply(True, 0, "it maps /dev/nvidia-uvm", 0.0, state="running")
    if seen.looks_suspended:
        return Reply(True, 0, "it has had CUDA and holds no device", 0.0, state="checkpointed")
    if seen.looks_suspended is None or seen.may_be_cuda is None:
        return Reply(False, _OPERATING_SYSTEM, text(_OPERATING_SYSTEM), 0.0)
    if not seen.may_be_cuda:
        return Reply(False, _NOT_INITIALIZED, text(_NOT_INITIALIZED), 0.0)
    return not_made(
        f"process {pid} holds a GPU without mapping /dev/nvidia-uvm: a toggle of it is on its way, or an earlier "
        "resume failed, and it can't be resumed any more"
    )


class Toggle:
    """A restore also unlocks: the process runs afterwards. A toggle that is refused may leave the process locked, and
    nothing that these drivers have unlocks it again (measured for managed memory on a later driver)."""

    name = "toggle"
    can_lock = False
    can_hold = False
    can_map = False

    def __init__(self, offer: tool.Offer) -> None:
        self.offer = offer
        self.executable = offer.executable

    def prepare(self) -> None:
        """Nothing: each call is a process of its own."""

    def state(self, pid: int) -> ThreadCall:
        """From what the process holds. Answers at once, also for a stopped process; "running" may be locked."""
        return ThreadCall(lambda: _look(pid), f"look at {pid}")

    def restore_thread(self, pid: int) -> ThreadCall:
        return self._without("names no restore thread")

    def lock(self, pid: int, timeout_ms: int) -> ThreadCall:
        return self._without("has no lock of its own")

    def unlock(self, pid: int) -> ThreadCall:
        return self._without("has no unlock of its own: a restore does both")

    def checkpoint(self, pid: int) -> ThreadCall:
        """Lock and checkpoint in one."""
        return self._toggle(pid, "running")

    def restore(self, pid: int, device_map: Sequence[Tuple[str, str]]) -> ThreadCall:
        """Restore and unlock in one."""
        if device_map:
            return self._without("takes no device map; drivers from 580 on do")
        return self._toggle(pid, "checkpointed")

    def _without(self, what: str) -> ThreadCall:
        version = f" of driver {self.offer.version}" if self.offer.version else ""
        return ThreadCall(lambda: not_made(f"cuda-checkpoint{version}, which only toggles, {what}"), what)

    def _toggle(self, pid: int, only_from: str) -> ThreadCall:
        words = tool.argv(self.executable, OPTIONS, tool.Request(pid))
        mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

        def work() -> Reply:
            # An flock of the process's own directory in /proc: it leaves no file, ends with the process, and the tool
            # inherits it, so that it lasts until the toggle is over even if the caller dies.
            try:
                lock = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                return Reply(False, _OPERATING_SYSTEM, text(_OPERATING_SYSTEM), 0.0)
            try:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return not_made(f"another toggle of process {pid} is on its way")
                seen = _look(pid)
                if not seen.ok:
                    return seen
                if seen.state != only_from:
                    return Reply(False, _ILLEGAL_STATE, text(_ILLEGAL_STATE), 0.0)
                return tool.done(tool.run(words, keep=(lock,), mask=mask))
            finally:
                os.close(lock)

        return ThreadCall(work, f"cuda-checkpoint toggle {pid}")


def _look(pid: int) -> Reply:
    return judge(pid, read_process(pid))
