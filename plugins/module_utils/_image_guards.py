# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Guards over the CUDA members of a tree, from the end of CRIU's work to that of its image.

CRIU can't dump what is traced, so until then there are none. What is compressed and hashed afterwards takes a while, in
which a foreign SIGCONT would kill them.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Dict, FrozenSet, List, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _worker
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.process import foreign_tracer
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageJob
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Command
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._pool import Pool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive, read_identity

POST_SECONDS = 60.0
GONE_SECONDS = 10.0
_PAUSE = 0.005


class Guards:
    """Whoever resumes the processes asks them to leave: they are in the journal, as every guard is."""

    def __init__(self, job: ImageJob, journal: Journal) -> None:
        self._job = job
        self._journal = journal
        self._pool = Pool(self._start)
        self._last: Dict[int, Operation] = {}

    def post(self, tree: Tree) -> Tuple[List[str], List[str]]:
        """Returns words about those that were found to run, and about those that are left without a guard. Raises
        JournalError."""
        if self._job.options.cuda.guard == "none":
            return [], []
        for member in tree.cuda:
            last = self._journal.latest(member.identity)
            if last is not None and last.status == "suspended":
                self._last[member.pid] = last
        commands = {pid: Command("adopt", state_before=last.state_before) for pid, last in self._last.items()}
        outcomes = self._pool.run(commands, POST_SECONDS)
        self._pool.leave(set(outcomes))
        names = {one.pid: f"PID {one.pid} ({one.name})" for one in tree.members}
        ran, unguarded = [], []
        for pid, outcome in outcomes.items():
            name = names[pid]
            if outcome.details.get("ran"):
                ran.append(f"{name} has run")
            if not outcome.ok:
                unguarded.append(f"{name} has no guard while its image is made: {outcome.text}")
        return ran, unguarded

    def _start(self, pid: int, channel: socket.socket) -> int:
        last, options = self._last[pid], self._job.options.cuda
        return _worker.start(
            _worker.Job(
                identity=last.identity,
                run_id=options.run_id,
                goal=last.goal,
                executable=last.executable,
                uid=last.uid,
                stopped_by=last.stopped_by,
                device_bytes=last.device_bytes,
                park=last.park,
                guard="holder",
                huge_pages="keep",
                backend=self._job.backend,
                journal=options.journal,
                previous=last,
            ),
            channel,
        )

    @property
    def guarded(self) -> FrozenSet[int]:
        """Those whose guard is attached: no instruction of theirs has been executed, whoever continued them."""
        return frozenset(pid for pid, worker in self._pool.workers.items() if foreign_tracer(pid)[1] == worker)

    def wait(self) -> None:
        """Until those are gone whose processes have ended: they write of it to the journal, and not the last word."""
        workers = [read_identity(pid) for pid in self._pool.workers.values()]
        end = time.monotonic() + GONE_SECONDS
        while any(worker is not None and is_alive(worker) for worker in workers) and time.monotonic() < end:
            time.sleep(_PAUSE)
        for pid in self._pool.workers.values():
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue  # the caller ignores SIGCHLD, so the kernel has done it
