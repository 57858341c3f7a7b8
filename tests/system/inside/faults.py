# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loaded by every Python of a test host: does what /run/faults.json says when a step has been journalled.

{"point": "process:lock" | "image:dump" | "phase:claimed", "script": SH, "delay": SECONDS, "hold": bool,
 "clock": SECONDS}

script: run as root by a process that belongs to nobody here, with MODULE, WORKER, SESSION and OURS, PIDs, in its
environment; OURS is the process, or the root of the tree, whose step it is, and empty for a phase. Without a delay the
step is not begun before the script has ended; with one it is, and the script comes that much later.
hold: the step is not begun before /run/faults.go is there. clock: from here on this process sees the time that much
later. What was done is written to /run/faults.done. The code under test knows nothing of this.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

PLAN = Path("/run/faults.json")
DONE = Path("/run/faults.done")
ACTED = Path("/run/faults.acted")
GO = Path("/run/faults.go")
PATIENCE = 120
_UTILS = "ansible_collections.gpufleet.checkpoint.plugins.module_utils"
MODULE = os.getpid()


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


# Read while the module lives: a worker has lost its ancestors.
SESSION = [pid for pid in ancestors(MODULE) if name_of(pid) == "sshd-session"] if PLAN.exists() else []


def detach(script: str, ours: str) -> None:
    """A grandchild: a worker has no child that it does not know, and must not wait for one of its tracees."""
    told = {"MODULE": str(MODULE), "WORKER": str(os.getpid()), "SESSION": " ".join(map(str, SESSION)), "OURS": ours}
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(3, 4096)
            os.execve("/bin/sh", ["sh", "-c", script], {**os.environ, **told})
        os._exit(0)
    os.waitpid(child, 0)


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.005)


def act(plan: dict[str, Any], ours: str) -> None:
    DONE.write_text(json.dumps(plan))
    if plan["clock"]:
        real, later = time.time, plan["clock"]
        time.time = lambda: real() + later
    if plan["script"]:
        detach(f"sleep {plan['delay']}\n{plan['script']}\ntouch {ACTED}", ours)
        if not plan["delay"]:
            wait_for(ACTED)
    if plan["hold"]:
        wait_for(GO)


def reached(point: str, ours: str = "") -> None:
    try:
        plan = json.loads(PLAN.read_text())
        if plan["point"] != point:
            return
        PLAN.unlink()  # once, by whoever is first
    except FileNotFoundError:
        return
    act(plan, ours)


def after_each(owner: Any, method: str, prefix: str, of: Callable[[Any], int]) -> None:
    step = getattr(owner, method)

    def stepped(self: object, name: str, *more: object) -> None:
        step(self, name, *more)
        reached(prefix + name, str(of(self)))

    setattr(owner, method, stepped)


def after_a_phase(module: Any) -> None:
    """A phase is there once its transaction is over."""
    lock = module.Drains.lock
    written: list[str] = []

    def noting(method: Callable[..., Any], at: int) -> Callable[..., Any]:
        def noted(self: object, *given: Any, **named: Any) -> Any:
            found = method(self, *given, **named)
            written.append(named["phase"] if "phase" in named else given[at])
            return found

        return noted

    module.Change.open = noting(module.Change.open, 2)
    module.Change.reach = noting(module.Change.reach, 1)

    @contextmanager
    def locked(self: object) -> Iterator[Any]:
        with lock(self) as change:
            yield change
        while written:
            reached(f"phase:{written.pop()}")

    module.Drains.lock = locked


TARGETS: dict[str, Callable[[Any], None]] = {
    f"{_UTILS}._worker": lambda module: after_each(
        module.Worker, "_step", "process:", lambda worker: worker._job.identity.pid
    ),
    f"{_UTILS}._image_steps": lambda module: after_each(
        module.Steps, "begin", "image:", lambda steps: steps._job.root.pid
    ),
    f"{_UTILS}._drain_rows": after_a_phase,
}


class Loader:
    def __init__(self, real: Any, change: Callable[[Any], None]) -> None:
        self.real = real
        self.change = change

    def create_module(self, spec: Any) -> Any:
        return self.real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.real.exec_module(module)
        self.change(module)


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
