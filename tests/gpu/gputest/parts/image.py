# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Process trees to disk with CRIU and back, through criu_image: the same PIDs, the memory as it was."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Tuple

from conform import nvml, workload

from .. import images, plays
from ..images import Journey, Tree, alone
from ..registry import add, test
from ..subject import FRAMEWORKS, Subject, command, framework_environment
from ..trial import Stop, Trial
from .cycle import stay_parked

PARENT = Path(images.__file__).with_name("tree_parent.py")
SECONDS = 480


def one_process(t: Trial, kind: str) -> None:
    """One process to disk and back: check mode first, and again after; listed and verified."""
    # JAX holds its size twice.
    mib = t.sizes.image // 2 if kind == "jax" else t.sizes.image
    one = t.one(kind, f"{kind}1", mib=mib)
    Journey(t, [alone(one)], path=images.place(t, kind)).whole_journey()


for _kind in ("torch", "jax", "plain"):
    add(
        f"image/{_kind}",
        functools.partial(one_process, kind=_kind),
        requires=["criu"],
        framework="" if _kind == "plain" else _kind,
        seconds=SECONDS,
    )


@test("image/tree", requires=["criu"], framework="jax", seconds=SECONDS)
def tree(t: Trial) -> None:
    """A parent with two CUDA children, PyTorch and JAX, and a process that counts into a pipe to it."""
    found = _parent(t, [("torch1", "torch"), ("jax1", "jax")], t.sizes.image // 4)
    lines = t.work / "parent.lines"
    journey = Journey(t, [found], path=images.place(t, "tree"))
    journey.there()
    written = lines.stat().st_size
    journey.back()
    more = images.wait_for(lambda: lines.stat().st_size > written + 20, 15)
    t.expect(more, "what comes through the pipe goes on", before=written, now=lines.stat().st_size)
    numbers = [int(line) for line in lines.read_text().split("\n")[:-1]]
    once = numbers == list(range(1, len(numbers) + 1))
    t.expect(once, "each number once and in order: nothing of the pipe or of the file is lost", last=numbers[-5:])
    t.say(f"{len(numbers)} numbers through the pipe, each once and in order")
    journey.remove()


@test("image/jax-guarded", requires=["criu"], framework="jax", seconds=SECONDS)
def jax_guarded(t: Trial) -> None:
    """JAX, parked with a guard for a minute by another task, then to disk; it comes back running."""
    one = t.one("jax", "jax1", mib=t.sizes.image // 8)
    suspended = t.play("suspend", [t.task("checkpointed", [one], guard="holder")]).results[0]
    t.reached("suspend", suspended, "checkpointed", [one], changed=True)
    stay_parked(t, [one], t.spec.minute)
    t.say(f"parked for {t.spec.minute:g} s before")
    Journey(t, [alone(one)], path=images.place(t, "guarded")).whole_journey()


@test("image/store", requires=["criu"], framework="jax", seconds=SECONDS)
def store(t: Trial) -> None:
    """JAX, PyTorch and a plain process by one task into a store, compressed where zstd is there; back by one task."""
    subjects = t.start([("jax1", "jax"), ("torch1", "torch"), ("plain1", "plain")], mib=t.sizes.image // 8)
    packed = shutil.which("zstd") is not None
    journey = Journey(t, [alone(one) for one in subjects], store=images.place(t))
    journey.there(compress="zstd" if packed else "none")
    journey.back()
    journey.remove()
    t.fact("compress", "zstd" if packed else "none: there is no zstd")


# Two GPUs


def where(t: Trial, one: Subject) -> List[int]:
    """The GPUs that NVML shows it on."""
    reading = nvml.read(t.spec.nvml)
    if reading is None:
        raise Stop("NVML gave no answer in 30 s")
    return [int(gpu.index) for gpu in reading.gpus if one.pid in gpu.pids]


def swapped(t: Trial) -> Dict[str, str]:
    """A map of every GPU: the first two swapped, as has to be where the host has more."""
    found = {gpu.uuid: gpu.uuid for gpu in t.spec.gpus}
    first, second = t.spec.gpus[0].uuid, t.spec.gpus[1].uuid
    found[first], found[second] = second, first
    return found


@test("image/device-map-auto", requires=["criu", "gpus>=2"], seconds=SECONDS)
def device_map_auto(t: Trial) -> None:
    """Its GPU is full by now: refused as it is; with device_map auto it comes back on the other one."""
    one = t.one("plain", mib=t.sizes.image, gpu=t.last_gpu)
    path = images.place(t, "moved")
    journey = Journey(t, [alone(one)], path=path)
    journey.there()
    with t.gpu_filled(t.last_gpu, t.sizes.image // 2), t.gpu_shared(0):
        plain = plays.image_task("restored", t.spec, path=path)
        for what, check in (("check mode", True), ("run", False)):
            (refused,) = images.play(t, f"restored without a map, {what}", [plain], check=check)
            t.expect(refused.failed and not refused.changed, f"{what}: refused", result=refused.result)
            found = [finding.get("id") for finding in refused.result.get("findings") or []]
            t.expect("vram_short" in found, f"{what}: the finding is vram_short", findings=found, msg=refused.message)
            t.expect(not images.seen([one.pid]), f"{what}: nothing has been started", left=images.seen([one.pid]))
        t.say(f"refused without a map: {refused.message}")
        journey.back(whole=False, device_map="auto")
        t.expect(where(t, one) == [0], "it is on the other GPU", where=where(t, one))
        t.say(f"was on GPU {t.last_gpu}, is on GPU {where(t, one)}")
    t.whole([one])
    t.nothing_left([one])
    journey.remove()


@test("image/device-map", requires=["criu", "gpus>=2"], framework="torch", seconds=SECONDS)
def device_map(t: Trial) -> None:
    """PyTorch on one GPU, restored on the other by a map; then once more to disk, and back to the first."""
    one = t.one("torch", "torch1", mib=t.sizes.image)
    path = images.place(t, "mapped")
    with t.gpu_shared(0), t.gpu_shared(1):
        for what, there in (("there", [1]), ("and back", [0])):
            journey = Journey(t, [alone(one)], what=f"{one.name} {what}", path=path)
            journey.there()
            journey.back(device_map=swapped(t))
            t.expect(where(t, one) == there, f"{what}: it is on GPU {there}", where=where(t, one))
    journey.remove()


@test("image/both-gpus", requires=["criu", "gpus>=2"], seconds=SECONDS)
def both_gpus(t: Trial) -> None:
    """A process that uses two GPUs, restored with the two swapped."""
    with t.gpu_shared(0), t.gpu_shared(1):
        one = t.one("multi_gpu", "both", mib=t.sizes.image // 2)
        before = where(t, one)
        t.expect(before == [0, 1], "it uses both", where=before)
        journey = Journey(t, [alone(one)], path=images.place(t, "both"))
        journey.there()
        journey.back(device_map=swapped(t))
        t.expect(where(t, one) == [0, 1], "it uses both", where=where(t, one))
    journey.remove()


def _parent(t: Trial, wanted: List[Tuple[str, str]], mib: int) -> Tree:
    """Ready, with checksums remembered. wanted: (name, kind) of its CUDA children."""
    plan: List[Dict[str, Any]] = []
    for name, kind in wanted:
        real = kind in FRAMEWORKS and not t.spec.stand_ins
        visible = {"CUDA_VISIBLE_DEVICES": framework_environment(0)["CUDA_VISIBLE_DEVICES"]} if real else {}
        argv = command(t.spec, t.work, name, kind, mib)
        plan.append({"argv": argv, "stderr": str(t.work / f"{name}.stderr"), "env": visible})
    out = t.work / "parent"
    given = t.work / "parent.plan"
    given.write_text(json.dumps(plan))
    with t.gpu_shared(), open(t.work / "parent.stderr", "wb") as log:
        parent = subprocess.Popen(
            [t.spec.python, str(PARENT), str(out), str(given)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=framework_environment(0) if not t.spec.stand_ins else dict(os.environ),
            cwd="/",
            start_new_session=True,
        )
        parent.returncode = 0  # its status is read with waitid
        listed = Path(f"{out}.children")
        if not images.wait_for(listed.exists, t.sizes.ready):
            raise Stop(f"the parent started nothing: {(t.work / 'parent.stderr').read_text()[-500:]}")
        *pids, counting = json.loads(listed.read_text())
        subjects = []
        for (name, kind), pid in zip(wanted, pids, strict=True):
            load = workload.Workload(name, pid, t.work / name, mib)
            load.wait_ready(t.sizes.ready)
            subjects.append(t.adopt(load, kind))
    t.note("started", parent=parent.pid, processes={one.name: [one.pid, one.kind] for one in subjects})
    t.remember(subjects)
    return Tree("tree", parent.pid, subjects, [counting])
