# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every gate that a machine of this size can show, against the real thing: refused, and nothing has changed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

from conform import hold, proc, workload
from conform.child import Child

from .. import judge
from ..registry import test
from ..subject import MIB, Look, Subject, look
from ..trial import Stop, Trial


def refused(
    t: Trial,
    state: str,
    subjects: Sequence[Subject],
    hazard: str,
    words: Sequence[str] = (),
    **more: Any,
) -> None:
    """Check mode and the real run both refuse, name the process and the hazard, and leave everything as it was."""
    before: List[Look] = [one.look() for one in subjects]
    wanted = t.task(state, subjects, **more)
    done = t.play(f"{state}, {hazard}", [{**wanted, "check_mode": True}, wanted])
    # Bounds the module's own time: a driver call on a stopped process would never return.
    t.expect(max(done.module_seconds, default=0) < 30, "refused at once", seconds=done.module_seconds)
    for what, one in zip(("check mode", "run"), done.results, strict=False):
        t.expect(one.status == "failed", f"{what} refuses", status=one.status, result=judge.slim(one.result))
        t.expect(not one.changed, f"{what}: changed is false")
        found = [finding.get("id") for finding in one.result.get("findings") or []]
        t.expect(hazard in found, f"{what}: the finding is {hazard}", findings=found, msg=one.message)
        missing = judge.lacks(one.message, words)
        t.expect(not missing, f"{what}: the message says it", missing=missing, msg=one.message)
    t.unchanged(subjects, before, "after the refusal")
    t.say(f"refused: {done.results[-1].message}")
    if state == "checkpointed":
        t.nothing_left(subjects, "after the refusal")


def cycle_once(t: Trial, subjects: Sequence[Subject], **more: Any) -> None:
    """Suspend and resume with nothing in the way any more: the refusal came before the first call."""
    done = t.module("suspend", "checkpointed", subjects, **more)
    t.reached("suspend", done, "checkpointed", subjects, changed=True)
    done = t.module("resume", "running", subjects, **more)
    t.reached("resume", done, "running", subjects, changed=True)


def pid_words(*subjects: Subject) -> List[str]:
    return [str(one.pid) for one in subjects]


@test("gates/vram_short", seconds=240)
def vram_short(t: Trial) -> None:
    """A GPU that somebody else has filled: no resume, and the process is still whole once there is room."""
    gpu = t.last_gpu
    one = t.one("plain", mib=t.sizes.huge, gpu=gpu)
    done = t.module("suspend", "checkpointed", [one])
    t.reached("suspend", done, "checkpointed", [one], changed=True)
    with t.gpu_filled(gpu, t.sizes.huge // 2):
        refused(t, "running", [one], "vram_short", pid_words(one))
        t.expect(one.look().parked, "still parked")
    done = t.module("resume", "running", [one])
    t.reached("resume", done, "running", [one], changed=True)
    t.whole([one])
    t.nothing_left([one])


@test("gates/uvm_managed")
def uvm_managed(t: Trial) -> None:
    """Managed memory."""
    one = t.one("managed")
    refused(t, "checkpointed", [one], "uvm_managed", pid_words(one))
    t.whole([one])


@test("gates/nccl_communicator", requires=["gpus>=2", "nccl"])
def nccl_communicator(t: Trial) -> None:
    """Two ranks with a live communicator."""
    with t.gpu_shared(1):
        first = t.one("nccl", "rank0", options=["--ranks", "2"])
        second = t.adopt(_part(t, first, ".rank1", "rank1"), "nccl")
    t.remember([second])
    refused(t, "checkpointed", [first, second], "nccl_communicator", ["world|rank"])
    refused(t, "checkpointed", [first], "nccl_communicator", pid_words(first))
    t.whole([first, second])


@test("gates/stopped_or_frozen")
def stopped(t: Trial) -> None:
    """Stopped by SIGSTOP: refused at once; with consent it is suspended, resumed, and left stopped."""
    one = t.one("plain")
    one.signal(signal.SIGSTOP)
    _until(lambda: one.look().stopped, 5, "stopped")
    refused(t, "checkpointed", [one], "stopped_or_frozen", [*pid_words(one), "allow: [stopped]|stopped"])
    t.expect(one.look().stopped, "still stopped")
    cycle_once(t, [one], allow=["stopped"])
    t.expect(one.look().stopped, "left stopped, as it was found", seen=one.look().short())
    one.signal(signal.SIGCONT)
    t.whole([one])
    t.nothing_left([one])


@test("gates/frozen", requires=["freezer_cgroup"])
def frozen(t: Trial) -> None:
    """In a frozen control group: refused at once."""
    one = t.one("plain")
    group = t.group("freezer")
    group.add(one.pid)
    group.freeze(True)
    refused(t, "checkpointed", [one], "stopped_or_frozen", ["frozen"])
    group.freeze(False)
    t.whole([one])


@test("gates/traced")
def traced(t: Trial) -> None:
    """A debugger is attached."""
    one = t.one("plain")
    debugger = Child(lambda: hold.watch(one.pid, 120))
    try:
        _until(lambda: debugger.pid in one.look().tracers, 10, "traced")
        refused(t, "checkpointed", [one], "traced", [str(debugger.pid)])
    finally:
        debugger.kill()
    t.whole([one])


@test("gates/cgroup_memory", requires=["memory_cgroup"])
def cgroup_memory(t: Trial) -> None:
    """A control group too small for the device memory: the kernel would kill the workload."""
    one = t.one("plain", mib=t.sizes.big)
    group = t.group("memory")
    group.add(one.pid)
    group.limit(one.mib * MIB // 2)
    t.fact("cgroup", group.controller.version)
    refused(t, "checkpointed", [one], "cgroup_memory", pid_words(one))
    group.limit(one.mib * MIB * 2 + 4096 * MIB)
    cycle_once(t, [one])
    t.whole([one])
    t.nothing_left([one])


@test("gates/host_memory")
def host_memory(t: Trial) -> None:
    """RLIMIT_DATA below the device memory. The driver would refuse, and never checkpoint this process again: that it
    does afterwards shows that it was not asked."""
    one = t.one("plain", mib=t.sizes.big)
    soft, hard = resource.prlimit(one.pid, resource.RLIMIT_DATA)
    status = proc.parse_status(Path(f"/proc/{one.pid}/status").read_text())
    bound = int(status["VmData"].split()[0]) * 1024 + one.mib * MIB // 2
    resource.prlimit(one.pid, resource.RLIMIT_DATA, (bound, hard))
    refused(t, "checkpointed", [one], "host_memory", pid_words(one))
    resource.prlimit(one.pid, resource.RLIMIT_DATA, (soft, hard))
    cycle_once(t, [one])
    t.whole([one])
    t.nothing_left([one])


@test("gates/mps_client", requires=["mps"])
def mps_client(t: Trial) -> None:
    """A client of the MPS daemon."""
    with _mps(t) as env:
        one = t.one("mps", env=env)
        try:
            refused(t, "checkpointed", [one], "mps_client", pid_words(one))
            t.whole([one])
        finally:
            one.signal(signal.SIGTERM)
            one.wait_death(10)


@test("gates/vmm_export")
def vmm_export(t: Trial) -> None:
    """Memory exported to a descriptor, which stays on the GPU."""
    one = t.one("vmm_export")
    refused(t, "checkpointed", [one], "vmm_export", pid_words(one))
    t.whole([one])


@test("gates/not_cuda")
def not_cuda(t: Trial) -> None:
    """A process without CUDA, beside one with it: nothing is done to either."""
    one = t.one("plain")
    stranger = t.other(["sleep", "300"])
    before = [one.look()]
    wanted: Dict[str, Any] = t.task("checkpointed", [one])
    next(iter(wanted.values()))["pids"] = [one.pid, stranger]
    done = t.play("checkpointed, not_cuda", [{**wanted, "check_mode": True}, wanted])
    for what, result in zip(("check mode", "run"), done.results, strict=False):
        t.expect(result.status == "failed" and not result.changed, f"{what} refuses", result=result.result)
        missing = judge.lacks(result.message, ["no CUDA|not a CUDA|without CUDA|no CUDA process", str(stranger)])
        t.expect(not missing, f"{what}: the message names it", missing=missing, msg=result.message)
    t.unchanged([one], before, "after the refusal")
    t.expect(look(stranger).life == "alive", "the other process lives")
    t.say(f"refused: {done.results[-1].message}")
    t.whole([one])
    t.nothing_left([one])


@contextlib.contextmanager
def _mps(t: Trial) -> Iterator[Dict[str, str]]:
    """The environment of a client, with a daemon of the test's own."""
    pipe, log = t.work / "mps", t.work / "mps-log"
    pipe.mkdir(mode=0o777)
    log.mkdir(mode=0o777)
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
    try:
        yield env
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["nvidia-cuda-mps-control"],
                input=b"quit\n",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **env},
                timeout=15,
                check=False,
            )


def _part(t: Trial, of: Subject, suffix: str, name: str) -> Any:
    """A further process of a workload, by the files that it writes."""
    out = of.load.beside(suffix)
    pidfile = out.with_name(out.name + ".pid")
    _until(lambda: pidfile.exists() and pidfile.read_text().strip() != "", t.sizes.ready, f"{name} has a PID")
    load = workload.Workload(name, int(pidfile.read_text()), out, of.mib, of.load.gpu)
    load.wait_ready(t.sizes.ready)
    return load


def _until(true: Any, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise Stop(f"not in {seconds:g} s: {what}")
        time.sleep(0.02)
