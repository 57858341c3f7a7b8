# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Seeded sequences of legal and illegal calls. Pure: the same seed gives the same steps everywhere.

A model of the state machine only biases the choice; what really happens is observed, not predicted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Dict, List

LENGTH = 12
_NEXT = {
    ("running", "lock"): "locked",
    ("locked", "checkpoint"): "checkpointed",
    ("checkpointed", "restore"): "locked",
    ("locked", "unlock"): "running",
}
_ACTIONS = ("lock", "checkpoint", "restore", "unlock")


@dataclass(frozen=True)
class Step:
    """`who`: a or b (workloads), a.thread (a thread id of a), plain (not CUDA), dead (no such PID)."""

    op: str
    who: str
    timeout_ms: int = -1
    args: str = "zeroed"

    @property
    def text(self) -> str:
        words = f"{self.op} {self.who}"
        if self.timeout_ms >= 0:
            words += f" timeout={self.timeout_ms}"
        if self.args != "zeroed":
            words += f" {self.args}"
        return words


def _legal(rng: random.Random, state: str) -> str:
    """A legal action; a checkpoint, which takes a hundred times as long as the others, less often."""
    if state == "locked":
        return "checkpoint" if rng.random() < 0.22 else "unlock"
    return "lock" if state == "running" else "restore"


def generate(seed: int, index: int, backend: str) -> List[Step]:
    rng = random.Random(f"{seed}/{index}/{backend}")
    two = rng.random() < 0.5
    states: Dict[str, str] = {"a": "running"}
    if two:
        states["b"] = "running"
    stopped: Dict[str, bool] = dict.fromkeys(states, False)
    steps: List[Step] = []
    while len(steps) < LENGTH:
        who = rng.choice(sorted(states))
        if stopped[who]:
            # A stopped process answers nothing but this one question.
            step = Step("tid", who) if rng.random() < 0.5 else Step("cont", who)
            stopped[who] = step.op != "cont"
            steps.append(step)
            continue
        dice = rng.random()
        if dice < 0.52:
            op = _legal(rng, states[who])
        elif dice < 0.72:
            op = rng.choice(_ACTIONS)
        elif dice < 0.80:
            op = rng.choice(("state", "tid"))
        elif dice < 0.84:
            steps.append(Step("stop", who))
            stopped[who] = True
            continue
        elif dice < 0.90:
            steps.append(Step(rng.choice((*_ACTIONS, "state", "tid")), rng.choice(("plain", "dead"))))
            continue
        elif dice < 0.93:
            if states[who] == "running":
                steps.append(Step("sum", who))
            continue
        elif dice < 0.96 and backend == "cli":
            steps.append(Step("toggle", who))
            states[who] = {"running": "checkpointed", "checkpointed": "running"}.get(states[who], states[who])
            continue
        else:
            op = _legal(rng, states[who])
            states[who] = _NEXT[(states[who], op)]
            steps.append(Step(op, "a.thread" if who == "a" else who))
            continue
        timeout = -1
        if op == "lock" and rng.random() < 0.5:
            timeout = rng.choice((0, 1000, 20000))
        args = "null" if backend == "libcuda" and op in _ACTIONS and timeout < 0 and rng.random() < 0.2 else "zeroed"
        steps.append(Step(op, who, timeout, args))
        states[who] = _NEXT.get((states[who], op), states[who])
    for who in sorted(states):
        if stopped[who]:
            steps.append(Step("cont", who))
    return steps
