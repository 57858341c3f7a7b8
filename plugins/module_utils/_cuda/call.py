# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A call on its way, in a thread of its own: it may never come back, and nothing here ever cuts it."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace
from typing import Callable, Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import Reply

# Raised by the thread's own instructions: blocked, they would end the process without the usual core.
_SYNCHRONOUS = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS)
)


def not_made(why: str) -> Reply:
    """The reply to a call that never reached the driver."""
    return Reply(ok=False, code=None, text=why, seconds=0.0)


class ThreadCall:
    """Starts `work` at once, in a daemon thread.

    The thread takes no signal that is meant for the process: the caller's own waits are interrupted by it as ever. It
    keeps the process neither from os._exit() nor from an ordinary end. What `work` raises comes back as a Reply.
    """

    def __init__(self, work: Callable[[], Reply], name: str) -> None:
        self._work = work
        self._reply: Optional[Reply] = None
        self._done = threading.Event()
        self._started = time.monotonic()
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _SYNCHRONOUS)
        try:
            thread.start()
        except RuntimeError as error:
            self._finish(not_made(f"the call was not made: {error}"))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _run(self) -> None:
        try:
            reply = self._work()
        except Exception as error:
            reply = not_made(f"{type(error).__name__}: {error}")
        self._finish(reply)

    def _finish(self, reply: Reply) -> None:
        self._reply = replace(reply, seconds=time.monotonic() - self._started)
        self._done.set()

    def poll(self) -> Optional[Reply]:
        """The reply, or None while the call is on its way. Never blocks."""
        return self._reply

    def wait(self, seconds: float) -> Optional[Reply]:
        """The reply as soon as it is there; None after `seconds` without one. The call goes on."""
        self._done.wait(min(max(0.0, seconds), threading.TIMEOUT_MAX))
        return self._reply
