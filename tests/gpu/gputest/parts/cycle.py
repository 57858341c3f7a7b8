# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One, four and eight processes: suspended by one task, a minute later resumed by one."""

from __future__ import annotations

import functools
import time
from typing import Any, Dict, List

from .. import judge, plays
from ..registry import add
from ..subject import Subject
from ..trial import Trial

COUNTS = (1, 4, 8)
KINDS = ("jax", "torch", "cupy", "plain")


def there(t: Trial, state: str, subjects: List[Subject], **more: Any) -> None:
    """To `state`: first in check mode, compared with what happens; then for real; then again."""
    wanted = [t.task(state, subjects, **more)]
    before = [one.look() for one in subjects]
    foretold = t.play(f"{state}: check", wanted, check=True).results[0]
    t.must(foretold.status == "ok", f"{state}: check mode is ok", msg=foretold.message)
    t.unchanged(subjects, before, f"after check mode of {state}")
    done = t.play(state, wanted).results[0]
    t.reached(state, done, state, subjects, changed=True)
    wrong = judge.differences(foretold.result, done.result)
    t.expect(not wrong, f"{state}: check mode foretold it", differences=wrong)
    info: Dict[str, Any] = {plays.INFO: {"pids": [one.pid for one in subjects], "journal": t.spec.journal}}
    again, listed = t.play(f"{state}: again", [*wanted, info]).results
    t.reached(f"{state}: again", again, state, subjects, changed=False)
    seen = {one.get("pid"): one.get("before", one.get("state")) for one in listed.processes}
    t.expect(
        listed.status == "ok" and all(seen.get(one.pid) == state for one in subjects),
        f"{state}: cuda_checkpoint_info says so",
        seen=seen,
        msg=listed.message,
    )


def stay_parked(t: Trial, subjects: List[Subject], seconds: float) -> None:
    """Looked at all the time: stopped, without a device, guarded, and no tick of CPU time passes."""
    pids = [one.pid for one in subjects]
    before = {one.pid: one.look() for one in subjects}
    guards = t.guards(pids)
    t.expect(len(guards) == len(pids), "each has a guard", guards=guards, pids=pids)
    t.expect(not t.listed(pids), "NVML lists none of them", listed=t.listed(pids))
    counters = {one.pid: one.counter() for one in subjects}
    end = time.monotonic() + seconds
    odd: List[Any] = []
    while time.monotonic() < end and not odd:
        time.sleep(min(3.0, max(0.1, end - time.monotonic())))
        odd = [(one.name, now.short()) for one in subjects for now in [one.look()] if not now.parked]
    t.expect(not odd, f"parked for {seconds:g} s", odd=odd)
    spent = {one.name: one.look().cpu - before[one.pid].cpu for one in subjects}
    t.expect(not any(spent.values()), "no CPU time was spent meanwhile", ticks=spent)
    stood = {one.name: [counters[one.pid], one.counter()] for one in subjects if counters[one.pid] != one.counter()}
    t.expect(not stood, "the counters stood", counters=stood)
    t.expect(t.guards(pids) == guards, "the guards are the same", before=guards, now=t.guards(pids))


def cycle(t: Trial, kind: str, count: int) -> None:
    """Suspended, looked at for a minute, resumed; check mode first, and again after."""
    subjects = t.start([(f"{kind}{number}", kind) for number in range(1, count + 1)])
    there(t, "checkpointed", subjects)
    stay_parked(t, subjects, t.spec.minute)
    there(t, "running", subjects)
    t.whole(subjects)
    t.nothing_left(subjects)
    steps = {one["do"]: one for one in t.record["steps"] if "module_seconds" in one}
    took = {what: steps[what]["module_seconds"] for what in ("checkpointed", "running") if what in steps}
    t.fact("module_seconds", took)
    t.say(f"{count} x {kind}, {t.sizes.small} MiB each, suspended for {t.spec.minute:g} s; module took {took}")


for _count in reversed(COUNTS):
    for _kind in KINDS:
        add(
            f"cycle/{_kind}-{_count}",
            functools.partial(cycle, kind=_kind, count=_count),
            framework="" if _kind == "plain" else _kind,
            seconds=330,
        )
