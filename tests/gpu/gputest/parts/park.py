# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A parked process that others disturb: it stays parked, or what was lost is found and mended by the next run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List

from conform import hold, proc, workload
from conform.child import Child

from ..registry import test
from ..subject import SCRIPTS, Look, Subject, cpu_ticks, framework_environment
from ..trial import Stop, Trial

FOREIGN = 1000

# Starts a job in a process group of its own and ends when told: the group is orphaned then, and because it has stopped
# members the kernel sends it SIGHUP and SIGCONT.
_SHELL = """
import os, signal, subprocess, sys
ignore = sys.argv[1] == "nohup"
job = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, preexec_fn=lambda: (
    os.setpgid(0, 0), ignore and signal.signal(signal.SIGHUP, signal.SIG_IGN)))
print(job.pid, flush=True)
signal.pause()
"""


def parked(t: Trial, subjects: List[Subject]) -> None:
    done = t.module("suspend", "checkpointed", subjects)
    t.reached("suspend", done, "checkpointed", subjects, changed=True)
    t.must(len(t.guards([one.pid for one in subjects])) == len(subjects), "each has a guard")


def resumed(t: Trial, subjects: List[Subject]) -> None:
    done = t.module("resume", "running", subjects)
    t.reached("resume", done, "running", subjects, changed=True)
    t.whole(subjects)
    t.nothing_left(subjects)


def still(t: Trial, one: Subject, before: Look, when: str, frozen: bool = False) -> None:
    time.sleep(1)
    now = one.look()
    t.expect(now.frozen if frozen else now.parked, f"{one.name} is parked {when}", seen=now.short())
    moved = [(was, its) for was, its in zip(before.at, now.at, strict=False) if was != its]
    same = not moved and len(before.at) == len(now.at) and all("running" not in its for _tid, its in now.at)
    t.expect(same, f"no thread of {one.name} has moved in its program {when}", moved=moved)
    # The kernel's work on its signals counts as its own.
    t.fact(f"CPU ticks of {one.name} {when}", now.cpu - before.cpu)


def foreign(one: Subject) -> None:
    for _number in range(FOREIGN):
        os.kill(one.pid, signal.SIGCONT)
        time.sleep(0.001)


@test("park/foreign-sigcont", framework="jax", seconds=240)
def foreign_sigcont(t: Trial) -> None:
    """1000 SIGCONTs from elsewhere to a parked JAX process."""
    one = t.one("jax", "jax1")
    parked(t, [one])
    before = one.look()
    foreign(one)
    still(t, one, before, f"after {FOREIGN} SIGCONTs")
    guards = t.guards([one.pid])
    t.expect(bool(guards), "its guard is still attached", guards=guards)
    t.fact("CPU seconds of the guard", cpu_ticks(guards[one.pid]) / os.sysconf("SC_CLK_TCK") if guards else None)
    again = t.module("suspend again", "checkpointed", [one])
    t.reached("suspend again", again, "checkpointed", [one], changed=False)
    resumed(t, [one])
    t.say(f"{FOREIGN} SIGCONTs: still parked")


@test("park/orphaned-group", framework="jax", seconds=240)
def orphaned_group(t: Trial) -> None:
    """The shell that started it ends: the kernel sends SIGHUP and SIGCONT to its process group."""
    with _from_shell(t, "nohup") as (one, shell):
        parked(t, [one])
        before = one.look()
        shell.kill()
        shell.wait()
        still(t, one, before, "after its group was orphaned")
        t.expect(bool(t.guards([one.pid])), "its guard is still attached")
        resumed(t, [one])
        t.say("orphaned process group: still parked")


@test("park/guard-lost", framework="jax", seconds=240)
def guard_lost(t: Trial) -> None:
    """The guard is killed: the process stays stopped, and the next run gives it another one."""
    one = t.one("jax", "jax1")
    parked(t, [one])
    before = one.look()
    guard = t.guards([one.pid])[one.pid]
    os.kill(guard, signal.SIGKILL)
    still(t, one, before, "after its guard was killed")
    t.expect(not t.guards([one.pid]), "nobody is attached")
    done = t.module("suspend again", "checkpointed", [one])
    t.expect(done.status == "ok", "the next run is ok", msg=done.message)
    t.expect(bool(t.guards([one.pid])), "the next run attaches another guard", result=done.process(one.pid))
    before = one.look()
    t.fact("the next run", {"changed": done.changed, "process": done.process(one.pid)})
    foreign(one)
    still(t, one, before, "after SIGCONTs to the new guard")
    os.kill(t.guards([one.pid])[one.pid], signal.SIGKILL)
    time.sleep(0.2)
    resumed(t, [one])
    t.say("guard killed twice: parked again by the next run, and resumed without a guard")


@test("park/debugger", seconds=240)
def debugger(t: Trial) -> None:
    """A debugger can't attach beside the guard; without one it can: the next run refuses, and works once it is gone."""
    one = t.one("polling", "polling1")
    parked(t, [one])
    before = one.look()
    guard = t.guards([one.pid])[one.pid]
    t.fact("attach beside the guard", _attach(one.pid))
    t.expect(one.look().tracers.count(guard) == len(one.look().tracers), "the guard holds every thread")
    os.kill(guard, signal.SIGKILL)
    time.sleep(0.2)
    held = Child(lambda: _hold(one.pid, 60))
    end = time.monotonic() + 10
    while held.pid not in one.look().tracers and time.monotonic() < end:
        time.sleep(0.02)
    t.must(held.pid in one.look().tracers, "a debugger is attached")
    done = t.module("resume under a debugger", "running", [one])
    t.expect(done.status == "failed", "refused while a debugger is attached", result=done.result)
    t.expect(str(held.pid) in done.message, "the message names the debugger", msg=done.message)
    t.say(done.message)
    held.kill()
    still(t, one, before, "after the debugger was gone")
    resumed(t, [one])


@test("park/end-while-parked")
def end_while_parked(t: Trial) -> None:
    """SIGKILL to a parked process: it ends, its guard goes, and the next run says that it is gone."""
    one = t.one("plain", "plain1")
    parked(t, [one])
    guard = t.guards([one.pid])[one.pid]
    one.signal(signal.SIGKILL)
    t.expect(one.wait_death(10) == "signal 9", "it ends", end=one.death())
    one.load.reap()
    end = time.monotonic() + 10
    while Path(f"/proc/{guard}").exists() and proc.state_of(guard) not in ("Z", "") and time.monotonic() < end:
        time.sleep(0.05)
    t.expect(proc.state_of(guard) in ("Z", ""), "its guard ends", state=proc.state_of(guard))
    done = t.module("resume", "running", [one])
    t.expect(done.status == "failed" and str(one.pid) in done.message, "the next run says so", msg=done.message)
    t.say(done.message)


def _hold(pid: int, seconds: float) -> None:
    """Seize every thread of a stopped process, and keep it so."""
    held = hold.Hold(pid, proc.threads_of(pid)[0], seconds)
    held.seize()
    time.sleep(seconds)


def _attach(pid: int) -> str:
    """What PTRACE_SEIZE gives."""

    def work() -> str:
        try:
            hold.Hold(pid, pid, 5).seize()
        except hold.HoldError as error:
            return str(error)
        return "attached"

    child = Child(work)
    if not child.wait(10):
        child.kill()
        return "no answer"
    return str(child.value)


@contextlib.contextmanager
def _from_shell(t: Trial, how: str) -> Any:
    """A JAX process in a process group of its own, in the session of something like a login shell."""
    script = t.work / "shell.py"
    script.write_text(_SHELL)
    name = "jax1"
    if t.spec.stand_ins:
        argv = [t.spec.workload, "--vram", str(t.sizes.small), "--out", str(t.work / name), "--kind", "polling"]
    else:
        argv = [t.spec.python, str(SCRIPTS / "jax_worker.py"), str(t.work / name), str(t.sizes.small)]
    env = dict(os.environ) if t.spec.stand_ins else framework_environment(0)
    with open(t.work / f"{name}.stderr", "wb") as log, t.gpu_shared():
        shell = subprocess.Popen(
            [sys.executable, str(script), how, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            cwd="/",
            start_new_session=True,
        )
        try:
            assert shell.stdout is not None
            pid = int(shell.stdout.readline())
            load = workload.Workload(name, pid, t.work / name, t.sizes.small)
            try:
                load.wait_ready(t.sizes.ready)
            except workload.NotReady as error:
                if load.life != "alive":
                    raise Stop(str(error)) from None
            one = t.adopt(load, "jax")
            t.remember([one])
        except BaseException:
            shell.kill()
            raise
    try:
        yield one, shell
    finally:
        if shell.poll() is None:
            shell.kill()
            shell.wait()
