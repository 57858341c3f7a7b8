# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One process tree into an image.

CRIU leaves the tree alive and stopped. Only an image that is proved, hashed and on the disk ends it; whatever fails
before, the tree goes on as if nothing had been.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_logs
from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_units as units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import (
    actions,
    compress,
    digest,
    ending,
    images,
    lifeline,
    log_look,
    proof,
    store,
    tool,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import options as criu_options
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import sync_others
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.images import ImageError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import (
    Manifest,
    ManifestGpu,
    member_of,
    write_manifest,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.reserve import Reserve
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import Run, run
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.saved import forget
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.stillness import (
    end_tree,
    go_on,
    stop_others,
    wait_gone,
    who_ran,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular, Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id, read_host
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_guards import Guards
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageJob
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_steps import Steps
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_suspend import (
    PARENT_IN_TREE,
    bring,
    bring_back,
    in_tree_only,
    release_guards,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import DUMP_STEP
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject

ROUNDS = 10


class Dump:
    def __init__(self, job: ImageJob, journal: Journal, steps: Steps) -> None:
        self._job = job
        self._journal = journal
        self._steps = steps
        self._stopped: List[Identity] = list(job.stopped)
        self._subjects: List[Subject] = []
        self._gpus: Tuple[GpuSnapshot, ...] = ()
        self._partial = ""
        self._tree: Optional[Tree] = None
        self._chosen: Optional[criu_options.Chosen] = None
        self._held: Dict[int, Dict[str, int]] = {}
        self._announced: Optional[Manifest] = None
        self._ended = False
        self._reserve = Reserve(os.path.dirname(job.options.journal))
        self._guards = Guards(job, journal)
        self.is_open = True

    @property
    def name(self) -> str:
        root = self._tree.root if self._tree is not None else None
        return f"PID {self._job.root.pid}" + (f" ({root.name})" if root is not None else "")

    @property
    def is_alive(self) -> bool:
        return is_alive(self._job.root)

    def make(self) -> Dict[str, Any]:
        """Up to an image that is complete but has not its name yet. The tree stands still. Raises CriuError and others:
        then undo() is due."""
        self._steps.begin("stop")
        self._partial = store.make_partial(self._job.path)
        tree = self._stand_still()
        self._chosen = self._choose(tree)
        self._held = {one.pid: dict(one.device_bytes or {}) for one in self._subjects}
        tree = self._guard(self._criu(tree, "stopped"))
        self._prove(tree)
        files = images.regular_files(self._partial)
        manifest = self._manifest(tree, files)
        if not self._criu_ends_it:
            compressed = self._compress()
            self._steps.begin("seal")
            self._sync_files(files)
            chunks = digest.digest(self._partial, store.content(self._partial))
            manifest = replace(manifest, compressed=compressed, chunks=chunks)
            write_manifest(self._partial, manifest)
            store.sync(self._partial)
            self._steps.measured(DUMP_STEP, ("dump", "prove", "compress", "seal"), manifest.host_bytes)
        self._announced = manifest
        return self._details(tree, manifest)

    @property
    def _criu_ends_it(self) -> bool:
        """The tree has connections, whose peers must not hear of its end."""
        return self._chosen is not None and self._chosen.must_kill and not self._job.options.leave_running

    def commit(self) -> Dict[str, Any]:
        """Give the image its name, and end the tree, or let it go on where it is to. Raises CriuError: then undo() is
        due, if it is_open still."""
        if self._tree is None:
            raise ValueError("nothing is dumped")
        self._unless_ran(who_ran(self._tree, self._guards.guarded))
        details: Dict[str, Any] = {}
        if self._criu_ends_it:
            details = self._let_criu_end_it(self._tree)
        self._steps.begin("rename")
        try:
            store.seal(self._partial, self._job.path)
            ending.forget(self._job.path)
        except (CriuError, OSError) as error:
            if self.is_open:
                raise
            raise self._only_copy(str(error)) from error
        self._reserve.release()
        self._partial = ""
        if self._job.options.leave_running:
            problems = self._let_go_on()
            self._steps.finish("failed" if problems else "sealed", "; ".join(problems))
            if problems:
                raise CriuError(self.name, "; ".join(problems), "The image is complete.", "Run the task again.")
            return {"lives": True}
        self.is_open = False
        self._steps.begin("end")
        left = wait_gone([one.identity for one in self._tree.members], 60.0) if self._ended else end_tree(self._tree)
        self._steps.notes.extend(left)
        self._guards.wait()
        self._forget_suspended()
        self._steps.finish("gone", "; ".join(left))
        return {"lives": False, **details}

    def _let_criu_end_it(self, tree: Tree) -> Dict[str, Any]:
        """An image of it is proved, and CRIU makes it anew. Once it has ended the tree, nothing else is left of it: the
        next run finishes what fails from there on. Raises CriuError and others."""
        if self._announced is None:
            raise ValueError("nothing is dumped")
        ending.announce(self._partial, self._announced)
        for name in os.listdir(self._partial):
            if not name.startswith("."):
                os.unlink(os.path.join(self._partial, name))
        self._criu(tree, "killed")
        self.is_open, self._steps.must_go_on = False, True
        try:
            doubts = self._doubts(tree)
        except (ImageError, OSError) as error:
            doubts = (str(error),)
        if doubts:
            self._steps.notes.append(f"the image may lack something: {'; '.join(doubts)}")
        try:
            self._compress()
        except (CriuError, OSError) as error:
            self._steps.notes.append(f"a part of the image is not compressed: {error}")
        self._steps.begin("seal")
        self._sync_files(self._announced.files)
        try:
            manifest = ending.complete(self._partial)
            store.sync(self._partial)
        except (CriuError, OSError) as error:
            raise self._only_copy(str(error)) from error
        self._steps.measured(DUMP_STEP, ("dump", "prove", "compress", "seal"), manifest.host_bytes)
        return self._details(tree, manifest)

    def _only_copy(self, why: str) -> CriuError:
        return CriuError(
            self.name,
            why,
            f"CRIU has ended it, and {self._partial} is all that there is of it.",
            "Mend that, and run the task again: the image is finished then. Don't delete it.",
        )

    def _unless_ran(self, ran: Sequence[str]) -> None:
        if ran:
            raise CriuError(
                self.name,
                f"since it was dumped, {'; '.join(ran)}",
                "The image is of a state that is past, and both going on would be two lives of one process.",
                "Find out who continues stopped processes there, and run the task again.",
            )

    def _forget_suspended(self) -> None:
        """What was suspended has ended on purpose: whoever gets its PID next is not to be taken for it."""
        for subject in self._subjects:
            try:
                operation = self._journal.latest(subject.process.identity)
                if operation is not None and not is_alive(operation.identity):
                    self._journal.finish(operation.id, "done", f"it has ended, and is in {self._job.path}")
            except JournalError as error:
                self._steps.notes.append(f"that PID {subject.pid} has ended could not be journalled: {error}")

    def undo(self, status: str) -> Tuple[str, ...]:
        """Everything as it was; the incomplete image goes. Returns what could not be."""
        self._reserve.release()
        self._steps.begin("undo")
        if not self._partial and self._tree is None:
            # Somebody else is at work there, and nothing was done.
            self.is_open = False
            self._steps.finish(status)
            return ()
        problems = list(self._let_go_on())
        if self._partial:
            try:
                if ending.is_only_copy(self._partial):
                    raise self._only_copy("its image is not sealed")
                store.remove_partial(self._partial)
            except (CriuError, OSError) as error:
                problems.append(str(error))
        self._steps.finish("failed" if problems else status, "; ".join(problems))
        return tuple(problems)

    def _let_go_on(self) -> Tuple[str, ...]:
        """CUDA's members first: their parents never see them stopped."""
        self.is_open = False
        problems: List[str] = []
        tree = self._tree
        if tree is not None and self._subjects:
            options = replace(self._job.options.cuda, allow=self._allow(tree))
            goals = {one.pid: self._before(one) for one in self._subjects}
            problems.extend(bring_back(goals, tree, options, self._job.backend, self._journal))
        self._steps.begin("continue")
        self._steps.notes.extend(go_on(self._stopped))
        units.let_go(self._journal, self._job.lineage, self._steps.notes, self._job.root)
        return tuple(problems)

    # The steps

    def _stand_still(self) -> Tree:
        """CUDA's members parked, everybody else stopped, nobody new."""
        root = self._job.root
        if self._job.options.unit_policy == "hold":
            running = read_tree(root.pid)
            if running is not None:
                units.hold(self._journal, running, self._job.lineage, self._steps.notes)
        tree = self._tree = stop_others(root, self._stopped, self._remember)
        for _round in range(ROUNDS):
            if tree.cuda:
                self._steps.begin("suspend")
                guard = "none" if self._job.options.cuda.guard == "none" else "holder"
                options = replace(self._job.options.cuda, guard=guard, park=True, allow=self._allow(tree))
                engine = bring("checkpointed", tree.cuda, options, self._job.backend, self._journal)
                self._gpus = engine.gpus
                self._take(engine.subjects)
            again = self._tree = stop_others(root, self._stopped, self._remember)
            if again.pids == tree.pids and [one.cuda for one in again.members] == [one.cuda for one in tree.members]:
                return again
            tree = again
        raise CriuError(
            self.name,
            f"its tree has changed {ROUNDS} times while it was being stopped",
            "A tree can only be dumped while it stands still.",
            "Look at what starts processes there.",
        )

    def _take(self, subjects: List[Subject]) -> None:
        """What each was before the first look counts."""
        known = {one.pid for one in self._subjects}
        self._subjects.extend(one for one in subjects if one.pid not in known)

    def _before(self, subject: Subject) -> str:
        """Its CUDA state before all this, also where a run that has died had begun it."""
        operation = subject.operation
        if subject.view.state == "checkpointed" and operation and operation.run_id in self._job.taken_over:
            return operation.state_before
        return subject.view.state

    def _remember(self) -> None:
        self._steps.stopped(self._stopped)

    def _allow(self, tree: Tree) -> "frozenset[str]":
        allow = self._job.options.cuda.allow
        return allow | {PARENT_IN_TREE} if in_tree_only(tree) else allow

    def _choose(self, tree: Tree) -> criu_options.Chosen:
        return criu_options.choose(self._job.options.criu, tree, self._job.options.allow)

    def _criu(self, tree: Tree, leave: str) -> Tree:
        """The tree as CRIU has left it: stopped, or ended."""
        chosen = self._chosen
        if chosen is None:
            raise ValueError("no options are chosen")
        self._steps.begin("dump")
        release_guards(tree.cuda, self._journal)
        saved = lifeline.prepare(self._partial, [member.identity for member in tree.members])
        logged = os.path.join(self._partial, tool.DUMP_LOG)
        self._steps.details["log"] = logged
        argv = tool.dump_argv(self._job.criu, tree.root.pid, self._partial, chosen, leave)
        try:
            done = run(argv, logged, dumps=True)
        finally:
            hurt, problems = lifeline.put_back_all(saved)
            self._steps.notes.extend(problems)
        if hurt:
            self._steps.notes.append("criu was killed at work in the tree; what it had left there was taken out again")
        forget(self._partial)
        after = read_tree(tree.root.pid)
        complete = done.rc == 0 and images.is_complete(self._partial, "dump", done.log)
        if complete:
            actions.put_right(self._partial, saved)
        if complete and leave == "killed" and after is None:
            self._ended = True
            return tree
        if complete and leave == "stopped" and after is not None and after.pids == tree.pids:
            self._tree = after
            return after
        if after is None and leave == "killed":
            # CRIU has ended it, whatever it says: what it has written is all that there is.
            self._ended, self._partial = True, ""
            self._steps.details["log"] = logged
        raise self._refused(done, logged)

    def _guard(self, tree: Tree) -> Tree:
        """Looked at before, for what holds a thread switches to it; from then on it is the guard's word that counts."""
        self._unless_ran(who_ran(tree))
        ran, unguarded = self._guards.post(tree)
        self._steps.notes.extend(unguarded)
        self._unless_ran([*ran, *who_ran(tree, [one.pid for one in tree.cuda])])
        self._tree = read_tree(tree.root.pid) or tree
        return self._tree

    def _refused(self, done: Run, logged: str) -> CriuError:
        """CRIU's own words, with what they mean. Its log would go with the incomplete image."""
        name = f"dump-{self._job.root.pid}-{self._job.options.run_id}.log"
        self._steps.details["log"] = _image_logs.keep(logged, self._job.options.journal, name)
        return log_look.refused(done.log, "dump", self.name, done.rc, place=os.path.dirname(logged))

    def _doubts(self, tree: Tree) -> Tuple[str, ...]:
        self._steps.begin("prove")
        seen = images.read_pstree(self._partial), images.page_bytes(self._partial)
        return proof.prove(tree, *seen, self._held)

    def _prove(self, tree: Tree) -> None:
        problems = self._doubts(tree)
        if problems:
            raise CriuError(
                self.name,
                "; ".join(problems),
                "An image that lacks something can't bring the process back.",
                "Report it with the log; the process goes on.",
            )

    def _compress(self) -> str:
        if self._job.options.compress == "none":
            return ""
        self._steps.begin("compress")
        compress.compress(self._partial, images.page_files(self._partial))
        return self._job.options.compress

    def _sync_files(self, files: Tuple[OpenRegular, ...]) -> None:
        """What the tree has written to them is a part of what it was: else an image that outlives a loss of power would
        not fit them."""
        self._steps.notes.extend(sync_others([one.path for one in files if one.writable and not one.deleted]))

    def _manifest(self, tree: Tree, files: Tuple[OpenRegular, ...]) -> Manifest:
        """Without its chunks."""
        if self._chosen is None:
            raise ValueError("no options are chosen")
        host = read_host()
        before = {one.pid: one for one in self._subjects}
        ours = {one.pid for one in self._stopped}
        return Manifest(
            lineage=self._job.lineage,
            created=time.time(),
            hostname=socket.gethostname(),
            kernel=host.kernel,
            boot_id=read_boot_id(),
            machine=platform.machine(),
            driver=host.driver_version,
            gpus=tuple(ManifestGpu(gpu.uuid, gpu.index, gpu.name, gpu.total_bytes) for gpu in self._gpus),
            criu=".".join(map(str, self._job.criu.version)),
            options=self._chosen.arguments,
            root=tree.root.pid,
            tree=tuple(
                member_of(
                    one,
                    self._held.get(one.pid, {}),
                    state_before=self._before(before[one.pid]) if one.pid in before else "",
                    stopped_before=before[one.pid].view.stopped == "other"
                    if one.pid in before
                    else one.pid not in ours,
                )
                for one in tree.members
            ),
            host_bytes=sum(one.rss_anon_bytes for one in tree.members),
            files=files,
            chunks=(),
            snapshot=self._job.options.leave_running,
            compressed="",
            run_id=self._job.options.run_id,
            name=self._job.name,
            selection=store.selection(self._job.options.select),
        )

    def _details(self, tree: Tree, manifest: Manifest) -> Dict[str, Any]:
        return {
            "bytes": sum(one.bytes for one in manifest.chunks),
            "device_bytes": sum(sum(one.device_bytes.values()) for one in manifest.tree),
            "pids": list(tree.pids),
            "criu_options": list(manifest.options),
            "log": os.path.join(self._job.path, tool.DUMP_LOG),
        }
