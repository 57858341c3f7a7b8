# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One image back to life.

What comes out of CRIU is stopped, every thread of it. CUDA's members get their GPU memory back while they are held;
then they run, and after them the rest. Before CRIU begins, the image says that it is being restored: from then on
nobody starts a second life without having looked for the first.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_units as units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _scope
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import (
    compress,
    digest,
    log_look,
    namespace,
    oom,
    owner,
    store,
    tool,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import options as criu_options
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fit import origin_of
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.handoff import barred
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    RESTORING,
    SPENT,
    Life,
    write_life,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import run
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.stillness import end, end_tree, go_on
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Image
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.turn import in_turn
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id, read_machine_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._huge_pages import huge_pages
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageJob
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_lives import half_restored
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_steps import Steps
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_suspend import bring
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import RESTORE_STEP
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive, own_identity, read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_stat

RESTORE_LOG = "restore.log"


class Restore:
    def __init__(self, job: ImageJob, journal: Journal, steps: Steps) -> None:
        self._job = job
        self._journal = journal
        self._steps = steps
        self._image: Image = store.open_image(job.path)
        self._init: Optional[Identity] = None
        # PIDs of this host to those in the image, of a tree in another PID namespace.
        self._before: Mapping[int, int] = {}

    @property
    def name(self) -> str:
        manifest = self._image.manifest
        return f"{self._job.path} (PID {manifest.root})"

    def make(self) -> Dict[str, Any]:
        """Raises CriuError and others. What is left then is told by the image's life: unspent, or alive and parked."""
        # Nobody else is at it from here on, on whatever host; what was read before that may be old.
        owner.claim(self._job.path)
        try:
            self._image = store.open_image(self._job.path)
            if self._image.life.state == SPENT and "second_life" not in self._job.options.allow:
                raise CriuError(
                    self.name,
                    f"run {self._image.life.run_id} has restored it meanwhile",
                    "A second life of one process writes to the same files and answers the same peers.",
                    "Look for the first one.",
                    "allow: [second_life]",
                )
            elsewhere = barred(self._image.life, read_machine_id())
            if elsewhere and "second_life" not in self._job.options.allow:
                raise CriuError(
                    self.name,
                    elsewhere,
                    "A second life of one process writes to the same files and answers the same peers.",
                    "Look on that host.",
                    "allow: [second_life]",
                )
            tree = half_restored(self._image)
            if tree is None:
                self._end_the_rest()
                self._verify()
                tree = self._restore()
                moved = self._image.manifest.host_bytes
                self._steps.measured(RESTORE_STEP, ("verify", "unpack", "restore"), moved)
            else:
                self._init = self._image.life.init
            if self._init is not None:
                self._before = {here: there for there, here in namespace.inside(self._init.pid).items()}
            self._resume(tree)
            return self._settle(tree.root.pid)
        finally:
            owner.release(self._job.path)

    def _end_the_rest(self) -> None:
        """Half a tree in a namespace, left by a run that has died with its CRIU: nobody else would end it."""
        init = self._image.life.init
        if self._image.life.state == RESTORING and init is not None and is_alive(init):
            self._steps.notes.extend(end(init))

    def _verify(self) -> None:
        self._steps.begin("verify")
        # Sizes in any case: of a file of pages that is cut short, criu restore never finds the end.
        how = "full" if self._job.options.verify == "full" else "sizes"
        # One image after another, each on all cores: the next is read while this one is brought back already.
        with in_turn(os.path.join(tool.own_directory("turn"), "verify")) if how == "full" else nullcontext():
            problems = digest.verify(self._job.path, self._image.manifest.chunks, how)
        if problems:
            raise CriuError(
                self.name,
                "; ".join(problems[:8]),
                "It is not what was dumped: a process made of it would run with wrong memory.",
                "Bring the image from its origin again; verify: none does not look.",
                "verify: none",
            )

    # Out of CRIU

    def _restore(self) -> Tree:
        manifest = self._image.manifest
        # What it says of a move stays: the copy may have to be given back, if this fails.
        # From here on no other host begins anew, which can't see what there is of it here.
        life = replace(
            self._fresh(),
            state=RESTORING,
            boot_id=read_boot_id(),
            run_id=self._job.options.run_id,
            at=time.time(),
            host=read_machine_id(),
        )
        directory, unpacked = self._job.path, ""
        if manifest.compressed:
            self._steps.begin("unpack")
            directory = unpacked = compress.unpack(self._job.path, manifest)
        try:
            self._steps.begin("restore")
            write_life(self._job.path, life)
            with huge_pages(self._journal, own_identity(), self._job.options.cuda.huge_pages, self._steps.notes):
                tree = self._criu(directory, life)
        finally:
            if unpacked:
                compress.discard(unpacked)
        members = tuple(one.identity for one in tree.members)
        write_life(self._job.path, replace(life, members=members, init=self._init))
        return tree

    def _fresh(self) -> Life:
        """Its mark without what was written about a life. An image that is in no move may be brought anywhere."""
        life = self._image.life
        return Life(handoff=life.handoff, host=life.host if life.handoff is not None else "")

    def _root(self) -> int:
        """PID of the tree's root on this host; 0: it is not there yet."""
        root = self._image.manifest.root
        if self._job.options.pid_namespace == "same":
            return root
        return namespace.inside(self._init.pid).get(root, 0) if self._init is not None else 0

    def _is_whole(self, tree: Optional[Tree]) -> bool:
        """Every process of the image, and nobody else."""
        manifest = self._image.manifest
        if tree is None or self._init is None:
            return tree is not None and tree.pids == manifest.pids
        here = namespace.inside(self._init.pid)
        return set(tree.pids) == {here.get(pid) for pid in manifest.pids}

    def _criu(self, directory: str, life: Life) -> Tree:
        manifest = self._image.manifest
        logged = os.path.join(self._job.path, RESTORE_LOG)
        self._steps.details["log"] = logged
        chosen = criu_options.again(manifest.options, self._job.options.criu)
        argv = tool.restore_argv(self._job.criu, directory, chosen, logged)
        done = run(
            argv,
            logged,
            self._job.options.step_timeout,
            before=lambda pid: self._prepare(pid, life),
            meanwhile=oom.protect_once_forked(self._root),
            new_namespace=self._job.options.pid_namespace == "new",
        )
        if done.note:
            self._steps.notes.append(done.note)
        root = self._root()
        tree = read_tree(root) if root else None
        if tree is not None and self._is_whole(tree) and done.rc == 0:
            return tree
        # What holds a PID, say, is looked for before the rest of the attempt is taken away.
        refusal = log_look.refused(done.log, "restore", self.name, done.rc, place=os.path.dirname(logged))
        if done.rc is not None:
            self._clean_up(tree)
        raise refusal

    def _clean_up(self, tree: Optional[Tree]) -> None:
        """CRIU has failed: what it has made of the tree must not stay, and the image is as good as before."""
        if self._init is not None:
            # The kernel ends everybody in its namespace with it.
            self._steps.notes.extend(end(self._init))
        elif tree is not None and self._is_whole(tree):
            began = [read_identity(pid) for pid in tree.pids]
            if all(one is not None for one in began):
                self._steps.notes.extend(end_tree(tree))
        write_life(self._job.path, replace(self._fresh(), at=time.time()))
        self._steps.finish("failed", "criu restore failed")

    def _prepare(self, pid: int, life: Life) -> str:
        """CRIU's descendants are to outlive the SSH session, and whatever else ends with a control group; and the
        kernel may kill them when memory runs out, as it might before."""
        pids = [pid]
        if self._job.options.pid_namespace == "new":
            begun = read_stat(f"/proc/{pid}/stat")
            self._init = None if begun is None else read_identity(begun.parent)
            if self._init is None:
                raise CriuError(self.name, "CRIU has ended before it began", "", "Run the task again.")
            # From here on whoever comes later knows where to look for what CRIU has made.
            write_life(self._job.path, replace(life, init=self._init))
            pids.append(self._init.pid)
        problem = oom.write(pid, oom.USUAL)
        if problem:
            self._steps.notes.append(problem)
        name = f"gpufleet-restored-{self._job.lineage[:16]}-{pid}"
        return _scope.move(name, f"Restored from {os.path.basename(self._job.path)} ({self._job.name})", pids)

    # Its GPU memory, and on

    def _resume(self, tree: Tree) -> None:
        manifest = self._image.manifest
        for member in tree.cuda:
            known = manifest.member(self._before.get(member.pid, member.pid))
            if self._journal.latest(member.identity) is None:
                self._remember(member.identity, known.device_bytes if known else {}, member.executable, member.uid)
        if tree.cuda:
            self._steps.begin("resume")
            bring(
                "running",
                tree.cuda,
                replace(self._job.options.cuda, origin=origin_of(manifest)),
                self._job.backend,
                self._journal,
                self._job.options.device_map,
            )
        self._steps.begin("continue")
        stopped = [
            member.identity
            for member in tree.members
            if not member.cuda and not self._was_stopped(member.pid) and member.is_stopped
        ]
        self._steps.notes.extend(go_on(stopped))

    @property
    def _init_pid(self) -> int:
        return self._init.pid if self._init is not None else 0

    def _was_stopped(self, pid: int) -> bool:
        known = self._image.manifest.member(self._before.get(pid, pid))
        return known is not None and known.stopped_before

    def _remember(self, identity: Identity, held: Mapping[str, int], executable: str, uid: int) -> None:
        """A restored process is a parked one with another identity: so the journal learns of it."""
        operation = self._journal.begin(
            run_id=self._job.options.run_id,
            identity=identity,
            executable=executable,
            uid=uid,
            goal="checkpointed",
            state_before="running",
            step="park",
            worker=None,
            park=True,
            guard="none",
            stopped_by="us",
            device_bytes=held,
            backend=self._job.backend.name,
        )
        self._journal.finish(operation.id, "suspended", f"restored from {self._job.path}", {})

    def _spent(self, members: Tuple[Identity, ...]) -> Life:
        return replace(
            self._fresh(),
            state=SPENT,
            boot_id=read_boot_id(),
            run_id=self._job.options.run_id,
            at=time.time(),
            members=members,
            init=self._init if members else None,
            host=read_machine_id(),
        )

    def _settle(self, root: int) -> Dict[str, Any]:
        """Read again who lives, and mark the image spent. root: its PID on this host."""
        tree = read_tree(root)
        if tree is None:
            write_life(self._job.path, self._spent(()))
            raise CriuError(
                self.name,
                "it ended as soon as it ran again",
                "It came back whole and then ended by itself.",
                "Look at its own output. The image is marked as spent.",
            )
        members = tuple(one.identity for one in tree.members)
        write_life(self._job.path, self._spent(members))
        if self._before:
            told = [f"PID {there} of the image is PID {here} here" for here, there in sorted(self._before.items())]
            shown = "; ".join(one for one in told if not one.startswith("PID 1 "))
            self._steps.notes.append(
                f"in a PID namespace of its own, ended by the end of PID {self._init_pid}: {shown}"
            )
        self._steps.finish("restored")
        units.let_go(self._journal, self._job.lineage, self._steps.notes, tree.root.identity)
        # Under its new identity it is of the same lineage: a later image of it replaces this one.
        later = self._journal.begin_image(
            lineage=self._job.lineage,
            path=self._job.path,
            run_id=self._job.options.run_id,
            root=tree.root.identity,
            leave="running",
            worker=None,
        )
        self._journal.finish_image(later.id, "restored")
        still: List[str] = [
            f"PID {one.pid}" for one in tree.members if one.is_stopped and not self._was_stopped(one.pid)
        ]
        if still:
            self._steps.notes.append(f"{', '.join(still)} stopped again after being continued")
        return {
            "pids": list(tree.pids),
            "identities": [_shown(one) for one in members],
            "image_pids": [self._before.get(one.pid, one.pid) for one in members],
            "log": os.path.join(self._job.path, RESTORE_LOG),
        }


def _shown(identity: Identity) -> Dict[str, Any]:
    return {"pid": identity.pid, "start_ticks": identity.start_ticks, "boot_id": identity.boot_id}
