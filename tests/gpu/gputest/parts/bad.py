# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input: a clear error before anything changes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

from conform import nvml, proc

from .. import judge
from ..registry import test
from ..subject import Subject, look
from ..trial import NotApplicableError, Trial

NS_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
NOBODY = "GPU-00000000-0000-0000-0000-000000000000"


def _refuse(t: Trial, subjects: List[Subject], cases: List[Tuple[str, Dict[str, Any], List[str]]]) -> None:
    """(title, arguments, words of the message). All in one play, in check mode and for real."""
    before = [one.look() for one in subjects]
    tasks = []
    for title, arguments, _words in cases:
        base = {**t.task("checkpointed", subjects), "name": title}
        module = next(key for key in base if key != "name")
        given = {**base[module], **arguments}
        base[module] = {key: value for key, value in given.items() if value is not None}
        tasks += [{**base, "check_mode": True}, base]
    done = t.play("bad input", tasks)
    for index, (title, _arguments, words) in enumerate(cases):
        for how, one in zip(("check mode", "run"), done.results[2 * index : 2 * index + 2], strict=False):
            ok = one.status == "failed" and not one.changed
            t.expect(ok, f"{title}, {how}: refused", status=one.status, result=judge.slim(one.result))
            missing = judge.lacks(one.message.lower(), [word.lower() for word in words])
            t.expect(not missing, f"{title}, {how}: said clearly", missing=missing, msg=one.message)
            traceback = "Traceback" in one.message or "Traceback" in str(one.result.get("module_stderr", ""))
            t.expect(not traceback, f"{title}, {how}: no traceback", result=judge.slim(one.result))
        t.say(f"{title}: {done.results[2 * index + 1].message}")
    t.unchanged(subjects, before, "after bad input")
    t.whole(subjects)
    t.nothing_left(subjects)


@test("bad/input")
def bad_input(t: Trial) -> None:
    """PIDs that are none, options that are none."""
    one = t.one("plain")
    pid = one.pid
    dead = subprocess.Popen(["true"])
    dead.wait()
    zombie = subprocess.Popen(["true"])
    time.sleep(0.3)
    thread = next(tid for tid in proc.threads_of(pid) if tid != pid)
    cases: List[Tuple[str, Dict[str, Any], List[str]]] = [
        ("text", {"pids": [pid, "abc"]}, ["abc"]),
        ("a number and more", {"pids": [pid, f"{pid} x"]}, [f"{pid} x"]),
        ("negative", {"pids": [pid, -pid]}, [f"-{pid}"]),
        ("zero", {"pids": [pid, 0]}, ["0"]),
        ("bool", {"pids": [pid, True]}, ["true"]),
        ("a thread id", {"pids": [thread]}, [str(thread), "thread"]),
        ("dead", {"pids": [pid, dead.pid]}, [str(dead.pid), "no process|not exist|no such process|is gone|ended"]),
        ("zombie", {"pids": [pid, zombie.pid]}, [str(zombie.pid), "zombie"]),
        ("its own ancestor", {"pids": [pid, os.getpid()]}, [str(os.getpid()), "ancestor|runs this module"]),
        ("PID 1", {"pids": [pid, 1]}, ["1"]),
        ("twice", {"pids": [pid, pid]}, [str(pid), "twice|more than once|duplicate"]),
        ("none at all", {"pids": []}, ["pids"]),
        ("neither pids nor select", {"pids": None}, ["pids", "select"]),
        ("pids and select", {"select": {"all": True}}, ["pids", "select"]),
        ("unknown state", {"state": "frozen"}, ["frozen"]),
        ("unknown allow", {"allow": ["uvm_manged"]}, ["uvm_manged", "uvm_managed"]),
        ("unknown GPU in select", {"pids": None, "select": {"gpus": ["99"]}}, ["99"]),
        ("bad expression in select", {"pids": None, "select": {"command": "("}}, ["("]),
        ("unknown user in select", {"pids": None, "select": {"users": ["no-such-user"]}}, ["no-such-user"]),
        ("negative timeout", {"lock_timeout": -1}, ["lock_timeout"]),
    ]
    _refuse(t, [one], cases)
    zombie.wait()


@test("bad/device-map")
def device_map(t: Trial) -> None:
    """Maps that name no GPU, one twice, or not every one; with the process suspended, which it stays."""
    one = t.one("plain")
    first = t.spec.gpus[0].uuid
    cases: List[Tuple[str, Dict[str, Any], List[str]]] = [
        ("unknown GPU", {"state": "running", "device_map": {first: NOBODY}}, [NOBODY]),
        ("no GPU", {"state": "running", "device_map": {"gpu zero": first}}, ["gpu zero"]),
        ("text", {"state": "running", "device_map": "somewhere"}, ["somewhere", "auto"]),
    ]
    if len(t.spec.gpus) > 1:
        second = t.spec.gpus[1].uuid
        cases += [
            ("a map that misses a GPU", {"state": "running", "device_map": {first: first}}, [second]),
            ("a GPU twice", {"state": "running", "device_map": {first: second, second: second}}, [second]),
        ]
    done = t.module("suspend", "checkpointed", [one])
    t.reached("suspend", done, "checkpointed", [one], changed=True)
    before = [one.look()]
    tasks = [t.task("running", [one], device_map=arguments["device_map"]) for _title, arguments, _words in cases]
    results = t.play("bad maps", tasks).results
    for (title, _arguments, words), result in zip(cases, results, strict=False):
        t.expect(result.status == "failed" and not result.changed, f"{title}: refused", result=result.result)
        missing = judge.lacks(result.message, words)
        t.expect(not missing, f"{title}: said clearly", missing=missing, msg=result.message)
        t.say(f"{title}: {result.message}")
    t.unchanged([one], before, "after bad maps")
    swap = {gpu.uuid: gpu.uuid for gpu in t.spec.gpus}
    if len(t.spec.gpus) > 1:
        swap[first], swap[t.spec.gpus[1].uuid] = t.spec.gpus[1].uuid, first
    with t.gpu_shared(0), t.gpu_shared(t.last_gpu):
        done = t.module("resume with a good map", "running", [one], device_map=swap)
    t.reached("resume with a good map", done, "running", [one], changed=True)
    reading = nvml.read(t.spec.nvml)
    where = [] if reading is None else [gpu.index for gpu in reading.gpus if one.pid in gpu.pids]
    t.expect(where == [min(1, len(t.spec.gpus) - 1)], "it is where the map says", where=where)
    t.whole([one])
    t.nothing_left([one])


@test("bad/reused-pid")
def reused_pid(t: Trial) -> None:
    """A suspended process was killed, and its PID is another process now: that one is never touched."""
    one = t.one("plain")
    done = t.module("suspend", "checkpointed", [one])
    t.reached("suspend", done, "checkpointed", [one], changed=True)
    one.signal(signal.SIGKILL)
    one.wait_death(10)
    one.load.reap()
    time.sleep(1)
    stranger = _with_pid(one.pid)
    try:
        was = look(stranger.pid).short()
        done = t.module("resume", "running", [one])
        t.expect(done.status == "failed" and not done.changed, "refused", result=done.result)
        missing = judge.lacks(done.message, [str(one.pid)])
        t.expect(not missing, "the message names the PID", msg=done.message)
        t.expect(look(stranger.pid).short()["states"] == was["states"], "the new process was left alone")
        t.say(done.message)
    finally:
        stranger.kill()
        stranger.wait()


def _with_pid(pid: int) -> Any:
    """A process that gets this PID, which is free."""
    for _attempt in range(100):
        try:
            NS_LAST_PID.write_text(str(pid - 1))
        except OSError as error:
            raise NotApplicableError(f"{NS_LAST_PID}: {error.strerror}") from None
        process = subprocess.Popen(["sleep", "120"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    raise NotApplicableError(f"PID {pid} could not be had again")
