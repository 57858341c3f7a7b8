# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of many trees: what is there, what speaks against it, and one worker for each.

Whether a tree is dumped already is told by its lineage, not by its PID: that changes with a restore and a reboot.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_findings, _image_worker
from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_units as units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError, Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import fit, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import target as target_of
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.handoff import barred
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import SPENT, living
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.stillness import go_on
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Image
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tool import Criu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import Backend
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._engine import Engine, Failed, Refused
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id, read_machine_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageJob, ImageOptions
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_left import finish, take_out
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_lives import criu_at, half_restored
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_suspend import PARENT_IN_TREE
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Command, Outcome
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._pool import Pool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive, read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import read_snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._survey import Survey
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold import UnitHolds
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import lift

BUSY_SECONDS = 600.0
BUSY_POLL_SECONDS = 0.2


@dataclass
class Subject:
    """One tree and its image. before, after: present, absent, restored, running, unknown."""

    path: str
    name: str
    root: Optional[Identity] = None
    tree: Optional[Tree] = None
    image: Optional[Image] = None
    lineage: str = ""
    before: str = "unknown"
    after: str = "unknown"
    changed: bool = False
    ended: bool = False
    planned: bool = False
    stopped: List[Identity] = field(default_factory=list)
    taken_over: List[str] = field(default_factory=list)
    failure: Optional[Outcome] = None
    seconds: Dict[str, float] = field(default_factory=dict)
    notes: List[str] = field(default_factory=list)
    details: Dict[str, Any] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.root.pid if self.root is not None else 0


class ImageEngine:
    """One run of criu_image with state present or restored."""

    def __init__(
        self,
        options: ImageOptions,
        backend: Optional[Backend],
        criu: Criu,
        journal: Journal,
        gpus: Callable[[], Tuple[GpuSnapshot, ...]],
        start: Callable[[ImageJob, socket.socket], int] = _image_worker.start,
    ) -> None:
        self.options = options
        self._backend = backend
        self._criu = criu
        self._journal = journal
        self._read_gpus = gpus
        self._start = start
        self._pool = Pool(self._start_worker)
        self.subjects: List[Subject] = []
        self.findings: List[Finding] = []
        self.warnings: List[str] = []

    def run(self) -> None:
        """Raises ArgumentError, Refused, Failed, CriuError."""
        try:
            if self.options.state == "present":
                self._present()
            else:
                self._restored()
        except BaseException:
            self._pool.abandon()
            raise
        self._pool.leave({subject.pid for subject in self.subjects})
        if any(subject.failure is not None for subject in self.subjects):
            raise Failed(self.message())

    # present

    def _present(self) -> None:
        self.subjects = self._named() if self.options.select is None else self._selected()
        for subject in self.subjects:
            self._look(subject)
            if not subject.planned:
                go_on(subject.stopped)
        due = [subject for subject in self.subjects if subject.planned]
        if not due:
            return
        self._gate_dumps(due)
        if self.options.check:
            for subject in due:
                subject.changed, subject.after = True, "present"
            return
        self._dump(due)

    def _named(self) -> List[Subject]:
        """One process and a path, or several and a store."""
        found = []
        for wanted in self.options.pids:
            path = self.options.path or store.image_path(self.options.store, f"pid-{wanted.pid}")
            found.append(Subject(path=path, name=os.path.basename(path), root=self._identity(wanted)))
            found[-1].details["pid"] = wanted.pid
        return found

    def _identity(self, wanted: Wanted) -> Optional[Identity]:
        """None: it is gone, or the number is somebody else's now."""
        identity = read_identity(wanted.pid)
        if identity is None or not is_alive(identity):
            return None
        if wanted.start_ticks is not None and identity.start_ticks != wanted.start_ticks:
            return None
        return None if wanted.boot_id and wanted.boot_id != identity.boot_id else identity

    def _selected(self) -> List[Subject]:
        """The processes that match; of a process and its descendants, the topmost."""
        survey = Survey(self._journal, lambda pids: read_snapshot(pids, gpus=self._read_gpus))
        matched = {one.pid: one for one in survey.selected(self.options.select)}
        found = []
        for one in matched.values():
            parent = one.process.parent
            while parent > 1 and parent not in matched:
                above = read_tree(parent)
                parent = above.root.parent if above is not None else 0
            if parent in matched:
                continue
            name = store.image_name(one.process)
            found.append(Subject(store.image_path(self.options.store, name), name, one.process.identity))
        if not found:
            self._nothing_matched()
        return found

    def _nothing_matched(self) -> None:
        """Fine only where the store holds what was selected: otherwise a misspelt selection would pass for success."""
        for entry in store.list_images(self.options.store):
            if isinstance(entry, Image) and entry.manifest.selection == store.selection(self.options.select):
                self.subjects.append(
                    Subject(entry.path, entry.manifest.name, image=entry, before="present", after="present")
                )
        if not self.subjects:
            raise ArgumentError(
                "select",
                f"it matches no process, and {self.options.store} holds no image of this selection",
                "Look with cuda_checkpoint_info for what runs, and with criu_image_info for what is stored.",
            )

    def _look(self, subject: Subject) -> None:
        """Is there anything to do for it?"""
        self._wait(subject)
        if not self.options.check:
            self._mend(subject)
        if subject.image is not None:
            return
        subject.image = store.find_image(subject.path)
        image, root = subject.image, subject.root
        if image is None:
            if root is None:
                raise ArgumentError(
                    "pids",
                    f"{subject.details.get('pid')} is no process of this host, and {subject.path} is no image",
                    "Name a process that runs, or the path of its image.",
                )
            self._plan(subject, _new_lineage(root, self._journal))
            return
        known = [image.manifest.root_identity, *image.life.members]
        subject.lineage, subject.before = image.manifest.lineage, "present"
        if root is None:
            self._check_meant(subject, known)
        if root is not None and root not in known:
            raise ArgumentError(
                "path",
                f"{subject.path} is the image of another process (PID {image.manifest.root}, lineage "
                f"{image.manifest.lineage}), and PID {root.pid} is alive",
                "Choose another path, or delete that image first (state: absent).",
            )
        if half_restored(image) is not None:
            raise ArgumentError(
                "path",
                f"{subject.path} is being restored, or was when something broke off",
                "Run state: restored first.",
            )
        if root is None and image.life.state == SPENT:
            raise ArgumentError(
                "path",
                f"{subject.path} is spent: it has been restored, and what came of it has ended",
                "Nothing is left that could be dumped.",
            )
        snapshot = image.manifest.snapshot and image.life.state != SPENT
        if root is None or (snapshot and self.options.leave_running):
            subject.after = "present"
            return
        # It lives: it has been restored since, or its dump was broken off before it was ended.
        self._plan(subject, image.manifest.lineage)

    def _check_meant(self, subject: Subject, known: Sequence[Identity]) -> None:
        """Nobody has that PID now. Was it, as it was named, a process of this image? Raises ArgumentError."""
        wanted = next((one for one in self.options.pids if one.pid == subject.details.get("pid")), None)
        if wanted is None or any(_is_meant(wanted, one) for one in known):
            return
        begun = "" if wanted.start_ticks is None else f", started at {wanted.start_ticks} ticks,"
        raise ArgumentError(
            "pids",
            f"{wanted.pid}{begun} is no process of this host, and {subject.path} is the image of PID {known[0].pid} "
            f"(lineage {subject.lineage})",
            "Name the process of that image, or another path for a process that runs.",
        )

    def _plan(self, subject: Subject, lineage: str) -> None:
        subject.lineage, subject.planned = lineage, True
        subject.before = "present" if subject.image is not None else "absent"
        subject.tree = read_tree(subject.pid)
        if subject.tree is None or subject.tree.root.identity != subject.root:
            raise ArgumentError("pids", f"{subject.pid} ended while it was looked at", "Name a process that runs.")

    def _wait(self, subject: Subject) -> None:
        wait_for(self._journal, subject.path, self.options.step_timeout)

    def _mend(self, subject: Subject) -> None:
        """What a dead worker has left behind: members that it stopped, an image that it did not finish."""
        finished = finish(subject.path)
        if finished:
            subject.notes.append(f"{subject.path} is finished now: CRIU had ended its tree when its worker died")
        for row in self._journal.unfinished_images(subject.path, subject.root):
            if row.worker is not None and is_alive(row.worker):
                continue
            if finished and row.path == subject.path:
                self._journal.finish_image(row.id, "gone", f"its worker had died at step {row.step}")
                continue
            if row.root.boot_id == read_boot_id():
                subject.stopped.extend(one for one in row.stopped if is_alive(one) and one not in subject.stopped)
            subject.taken_over.append(row.run_id)
            if row.root.boot_id == read_boot_id():
                _hurt, problems, foreign = take_out(self._journal, row)
                subject.notes.extend((*problems, *foreign))
            if store.remove_partial_of(row.path):
                subject.notes.append(f"removed what an interrupted run ({row.run_id}) had left of an image")
            self._journal.finish_image(row.id, "undone", f"its worker had died at step {row.step}")

    def _gate_dumps(self, due: Sequence[Subject]) -> None:
        """Everything that speaks against it, at once and before anything is touched. Raises Refused, CriuError."""
        blocking: List[Finding] = []
        for subject in due:
            store.check_place(subject.path)
        trees = [subject.tree for subject in due if subject.tree is not None]
        roots = [tree.root.pid for tree in trees]
        members = [pid for tree in trees for pid in tree.pids]
        survey = Survey(
            self._journal,
            lambda pids: read_snapshot(pids, gpus=self._read_gpus),
            self.options.allow,
            self._criu.version,
        )
        survey.snapshot = read_snapshot(members, gpus=self._read_gpus)
        found = survey.evaluate("dump", [survey.subject(survey.snapshot, pid) for pid in roots])
        for tree in trees if self.options.unit_policy == "hold" else ():
            held = units.look(self._journal, tree)
            found = (*lift(found, held), *held.findings)
            self.warnings.extend(held.notes)
        blocking.extend(self._note(found))
        places = [subject.path for subject in due if subject.tree is not None]
        allowed = "disk_space" in self.options.allow
        blocking.extend(self._note(_image_findings.room(trees, survey.gpus, places, allowed)))
        blocking.extend(self._note([one for tree in trees for one in _image_findings.terminal(tree)]))
        blocking.extend(self._note(self._suspend_findings(trees)))
        if blocking:
            raise Refused(blocking)

    def _suspend_findings(self, trees: Sequence[Tree]) -> Sequence[Finding]:
        """What the engine would say of all CUDA members together; a parent that is dumped with them sees nothing."""
        members = [(member, tree) for tree in trees for member in tree.cuda]
        if not members or self._backend is None:
            return ()
        inside = {member.pid for member, tree in members if member.pid != tree.root.pid}
        wanted = tuple(Wanted(one.pid, one.identity.start_ticks, one.identity.boot_id) for one, _tree in members)
        options = replace(self.options.cuda, goal="checkpointed", pids=wanted, select=None, check=True)
        engine = Engine(options, self._backend, self._journal, self._read_gpus)
        try:
            engine.run()
        except Refused as refused:
            return [one for one in refused.findings if not (one.id == PARENT_IN_TREE and one.pid in inside)]
        return [one for one in engine.findings if not (one.id == PARENT_IN_TREE and one.pid in inside)]

    def _note(self, findings: Sequence[Finding]) -> List[Finding]:
        """Remember them; returns those that block."""
        self.findings.extend(one for one in findings if one not in self.findings)
        return [one for one in findings if one.severity == "blocking"]

    def _dump(self, due: Sequence[Subject]) -> None:
        commands = {subject.pid: Command("dump") for subject in due}
        if self.options.all_or_nothing and len(due) > 1:
            self._take(due, self._run(commands, due, stop_on_failure=True), "dumped")
            if any(subject.failure is not None or subject.after != "dumped" for subject in due):
                back = {subject.pid: Command("undo") for subject in due if subject.after == "dumped"}
                for pid, outcome in self._run(back, due).items():
                    self._went_back(self._of(pid), outcome)
                return
            self._take(due, self._run({subject.pid: Command("commit") for subject in due}, due), "present")
            return
        # Each commits as it is ready, while others are still being dumped.
        self._take(
            due, self._run({pid: replace(one, do="dump+commit") for pid, one in commands.items()}, due), "present"
        )

    def _run(
        self, commands: Dict[int, Command], due: Sequence[Subject], stop_on_failure: bool = False
    ) -> Dict[int, Outcome]:
        parallel = self.options.parallel or max(1, os.cpu_count() or 1)
        return self._pool.run(commands, self._seconds(due), parallel, stop_on_failure)

    def _seconds(self, due: Sequence[Subject]) -> float:
        """When the answer counts as unknown: everything at 20 MB/s, and ten minutes."""
        if self.options.step_timeout:
            return self.options.step_timeout
        held, gpus = 0, self._read_gpus()
        for subject in due:
            if subject.tree is not None:
                held += _image_findings.bytes_of(subject.tree, gpus)
            elif subject.image is not None:
                held += sum(one.bytes for one in subject.image.manifest.chunks)
        return 600.0 + held / 20e6

    def _take(self, due: Sequence[Subject], outcomes: Dict[int, Outcome], state: str) -> None:
        for subject in due:
            outcome = outcomes.get(subject.pid)
            if outcome is None:
                continue
            for step, seconds in outcome.seconds.items():
                subject.seconds[step] = round(subject.seconds.get(step, 0.0) + seconds, 6)
            subject.notes.extend(outcome.notes)
            subject.details.update(outcome.details)
            subject.failure = None if outcome.ok else outcome
            subject.after = state if outcome.ok else subject.before
            subject.changed = outcome.ok

    def _went_back(self, subject: Subject, outcome: Outcome) -> None:
        subject.changed = not outcome.ok
        subject.after = subject.before if outcome.ok else "unknown"
        subject.notes.append("taken back: another tree of this task failed")
        if not outcome.ok:
            subject.failure = outcome

    # restored

    def _restored(self) -> None:
        self.subjects = [self._stored(path) for path in self._paths()]
        due: List[Subject] = []
        blocking: List[Finding] = []
        for subject in self.subjects:
            self._wait(subject)
            if not self.options.check:
                self._mend(subject)
                go_on(subject.stopped)
            if subject.image is not None and self._needs_life(subject):
                due.append(subject)
        for subject in due:
            blocking.extend(self._note(self._fit(subject)))
        if blocking:
            raise Refused(blocking)
        if self.options.check:
            for subject in due:
                subject.changed, subject.after = True, "restored"
            return
        if due:
            self._take(due, self._run({subject.pid: Command("restore") for subject in due}, due), "restored")

    def _paths(self) -> List[str]:
        if self.options.path:
            return [self.options.path]
        found = []
        for entry in store.list_images(self.options.store):
            if isinstance(entry, Image):
                found.append(entry.path)
            else:
                self.warnings.append(f"{entry.path} is no image that could be restored: {entry.why}")
        if not found and not self.options.check:
            raise ArgumentError("store", f"{self.options.store} holds no image", "Look with criu_image_info.")
        return found

    def _stored(self, path: str) -> Subject:
        subject = Subject(path=path, name=os.path.basename(path))
        image = store.find_image(path)
        if image is None and not self.options.check and finish(path):
            subject.notes.append(f"{path} is finished now: CRIU had ended its tree when its worker died")
            image = store.find_image(path)
        if image is None:
            if self.options.check:
                subject.changed = True
                subject.notes.append("there is no image yet: what restoring it would do can't be told in check mode")
                return subject
            raise ArgumentError("path", f"{path} is no image", "Look with criu_image_info for those that are there.")
        subject.image, subject.lineage, subject.before = image, image.manifest.lineage, "present"
        subject.root = image.manifest.root_identity
        return subject

    def _needs_life(self, subject: Subject) -> bool:
        """Raises Refused: it would be a second life."""
        image = subject.image
        if image is None:
            return False
        why = barred(image.life, read_machine_id())
        if why and "second_life" in self.options.allow:
            subject.notes.append(f"{why}: second_life is allowed")
        elif why and image.life.state != SPENT:
            if self.options.path:
                raise Refused([_image_findings.elsewhere(subject.path, why)])
            # The others of the store come back.
            subject.after = subject.before
            subject.notes.append(f"it is left alone: {why}")
            return False
        alive = living(image.life)
        if image.life.state == SPENT:
            if alive or "second_life" not in self.options.allow:
                subject.before = subject.after = "restored"
                subject.ended = not alive
                subject.details["pids"] = [one.pid for one in alive]
                if subject.ended:
                    run = image.life.run_id or "unknown"
                    subject.notes.append(
                        f"nothing was brought back: it has been restored before, by run {run}, and what was restored "
                        "has ended since. It does not come back a second time unless allow has second_life"
                    )
                return False
            subject.notes.append("it has lived before: second_life is allowed")
        original = image.manifest.root_identity
        if image.manifest.snapshot and is_alive(original) and "second_life" not in self.options.allow:
            raise Refused([_image_findings.second_life(subject.path, original)])
        return True

    def _fit(self, subject: Subject) -> Sequence[Finding]:
        if subject.image is None:
            return ()
        if half_restored(subject.image) is not None:
            return ()  # it is out of CRIU already
        target = target_of.read_target(subject.image.manifest, self._read_gpus(), self._criu, subject.image.path)
        return [
            replace(one, severity="warning") if one.option and one.option in self.options.allow else one
            for one in (
                *UnitHolds(self._journal).second_copies(subject.lineage),
                *fit.fit(subject.image.manifest, target, self.options.device_map, self.options.pid_namespace == "new"),
            )
        ]

    # Workers

    def _start_worker(self, pid: int, channel: socket.socket) -> int:
        subject = self._of(pid)
        if subject.root is None or self._backend is None:
            raise ValueError("a worker without a process")
        return self._start(
            ImageJob(
                root=subject.root,
                path=subject.path,
                lineage=subject.lineage,
                name=subject.name,
                options=self.options,
                criu=self._criu,
                backend=self._backend,
                stopped=tuple(subject.stopped),
                taken_over=tuple(subject.taken_over),
            ),
            channel,
        )

    def _of(self, pid: int) -> Subject:
        return next(subject for subject in self.subjects if subject.pid == pid)

    def message(self) -> str:
        lines = []
        for subject in self.subjects:
            failure = subject.failure
            if failure is not None:
                text = f"{subject.name}: {failure.step} failed: {failure.text}"
                lines.append(" ".join(part for part in (text, failure.remedy) if part))
        back = [
            subject.name
            for subject in self.subjects
            if subject.failure is None and subject.planned and not subject.changed
        ]
        if back:
            lines.append(f"Taken back to where they were: {', '.join(back)}.")
        return "\n".join(lines)


def wait_for(journal: Journal, path: str, step_timeout: float) -> None:
    """Until no other run is at that image. Raises Refused."""
    end = time.monotonic() + (step_timeout or BUSY_SECONDS)
    while True:
        at_work = [one for one in journal.unfinished_images(path, None) if one.worker and is_alive(one.worker)]
        if at_work and at_work[0].worker is not None:
            who, run, step = at_work[0].worker.pid, at_work[0].run_id, at_work[0].step
        else:
            who, run, step = criu_at(path), "that has ended", "criu"
            if not who:
                return
        if time.monotonic() > end:
            raise Refused([_image_findings.busy(path, who, run, step)])
        time.sleep(BUSY_POLL_SECONDS)


def _is_meant(wanted: Wanted, identity: Identity) -> bool:
    if wanted.start_ticks is not None and wanted.start_ticks != identity.start_ticks:
        return False
    return wanted.pid == identity.pid and wanted.boot_id in (None, identity.boot_id)


def _new_lineage(root: Identity, journal: Journal) -> str:
    """The one of the image that the process was restored from, or a new one."""
    for row in journal.images_of(root):
        return row.lineage
    return uuid.uuid4().hex
