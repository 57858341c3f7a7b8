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
from ..subject import Subject, start_ticks
from ..trial import Trial

LANES = 4
GOAL_NAMES = {"checkpointed": "suspend", "running": "resume"}


class Lane:
    def __init__(self, t: Trial, subjects: List[Subject], seed: int) -> None:
        self.t = t
        self.subjects = subjects
        self.random = random.Random(seed)
        self.hits: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.usual = {"checkpointed": 1.0, "running": 1.0}
        self.steps: Dict[str, List[str]] = {}
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
        """How long a call takes, and which steps the journal shows: where to aim."""
        for state in ("checkpointed", "running"):
            began = time.monotonic()
            done = self.t.module(f"{GOAL_NAMES[state]} for its time", state, self.subjects)
            self.t.must(done.status == "ok", f"{state} without a kill", msg=done.message)
            self.usual[state] = time.monotonic() - began
            self.reader = memory.Reader(self.t.spec)
            self.steps[state] = self.reader.steps(self.subjects[0].pid)
        self.t.fact("steps", self.steps)

    def _round(self, number: int) -> bool:
        what = ("worker", "module", "worker", "playbook")[number % 4]
        first = self._killed("checkpointed", what, number)
        # What was cut is wanted again, or is not wanted any more.
        to = "checkpointed" if number % 3 else "running"
        ok = self._again(to, first, number)
        if ok and to == "checkpointed":
            second = self._killed("running", what, number)
            ok = self._again("running", second, number)
        ok = ok and self.t.whole(self.subjects, f"after round {number}")
        if ok:
            self.t.nothing_left(self.subjects, f"after round {number}")
        return ok

    def _again(self, to: str, after: str, number: int) -> bool:
        done = self.t.module(f"round {number}: {to} again", to, self.subjects)
        missed = judge.not_reached(done.result, to, [one.pid for one in self.subjects])
        lost = {one.name: one.death() for one in self.subjects if one.death() != "alive"}
        self.t.expect(not lost, f"round {number}: all live after the kill in {after}", ends=lost)
        ok = done.status == "ok" and not missed and not lost
        return self.t.expect(ok, f"round {number}: re-run to {to}", after=after, msg=done.message, missed=missed)

    def _killed(self, state: str, what: str, number: int) -> str:
        """Begin a call and kill something of it. Returns what was hit, for the record."""
        with self.t.gpus_shared():
            return self._kill_in_call(state, what, number)

    def _kill_in_call(self, state: str, what: str, number: int) -> str:
        assert self.reader is not None
        target = self.subjects[number % len(self.subjects)]
        goal, steps, born = GOAL_NAMES[state], self.steps[state], start_ticks(target.pid)
        aimed = min(steps, key=lambda step: (self.hits[f"{goal} {step} {what}"], self.random.random()))
        by_step = number % 3 != 0
        old = self.reader.glance(target.pid, born)[0]
        begun, mark = self._begin(state, what)
        deadline = time.monotonic() + self.usual[state] * 3 + 10
        moment = time.monotonic() + self.random.uniform(0.1, self.usual[state] * (2.5 if what == "playbook" else 1.1))
        seen = (old, "", 0)
        while time.monotonic() < deadline and begun.process.poll() is None:
            seen = self.reader.glance(target.pid, born)
            # A step that went by between two looks will not come again.
            due = seen[0] != old and seen[1] in steps and steps.index(seen[1]) >= steps.index(aimed)
            if due if by_step else time.monotonic() >= moment:
                break
            time.sleep(0.0002 if seen[0] != old else 0.001)
        killed = self._kill(what, mark, seen[2] if seen[0] != old else 0)
        now = self.reader.glance(target.pid, born)
        hit = f"{goal} {now[1] if now[0] != old else 'before the first step'} {what}"
        if killed:
            self.hits[hit] += 1
        with contextlib.suppress(NoAnswerError):
            done = begun.wait(self.t.sizes.patience * 2)
            status = getattr(done, "status", None) or f"rc {getattr(done, 'rc', '?')}"
            self.outcomes[f"{goal}, {what} killed: call {status}"] += 1
        self.t.note(
            f"round {number}: {goal}",
            killed=killed,
            aimed=aimed if by_step else "a random time",
            hit=hit,
            target=target.name,
            then={one.name: one.look().short()["states"] for one in self.subjects},
        )
        return hit

    def _begin(self, state: str, what: str) -> Tuple[Any, str]:
        if what == "playbook":
            begun = self.t.begin_play([self.t.task(state, self.subjects)])
            return begun, begun.mark
        return self.t.bare(self.t.arguments(state, self.subjects))

    def _kill(self, what: str, mark: str, worker: int) -> List[str]:
        if what != "worker":
            return plays.kill_play(mark)
        if worker:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                return [f"worker {worker}"]
        return []


def lane(t: Trial, number: int) -> None:
    """Rounds of suspend and resume of a plain process, one that polls, and JAX, with something killed in each call."""
    kinds = [("plain1", "plain"), ("polling1", "polling")]
    if t.spec.stand_ins or "jax" not in t.spec.host["lacking"]:
        kinds.append(("jax1", "jax"))
    subjects = t.start(kinds)
    played = Lane(t, subjects, number)
    count = played.rounds(t.spec.kill_seconds)
    t.say(f"{count} rounds, {sum(played.hits.values())} kills; calls ended: {dict(sorted(played.outcomes.items()))}")


for _number in range(1, LANES + 1):
    add(f"kills/lane-{_number}", functools.partial(lane, number=_number), seconds=420)
