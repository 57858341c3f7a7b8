# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Within the steps of an image that take long: SIGKILL at moments spread over them, and a disk that is full from some
moment on. No process is lost, no image is there by half, and the same task, run again, ends where it was to end.

How long a step takes is measured before. One host for each moment, so that one playbook meets all of them. Here a
moment or two of each step; ten of each, for each who can be killed, with GPUFLEET_CRIU_KILLS=all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.system.lab import Job, Lab, labs
from tests.system.playing import Play, Result
from tests.system.striking import DONE, FILLER, KILLS, fill, forget, has_struck, prepare, strike
from tests.system.test_criu_image import STORE, image
from tests.system.test_cuda_checkpoint_faults import by_host, on_each

ALL = os.environ.get("GPUFLEET_CRIU_KILLS") == "all"
HOSTS = 10 if ALL else 6
MIB = 64
PATH = f"{STORE}/job"
#: Step, who is killed, and when in it: from 0 to 1.
Moment = tuple[str, str, float]
#: Point, script, and seconds into it.
Plan = tuple[str, str, float]
DUMPS: list[Moment] = [
    ("dump", "criu", 0.3),
    ("dump", "criu", 0.5),
    ("dump", "criu", 0.7),
    ("dump", "worker", 0.5),
    ("compress", "worker", 0.5),
    ("seal", "module", 0.5),
]
RESTORES: list[Moment] = [
    ("verify", "worker", 0.5),
    ("unpack", "module", 0.5),
    ("restore", "criu", 0.3),
    ("restore", "criu", 0.5),
    ("restore", "criu", 0.7),
    ("restore", "worker", 0.5),
]
#: Step, and how many bytes are left when it begins: none, or too few for what it writes.
FULL_DUMPS = [
    ("dump", 0),
    ("dump", MIB << 19),
    ("compress", 0),
    ("seal", 0),
    ("rename", 0),
    ("suspend", 0),
    ("stop", 0),
    ("dump", 1 << 20),
    ("prove", 0),
    ("compress", 1 << 20),
][:HOSTS]
FULL_RESTORES = [("verify", 0), ("unpack", 0), ("unpack", MIB << 19), ("restore", 0), ("restore", 1 << 20)]


def ten(step: str, victim: str) -> list[Moment]:
    return [(step, victim, (number + 0.5) / HOSTS) for number in range(HOSTS)]


WAYS = [("present", DUMPS), ("restored", RESTORES)]
if ALL:
    VICTIMS = {
        "present": {
            "dump": ("worker", "module", "criu"),
            "compress": ("worker", "module"),
            "seal": ("worker", "module"),
        },
        "restored": {
            "verify": ("worker", "module"),
            "unpack": ("worker", "module"),
            "restore": ("worker", "module", "criu"),
        },
    }
    WAYS = [
        (state, ten(step, victim))
        for state, steps in VICTIMS.items()
        for step, victims in steps.items()
        for victim in victims
    ]


@pytest.fixture(scope="module")
def fleet_of_labs(simulator: Path) -> Iterator[list[Lab]]:
    with labs(simulator, "--gpus", "1", "--vram", "512", hosts=HOSTS) as every:
        for lab in every:
            prepare(lab)
        yield every


@pytest.fixture
def every(fleet_of_labs: list[Lab]) -> Iterator[list[Lab]]:
    with ExitStack() as stack:
        for lab in fleet_of_labs:
            lab.host.sh(f"rm -rf {STORE} {FILLER}")
            stack.enter_context(lab.watched())
        yield fleet_of_labs
        for lab in fleet_of_labs:
            forget(lab)


def start(every: list[Lab]) -> dict[str, Job]:
    """They die if a thread of theirs ever runs without its GPU."""
    jobs = on_each(every, lambda lab: lab.one("polling", vram=MIB, wrap=("nice", "-n", "19")))
    return {lab.host.name: job for lab, job in zip(every, jobs, strict=True)}


def on_all(every: list[Lab], jobs: dict[str, Job], state: str) -> dict[str, Result]:
    lookup = json.dumps({host: job.pid for host, job in jobs.items()})
    options: dict[str, Any] = {"path": PATH}
    if state == "present":
        options.update(pid="{{ (lookup_pids | from_json)[inventory_hostname] }}", leave_running=False, compress="zstd")
    return by_host(Play(every[0].host.fleet, [{**image(state, **options), "vars": {"lookup_pids": lookup}}]).wait())


def plan(every: list[Lab], plans: list[Plan]) -> None:
    def write(lab: Lab) -> None:
        number = int(lab.host.name[1:]) - 1
        if number < len(plans):
            strike(lab, *plans[number])

    on_each(every, write)


def kills(moments: list[Moment], seconds: dict[str, float]) -> list[Plan]:
    return [(f"image:{step}", KILLS[victim], round(part * seconds[step], 4)) for step, victim, part in moments]


def fills(moments: list[tuple[str, int]]) -> list[Plan]:
    return [(f"image:{step}", fill(keep), 0) for step, keep in moments]


def check_fired(every: list[Lab], plans: list[Plan]) -> None:
    done = on_each(every[: len(plans)], has_struck)
    assert all(done), f"never reached: {[one for one, seen in zip(plans, done, strict=True) if not seen]}"


def all_ok(results: dict[str, Result], plans: list[Plan]) -> None:
    failed = [
        f"{plans[int(host[1:]) - 1 :][:1]}: {result.data.get('msg', '')}"
        for host, result in results.items()
        if result.outcome != "ok"
    ]
    assert not failed, "\n".join(failed)


def visible(lab: Lab) -> str:
    """Whatever could be taken for an image."""
    return lab.host.sh(f"ls {STORE} 2>/dev/null || true")


def measured(results: dict[str, Result]) -> dict[str, float]:
    """What each step takes when all hosts are at it."""
    found: dict[str, list[float]] = {}
    for result in results.values():
        (one,) = result.data["images"]
        for step, took in one["seconds"].items():
            found.setdefault(step, []).append(took)
    return {step: sorted(took)[len(took) // 2] for step, took in found.items()}


def test_killed_in_the_middle(every: list[Lab]) -> None:
    """The same processes all the way, to disk and back, again and again."""
    jobs = start(every)
    seconds: dict[str, float] = {}
    for state in ("present", "restored"):
        results = on_all(every, jobs, state)
        all_ok(results, [])
        seconds.update(measured(results))
    for state, moments in WAYS:
        plans = kills(moments, seconds)
        if state == "restored" and ALL:
            all_ok(on_all(every, jobs, "present"), plans)
        plan(every, plans)
        first = on_all(every, jobs, state)
        check_fired(every, plans)
        broken = [host for host, result in first.items() if result.outcome != "ok"]
        assert len(broken) >= 2, f"too few were met in the middle: {moments}, {broken}"
        all_ok(on_all(every, jobs, state), plans)
        assert on_each(every, visible) == ["job"] * HOSTS
        if state == "restored" or ALL:
            last = on_all(every, jobs, "restored")
            all_ok(last, plans)
            assert state == "present" or not any(result.changed for result in last.values())
        on_each(every, lambda lab: lab.host.run("rm", "-f", DONE))


def test_the_disk_is_full_in_the_middle(every: list[Lab]) -> None:
    """Everything on it, the journal too."""
    jobs = start(every)
    plans = fills(FULL_DUMPS)
    plan(every, plans)
    first = on_all(every, jobs, "present")
    check_fired(every, plans)
    seen = on_each(every, visible)
    for one, lab, names in zip(FULL_DUMPS, every, seen, strict=True):
        result = first[lab.host.name]
        assert names in ("job", ""), f"{one}: {result} {names}"
        if one[0] in ("dump", "compress"):
            assert result.outcome != "ok" and "space" in result.msg, f"{one}: {result}"
    lost = on_each(every, lambda lab: lab.look(*lab.jobs)[lab.jobs[0].pid]["state"] == "" and not visible(lab))
    assert not any(lost), list(zip(FULL_DUMPS, lost, strict=True))
    on_each(every, lambda lab: lab.host.run("rm", "-f", FILLER))
    all_ok(on_all(every, jobs, "present"), plans)

    plans = fills(FULL_RESTORES)
    plan(every, plans)
    first = on_all(every, jobs, "restored")
    check_fired(every, plans)
    assert first["h2"].outcome != "ok" and "space" in first["h2"].msg
    on_each(every, lambda lab: lab.host.run("rm", "-f", FILLER))
    all_ok(on_all(every, jobs, "restored"), plans)
    assert on_each(every, visible) == ["job"] * HOSTS
