# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loaded by every Python of a test host: kills what /run/faults.json names when a worker has journalled a step.

{"step": NAME, "victim": "worker" | "module" | "session" | "criu" | "target" | "disk", "delay": SECONDS}: at the first
such step, or that long into it. The victim "target" is the process with this "pid". A step of an image has "image:"
before its name. The victim "disk" is filled, but for "keep" bytes. What was done is written to /run/faults.done. The
code under test knows nothing of this.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

PLAN = Path("/run/faults.json")
DONE = Path("/run/faults.done")
FILLER = Path("/var/lib/filler")
_UTILS = "ansible_collections.gpufleet.checkpoint.plugins.module_utils"
# The class and method that journal a step, and what is before the step's name here.
TARGETS = {f"{_UTILS}._worker": ("Worker", "_step", ""), f"{_UTILS}._image_steps": ("Steps", "begin", "image:")}
MODULE = os.getpid()


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
        found.append(pid)
    return found


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


# Read while the module lives: a worker has lost its ancestors.
SESSION = [pid for pid in ancestors(MODULE) if name_of(pid) == "sshd-session"] if PLAN.exists() else []


def fill(keep: int) -> None:
    """/var; what is taken last are its smallest pieces."""
    with FILLER.open("wb") as filler:
        at = 0
        piece = 1 << 40
        while piece >= 4096:
            room = os.statvfs(FILLER.parent)
            piece = min(piece, room.f_bfree * room.f_frsize - keep)
            try:
                os.posix_fallocate(filler.fileno(), at, max(piece, 1))
                at += piece
            except OSError:
                piece //= 2


def kill(plan: dict[str, Any]) -> None:
    if plan["victim"] == "disk":
        fill(plan["keep"])
        DONE.write_text(json.dumps({"plan": plan}))
        return
    target = [int(plan["pid"])] if plan["victim"] == "target" else []
    known = {"worker": [os.getpid()], "module": [MODULE], "session": SESSION, "criu": [], "target": target}
    victims: list[int] = known[plan["victim"]]
    DONE.write_text(json.dumps({"plan": plan, "victims": victims}))
    if not plan["delay"]:
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        return
    # A grandchild, so that the worker has no child that it does not know.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            deed = f"kill -9 {' '.join(map(str, victims))}" if victims else "pkill -9 -x criu"
            os.execv("/bin/sh", ["sh", "-c", f"sleep {plan['delay']}; {deed}"])
        os._exit(0)
    os.wait()


def reached(name: str) -> None:
    try:
        plan = json.loads(PLAN.read_text())
        if plan["step"] != name:
            return
        PLAN.unlink()  # once
    except FileNotFoundError:
        return
    kill(plan)


def wrap(module: Any, target: tuple[str, str, str]) -> None:
    class_name, method, prefix = target
    owner = getattr(module, class_name)
    step = getattr(owner, method)

    def stepped(self: object, name: str, *more: object) -> None:
        step(self, name, *more)
        reached(prefix + name)

    setattr(owner, method, stepped)


class Loader:
    def __init__(self, real: Any, target: tuple[str, str, str]) -> None:
        self.real = real
        self.target = target

    def create_module(self, spec: Any) -> Any:
        return self.real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.real.exec_module(module)
        wrap(module, self.target)


class Finder:
    """Finds nothing itself; what the others find for TARGETS is changed once it is loaded."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name not in TARGETS:
            return None
        for finder in sys.meta_path:
            spec: Any = None if finder is Finder else finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = Loader(spec.loader, TARGETS[name])
                return spec
        return None


if PLAN.exists():
    sys.meta_path.insert(0, Finder)
