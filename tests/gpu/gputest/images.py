# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Process trees to disk and back through criu_image: what is asked of it each time, and what must be true then."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from conform import proc

from . import judge, plays
from .plays import TaskResult
from .subject import Subject
from .trial import Trial


@dataclass
class Tree:
    """root: its PID. cuda: its members that use CUDA. others: PIDs that are known to be in it as well."""

    name: str
    root: int
    cuda: List[Subject]
    others: Sequence[int] = ()

    @property
    def known(self) -> List[int]:
        return sorted({self.root, *(one.pid for one in self.cuda), *self.others})


def alone(one: Subject) -> Tree:
    return Tree(one.name, one.pid, [one])


class Reaper:
    """Reaps what a dump ends, as init does with a service: a PID that a zombie holds is not free. Only in the sessions
    of these trees: nothing else is this thread's to reap."""

    def __init__(self, roots: Sequence[int]) -> None:
        self._sessions = {os.getsid(pid) for pid in roots}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while not self._over.wait(0.01):
            for pid in _children():
                state, session = _state_and_session(pid)
                if state == "Z" and session in self._sessions:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)

    def __enter__(self) -> Reaper:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()


def _children() -> List[int]:
    """Of every thread of this process."""
    found: List[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def _state_and_session(pid: int) -> Any:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", 0
    return words[0], int(words[3])


def place(t: Trial, name: str = "") -> str:
    """Where the images of a test go; removed behind it, also where it is stopped."""
    base = t.home / "images" / t.name.replace("/", "-")
    if not t.undo:
        t.undo.append(lambda: shutil.rmtree(base, ignore_errors=True))
    return str(base / name) if name else str(base)


def patience(t: Trial) -> float:
    return t.sizes.patience * 2 + t.sizes.image * 4 / t.sizes.rate


def seen(pids: Sequence[int]) -> Dict[int, str]:
    """Those that are there, zombies included, and their state."""
    return {pid: str(proc.state_of(pid)) for pid in pids if proc.state_of(pid)}


def ok(t: Trial, what: str, done: TaskResult, changed: bool) -> List[Dict[str, Any]]:
    """What follows stands on it. Returns its images."""
    t.must(done.status == "ok", f"{what}: ok", status=done.status, msg=done.message)
    t.expect(done.changed == changed, f"{what}: changed is {changed}", changed=done.changed)
    return done.images


def play(t: Trial, what: str, tasks: List[Dict[str, Any]], *, check: bool = False) -> List[TaskResult]:
    return t.play(what, tasks, check=check, seconds=patience(t)).results


def info(**where: Any) -> Dict[str, Any]:
    return {plays.IMAGE_INFO: {"verify": "full", **where}}


class Journey:
    """Trees to disk and back. where: path, or store, of criu_image."""

    def __init__(self, t: Trial, trees: Sequence[Tree], what: str = "", **where: str) -> None:
        self.t = t
        self.trees = list(trees)
        self.cuda = [one for tree in trees for one in tree.cuda]
        self.known = sorted({pid for tree in trees for pid in tree.known})
        self.where = where
        self.what = what
        self.made: Dict[int, Dict[str, Any]] = {}
        self.own: Dict[str, Optional[float]] = {}
        self.parents = {pid: proc.snapshot(pid).parent for tree in trees for pid in tree.known if pid != tree.root}
        self.counters: Dict[int, Optional[int]] = {}

    def there(self, **more: Any) -> None:
        """To disk: in check mode, for real, and again. Nothing of the trees is left then."""
        t = self.t
        given = {"pids": [tree.root for tree in self.trees], "leave_running": False, **self.where, **more}
        if "path" in self.where:
            given["pid"] = given.pop("pids")[0]
        wanted = plays.image_task("present", t.spec, **given)
        parked = any(one.look().parked for one in self.cuda)
        before = [one.look() for one in self.cuda]
        (foretold,) = play(t, "present: check", [wanted], check=True)
        ok(t, "present, check mode", foretold, True)
        t.unchanged(self.cuda, before, "after check mode of present")
        if not parked:
            t.expect(all(one.moves() for one in self.cuda), "they run on after check mode")
        with Reaper([tree.root for tree in self.trees]):
            done, again, listed = play(t, "present", [wanted, wanted, info(**self.where)])
        images = ok(t, "present", done, True)
        wrong = judge.image_differences(foretold.result, done.result)
        t.expect(not wrong, "present: check mode foretold it", differences=wrong)
        ok(t, "present again", again, False)
        self.counters = {one.pid: one.counter() for one in self.cuda}
        self.made = {int(one["pid"]): one for one in images}
        self.own["present"] = done.result.get("seconds")
        t.must(sorted(self.made) == sorted(tree.root for tree in self.trees), "each has its image", images=images)
        for tree in self.trees:
            pids = self.made[tree.root]["pids"]
            t.expect(set(pids) >= set(tree.known), f"every process of {tree.name} is in it", pids=pids, of=tree.known)
            held = sum(one.mib << 20 for one in tree.cuda)
            t.expect(self.made[tree.root]["device_bytes"] >= held, "all GPU memory is in it", held=held)
        left = seen([pid for one in images for pid in one["pids"]])
        t.expect(not left, "every process has ended", left=left)
        t.expect(not t.listed(self.known), "NVML lists none of them", listed=t.listed(self.known))
        self._listed(listed, spent=False)

    def back(self, *, whole: bool = True, **more: Any) -> None:
        """From disk: in check mode, for real, and again. They are the same processes, and whole."""
        t = self.t
        wanted = plays.image_task("restored", t.spec, **self.where, **more)
        (foretold,) = play(t, "restored: check", [wanted], check=True)
        ok(t, "restored, check mode", foretold, True)
        t.expect(not seen(self.known), "nothing lives after check mode", left=seen(self.known))
        done, again, listed = play(t, "restored", [wanted, wanted, info(**self.where)])
        images = ok(t, "restored", done, True)
        wrong = judge.image_differences(foretold.result, done.result)
        t.expect(not wrong, "restored: check mode foretold it", differences=wrong)
        ok(t, "restored again", again, False)
        self.own["restored"] = done.result.get("seconds")
        for one in images:
            same = sorted(one["pids"]) == sorted(self.made[int(one["pid"])]["pids"])
            t.expect(same, f"{one['name']}: the same PIDs", before=self.made[int(one["pid"])]["pids"], now=one["pids"])
        parents = {pid: proc.snapshot(pid).parent for pid in self.parents}
        t.expect(parents == self.parents, "each has its parent", before=self.parents, now=parents)
        for subject in self.cuda:
            was, now = self.counters[subject.pid], subject.counter()
            gone_on = was is not None and now is not None and now >= was
            t.expect(gone_on, f"{subject.name}: its counter goes on from where it was", before=was, now=now)
        self._listed(listed, spent=True)
        self._record(images)
        if whole:
            t.whole(self.cuda)
            t.nothing_left(self.cuda)

    def remove(self) -> None:
        """The images, which are spent."""
        t = self.t
        how = dict(self.where) if "path" in self.where else {**self.where, "keep": 0}
        wanted = plays.image_task("absent", t.spec, **how)
        done, again = play(t, "absent", [wanted, wanted])
        ok(t, "absent", done, True)
        ok(t, "absent again", again, False)
        left = [path for path in (one["path"] for one in self.made.values()) if os.path.lexists(path)]
        t.expect(not left, "nothing of them is left", left=left)

    def whole_journey(self) -> None:
        self.there()
        self.back()
        self.remove()

    def _listed(self, done: TaskResult, spent: bool) -> None:
        """criu_image_info with verify: full."""
        t = self.t
        t.expect(done.status == "ok" and len(done.images) == len(self.made), "they are listed", msg=done.message)
        for one in done.images:
            t.expect(one.get("problems") == [], f"{one.get('name')}: every byte is right", problems=one.get("problems"))
            t.expect(one.get("spent") is spent, f"{one.get('name')}: spent is {spent}", state=one.get("state"))

    def _record(self, images: Sequence[Dict[str, Any]]) -> None:
        rows = []
        for one in images:
            made = self.made[int(one["pid"])]
            rows.append(
                {
                    "what": self.what or made["name"],
                    "processes": len(made["pids"]),
                    "device_bytes": made["device_bytes"],
                    "bytes": made["bytes"],
                    "present": {"module": self.own["present"], "steps": made["seconds"]},
                    "restored": {"module": self.own["restored"], "steps": one["seconds"]},
                    "criu_options": made["criu_options"],
                    "warnings": [*made["warnings"], *one["warnings"]],
                }
            )
        self.t.fact("images", [*self.t.record["facts"].get("images", []), *rows])
        for row in rows:
            self.t.say(
                f"{row['what']}: {row['device_bytes'] >> 20} MiB of GPU memory, image of {row['bytes'] >> 20} MiB, "
                f"to disk in {self.own['present']} s, back in {self.own['restored']} s"
            )


def wait_for(true: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
