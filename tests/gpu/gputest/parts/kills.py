# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGKILL of the module, of the whole ansible-playbook and of the worker, at each step: the process is whole
afterwards, and a re-run brings it where it was wanted.

A lane is a few processes that are suspended and resumed over and over. In each call one thing is killed: when the
journal shows the step that has been hit least so far, or at a random time. What the journal says just after counts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import time
from collections import Counter
from typing import Any, Dict, List, Optional, Tuple

from .. import judge, memory, plays
from ..plays import NoAnswerError
from ..registry import add
from ..subject import Subject
from ..trial import Trial, worker_of

LANES = 4
# Where a kill is aimed at, in the order in which they happen; the journal may show others, which count as well.
STEPS = {
    "checkpointed": ("lock", "stop", "seize", "mask", "checkpoint", "settle", "park", "guard"),
    "running": ("seize", "mask", "restore", "unlock", "settle", "continue", "detach"),
}
GOAL_NAMES = {"checkpointed": "suspend", "running": "resume"}


class Lane:
    def __init__(self, t: Trial, subjects: List[Subject], seed: int) -> None:
        self.t = t
        self.subjects = subjects
        self.random = random.Random(seed)
        self.hits: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.usual = {"checkpointed": 1.0, "running": 1.0}
        self.reader: Optional[memory.Reader] = None

    def rounds(self, seconds: float) -> int:
        """Until the time is over; each round ends with every process running and whole."""
        end, count = time.monotonic() + seconds, 0
        self._measure()
        while time.monotonic() < end:
            count += 1
            if not self._round(count):
                break
            self.t.fact("hits", dict(sorted(self.hits.items())))
            self.t.fact("outcomes", dict(sorted(self.outcomes.items())))
        return count

    def _measure(self) -> None:
        """How long a call takes from the start of its process, to know where a random time falls."""
        for state in ("checkpointed", "running"):
            began = time.monotonic()
            with self._memory(state):
                done = self.t.module(f"{GOAL_NAMES[state]} for its time", state, self.subjects)
            self.t.must(done.status == "ok", f"{state} without a kill", msg=done.message)
            self.usual[state] = time.monotonic() - began
        self.reader = memory.Reader(self.t.spec)

    def _memory(self, state: str) -> contextlib.AbstractContextManager[None]:
        return self.t.gpu_shared() if state == "running" else contextlib.nullcontext()

    def _round(self, number: int) -> bool:
        what = ("worker", "module", "worker", "playbook")[number % 4]
        first = self._killed("checkpointed", what, number)
        # What was cut is wanted again, or is not wanted any more.
        to = "checkpointed" if number % 3 else "running"
        ok = self._again(to, first, number)
        if ok and to == "checkpointed":
            with self.t.gpu_shared():
                second = self._killed("running", what, number)
                ok = self._again("running", second, number)
        ok = ok and self.t.whole(self.subjects, f"after round {number}")
        if ok:
            self.t.nothing_left(self.subjects, f"after round {number}")
        return ok

    def _again(self, to: str, after: str, number: int) -> bool:
        with self._memory(to):
            done = self.t.module(f"round {number}: {to} again", to, self.subjects)
        missed = judge.not_reached(done.result, to, [one.pid for one in self.subjects])
        lost = {one.name: one.death() for one in self.subjects if one.death() != "alive"}
        self.t.expect(not lost, f"round {number}: all live after the kill in {after}", ends=lost)
        ok = done.status == "ok" and not missed and not lost
        return self.t.expect(ok, f"round {number}: re-run to {to}", after=after, msg=done.message, missed=missed)

    def _killed(self, state: str, what: str, number: int) -> str:
        """Begin a call and kill something of it. Returns what was hit, for the record."""
        target = self.subjects[number % len(self.subjects)]
        steps = STEPS[state]
        aimed = min(steps, key=lambda step: (self.hits[f"{GOAL_NAMES[state]} {step} {what}"], self.random.random()))
        by_step = number % 3 != 0
        begun, mark = self._begin(state, what)
        old = self.reader.latest(target.pid) if self.reader else None
        old_id = (old or {}).get("id")
        deadline = time.monotonic() + self.usual[state] * 3 + 5
        moment = time.monotonic() + self.random.uniform(0.1, self.usual[state] * (2.5 if what == "playbook" else 1.1))
        seen: Optional[Dict[str, Any]] = None
        hit = ""
        while time.monotonic() < deadline and begun.process.poll() is None:
            seen = self.reader.latest(target.pid) if self.reader else None
            fresh = seen is not None and seen.get("id") != old_id
            if by_step and fresh and seen is not None and self._due(str(seen["step"]), aimed, steps):
                break
            if not by_step and time.monotonic() >= moment:
                break
            time.sleep(0.0005 if by_step else 0.002)
        killed = self._kill(what, mark, seen, old_id)
        now = self.reader.latest(target.pid) if self.reader else None
        step = str(now["step"]) if now is not None and now.get("id") != old_id else "before the first step"
        hit = f"{GOAL_NAMES[state]} {step} {what}"
        if killed:
            self.hits[hit] += 1
        with contextlib.suppress(NoAnswerError):
            done = begun.wait(self.t.sizes.patience * 2)
            status = getattr(done, "status", None) or f"rc {getattr(done, 'rc', '?')}"
            self.outcomes[f"{GOAL_NAMES[state]}, {what} killed: call {status}"] += 1
        self.t.note(
            f"round {number}: {GOAL_NAMES[state]}",
            killed=killed,
            aimed=aimed if by_step else "a random time",
            hit=hit,
            target=target.name,
            then={one.name: one.look().short()["states"] for one in self.subjects},
        )
        return hit

    def _due(self, step: str, aimed: str, steps: Tuple[str, ...]) -> bool:
        if step == aimed:
            return True
        # It went by between two looks.
        return step in steps and steps.index(step) > steps.index(aimed)

    def _begin(self, state: str, what: str) -> Tuple[Any, str]:
        if what == "playbook":
            begun = self.t.begin_play([self.t.task(state, self.subjects)])
            return begun, begun.mark
        return self.t.bare(self.t.arguments(state, self.subjects))

    def _kill(self, what: str, mark: str, seen: Optional[Dict[str, Any]], old_id: Any) -> List[str]:
        if what != "worker":
            return plays.kill_play(mark)
        pid = worker_of(seen) if seen is not None and seen.get("id") != old_id else 0
        if not pid:
            return []
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return [f"worker {pid}"]
        return []


def lane(t: Trial, number: int) -> None:
    """Rounds of suspend and resume of a plain process, one that polls, and JAX, with something killed in each call."""
    kinds = [("plain1", "plain"), ("polling1", "polling")]
    if t.spec.stand_ins or "jax" not in t.spec.host["lacking"]:
        kinds.append(("jax1", "jax"))
    subjects = t.start(kinds)
    played = Lane(t, subjects, number)
    count = played.rounds(t.spec.kill_seconds)
    t.say(f"{count} rounds, {sum(played.hits.values())} kills: {dict(sorted(played.hits.items()))}")


for _number in range(1, LANES + 1):
    add(f"kills/lane-{_number}", functools.partial(lane, number=_number), seconds=420)
