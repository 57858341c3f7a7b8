# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in a test host, with the collection on its path: kills criu at one call after the other while it dumps
victim.c's two processes, and looks at them each time. They live on from one kill to the next.

usage: python3 criu_kill.py, with options as JSON on standard input: when ("before", "after", "later"), first, step,
both (the parent of criu, too), handler (of SIGTRAP). Prints what was seen as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import actions, lifeline, options, tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import task_state
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import tasks_of

PLACE = "/srv/kill"
IMAGE = f"{PLACE}/image"
COUNTS = [f"{PLACE}/count.{number}" for number in range(4)]
STATUS = ("SigBlk", "SigPnd", "ShdPnd", "SigIgn", "SigCgt", "TracerPid", "Seccomp")
# A wrapper in criu's place, since the collection gives it an environment of its own.
CRIU = f"""#!/bin/sh
. {PLACE}/plan
LD_PRELOAD={PLACE}/criu_kill.so exec criu "$@"
"""


def until(met: Callable[[], object], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            return False
        time.sleep(0.003)
    return True


def sizes() -> list[int]:
    return [os.path.getsize(name) if os.path.exists(name) else 0 for name in COUNTS]


def grown(before: list[int]) -> bool:
    return all(now > was + 1 for now, was in zip(sizes(), before, strict=True))


def facts(pid: int) -> dict[str, Any]:
    """What must be the same before and after."""
    maps = [line.split() for line in open(f"/proc/{pid}/maps")]
    threads = {}
    for tid in tasks_of(pid):
        status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/task/{tid}/status") if ":" in line)
        threads[tid] = [task_state(pid, tid), *(status[name].strip() for name in STATUS)]
    return {
        "mappings": [(*line[:2], *line[5:]) for line in maps],
        "descriptors": {name: os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")},
        "threads": threads,
    }


class Victim:
    """Its two processes."""

    def __init__(self, handler: bool) -> None:
        for name in COUNTS:
            if os.path.exists(name):
                os.unlink(name)
        words = [f"{PLACE}/victim", f"{PLACE}/count", *(["handler"] if handler else [])]
        self.log = open(f"{PLACE}/victim.log", "w+")
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True
        )
        assert until(lambda: min(sizes()) > 2)
        self.pids = [member.pid for member in self.tree().members]
        assert len(self.pids) == 2

    def tree(self) -> Tree:
        tree = read_tree(self.process.pid)
        assert tree is not None
        return tree

    def send(self, number: int) -> None:
        for pid in self.pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def stop(self) -> None:
        self.send(signal.SIGSTOP)
        assert until(lambda: all(task_state(pid, tid) == "T" for pid in self.pids for tid in tasks_of(pid)))

    def end(self) -> str:
        self.send(signal.SIGKILL)
        self.process.wait()
        self.log.seek(0)
        return self.log.read()


def changes(before: dict[int, dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for pid, was in before.items():
        try:
            now = facts(pid)
        except OSError as error:
            return [f"{pid}: {error}"]
        found.extend(f"{pid}: {name} {was[name]}, now {now[name]}" for name in was if now[name] != was[name])
    return found


def kill(victim: Victim, at: int, given: dict[str, Any]) -> dict[str, Any]:
    """One dump. problems: what is not as it was."""
    victim.stop()
    before = {pid: facts(pid) for pid in victim.pids}
    tree = victim.tree()
    shutil.rmtree(IMAGE, ignore_errors=True)
    os.mkdir(IMAGE, 0o700)
    with open(f"{PLACE}/plan", "w") as plan:
        both = " CRIU_KILL_BOTH=1" if given["both"] else ""
        plan.write(f"export CRIU_KILL_AT={at} CRIU_KILL_WHEN={given['when']} CRIU_KILL_COUNT={PLACE}/calls{both}\n")
    saved = lifeline.prepare(IMAGE, [member.identity for member in tree.members])
    chosen = options.choose(options.parse({}), tree, frozenset())
    argv = tool.dump_argv(tool.find(), victim.process.pid, IMAGE, chosen, "stopped")
    done = tool.run([f"{PLACE}/criu", *argv[1:]], f"{IMAGE}/{tool.DUMP_LOG}", dumps=True)
    hurt = sum([lifeline.put_back(one) for one in saved])
    if done.rc == 0:
        actions.put_right(IMAGE, saved)
    problems = changes(before)
    counted = sizes()
    victim.send(signal.SIGCONT)
    if not until(lambda: grown(counted) and victim.process.poll() is None, 5):
        problems.append(f"lost, {victim.process.poll()}: {counted}, now {sizes()}")
    return {"at": at, "rc": done.rc, "hurt": hurt, "problems": problems, "log": done.log[-300:] if problems else ""}


def traps(victim: Victim) -> list[str]:
    """Its own handler of SIGTRAP is there still."""
    victim.send(signal.SIGTRAP)
    names = [f"{PLACE}/count.4", f"{PLACE}/count.6"]
    return [] if until(lambda: all(os.path.getsize(name) == 1 for name in names)) else ["SIGTRAP does nothing"]


def main() -> None:
    given = json.load(sys.stdin)
    with open(f"{PLACE}/criu", "w") as wrapper:
        wrapper.write(CRIU)
    os.chmod(f"{PLACE}/criu", 0o755)
    victim = Victim(given["handler"])
    whole = kill(victim, 0, given)
    calls = int(open(f"{PLACE}/calls").read())
    results = []
    for at in range(given["first"], calls + 1, given["step"]):
        results.append(kill(victim, at, given))
        if results[-1]["problems"]:
            results[-1]["victim"] = victim.end()
            victim = Victim(given["handler"])
    again = kill(victim, 0, given)
    problems = traps(victim) if given["handler"] else []
    victim.end()
    print(json.dumps({"whole": whole, "calls": calls, "results": results, "again": again, "problems": problems}))


main()
