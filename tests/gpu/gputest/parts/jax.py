# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JAX, which dies of a plain suspend: five minutes suspended by the module, and the same with cuda-checkpoint alone."""

from __future__ import annotations

import concurrent.futures
import subprocess
import time
from typing import Any, Dict

from ..registry import test
from ..subject import Subject
from ..trial import Trial
from .cycle import stay_parked

ROUNDS = 5


@test("jax/five-minutes", framework="jax", seconds=520)
def five_minutes(t: Trial) -> None:
    """One process, suspended for a minute and resumed, five times."""
    one = t.one("jax", "jax1")
    t.fact("threads", one.look().threads)
    for number in range(1, ROUNDS + 1):
        done = t.play(f"suspend {number}", [t.task("checkpointed", [one])])
        t.reached(f"suspend {number}", done.results[0], "checkpointed", [one], changed=True)
        stay_parked(t, [one], t.spec.minute)
        done = t.play(f"resume {number}", [t.task("running", [one])])
        t.reached(f"resume {number}", done.results[0], "running", [one], changed=True)
        t.whole([one], f"after round {number}")
    t.nothing_left([one])
    t.say(f"suspended for {t.spec.minute:g} s and resumed, {ROUNDS} times; {t.record['facts']['threads']} threads")


@test("jax/cuda-checkpoint-alone", requires=["cli"], framework="jax", seconds=300)
def alone(t: Trial) -> None:
    """The comparison: `cuda-checkpoint --toggle`, a minute, `--toggle` again; what happens is recorded, not judged."""
    subjects = t.start([(f"alone{number}", "jax") for number in range(1, ROUNDS + 1)])
    with concurrent.futures.ThreadPoolExecutor(ROUNDS) as pool:
        seen = dict(zip([one.name for one in subjects], pool.map(lambda one: _alone(t, one), subjects), strict=True))
    t.fact("processes", seen)
    died = [name for name, what in seen.items() if what["end"] != "alive"]
    ends = sorted({str(what["end"]) for what in seen.values()})
    t.say(f"suspended by cuda-checkpoint --toggle alone: {len(died)} of {ROUNDS} died ({', '.join(ends)})")


def _alone(t: Trial, one: Subject) -> Dict[str, Any]:
    """What becomes of one of them. seconds: from the start of the first toggle to its death."""
    began = time.monotonic()
    seen: Dict[str, Any] = {"toggle": _toggle(t, one.pid)}
    while one.death() == "alive" and time.monotonic() - began < t.spec.minute:
        time.sleep(0.02)
    if one.death() == "alive":
        with t.gpu_shared():
            seen["second toggle"] = _toggle(t, one.pid)
        one.wait_death(8)
    seen["end"] = one.death()
    if seen["end"] == "alive":
        seen.update({"counts": one.moves(), "checksum equal": one.checksum(30) == one.sum})
    else:
        seen["seconds"] = round(time.monotonic() - began, 2)
    return seen


def _toggle(t: Trial, pid: int) -> Dict[str, Any]:
    done = subprocess.run(
        [t.spec.cli, "--toggle", "--pid", str(pid)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    return {"rc": done.returncode, "err": done.stderr.decode(errors="replace").strip()[-300:]}
