# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A guarded process runs no instruction, whoever continues it."""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import Any, Callable, Dict

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import park
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.guard import guard
from tests.unit.plugins.hold.helpers import (
    Holder,
    Target,
    bring_back,
    held,
    resume,
)


def guarding(target: Target, **options: Any) -> Holder:
    """A holder that suspends and guards; it has said "guarding" when this returns."""

    def work(tell: Callable[[Any], None]) -> Dict[str, Any]:
        reply, hold = park.suspend(target.target, target.call("c", 2))
        assert reply is not None and reply.ok
        tell("guarding")
        before = resource.getrusage(resource.RUSAGE_SELF)
        reason = guard(hold, **options)
        after = resource.getrusage(resource.RUSAGE_SELF)
        if reason == "unwanted":
            park.let_go(hold, run=False)
        return {"reason": reason, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}

    holder = Holder(work)
    try:
        assert holder.next() == "guarding"
    except BaseException:
        holder.kill()
        raise
    return holder


def released(holder: Holder) -> Dict[str, Any]:
    holder.signal(signal.SIGTERM)
    found = holder.result()
    assert isinstance(found, dict)
    return found


def test_a_thousand_foreign_continues_and_no_instruction() -> None:
    with Target(60) as target, guarding(target) as holder:
        before = target.counters()
        for _number in range(1000):
            os.kill(target.pid, signal.SIGCONT)
            time.sleep(0.0002)
        time.sleep(0.05)
        assert target.counters() == before
        assert released(holder)["reason"] == "released"
        target.assert_parked()
        held(lambda: resume(target))
        target.assert_runs()


def test_a_guard_that_is_killed_leaves_it_parked() -> None:
    with Target(20) as target, guarding(target) as holder:
        for _number in range(50):
            os.kill(target.pid, signal.SIGCONT)
        time.sleep(0.02)
        holder.kill()
        target.assert_parked()
        bring_back(target)
        target.assert_runs()
