# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep a parked process stopped, whoever continues it."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from typing import Callable, Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import ProcessEndedError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.hold import Hold

RELEASED = "released"
ENDED = "process ended"
UNWANTED = "unwanted"

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)
_LOOK = 30.0


def _always() -> bool:
    return True


def guard(
    hold: Hold,
    wanted: Callable[[], bool] = _always,
    deadline: Optional[float] = None,
    wake: Optional[int] = None,
    look: float = _LOOK,
) -> str:
    """Stay attached, and stop the process again whenever somebody continues it; no thread of it runs meanwhile. Sleeps
    until there is something to do.

    "released": SIGTERM came; the process has been let go of, and is left stopped. "unwanted": `wanted` (asked every
    `look` seconds and whenever something happened) said no, the deadline (time.monotonic()) is over, or the descriptor
    `wake` is readable; it is still held. "process ended": it was killed, and has been reaped.

    To be called in the thread that holds. SIGTERM is best blocked before: one that has come already is not lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    descriptor = ptrace.signal_descriptor(_SIGNALS)
    try:
        return _watch(hold, descriptor, wanted, math.inf if deadline is None else deadline, wake, look)
    finally:
        os.close(descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(
    hold: Hold, descriptor: int, wanted: Callable[[], bool], deadline: float, wake: Optional[int], look: float
) -> str:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if wake is not None:
        poller.register(wake, select.POLLIN)
    while True:
        try:
            hold.tend()
        except ProcessEndedError:
            return ENDED
        left = deadline - time.monotonic()
        if left <= 0 or not wanted():
            return UNWANTED
        ready = {number for number, _event in poller.poll(math.ceil(min(left, look) * 1000))}
        if wake is not None and wake in ready:
            return UNWANTED
        if descriptor in ready and signal.SIGTERM in ptrace.read_signals(descriptor):
            hold.detach(run=False)
            return RELEASED
