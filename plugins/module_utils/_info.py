# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cuda_checkpoint_info returns: every CUDA process with its state and what speaks against suspending it."""

from __future__ import annotations

import socket
from dataclasses import asdict
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _findings, _plan, _subject, _worker
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import Backend
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Command
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._pool import Pool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import places
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._survey import Survey

# A query is answered in half a millisecond, but one beside a copy only when the copy is over.
QUERY_SECONDS = 15.0


class Inspection:
    """One run of cuda_checkpoint_info. Changes nothing."""

    def __init__(
        self, backend: Backend, journal: Journal, journal_path: str, read: Callable[[Sequence[int]], Snapshot]
    ) -> None:
        self._backend = backend
        self._journal_path = journal_path
        self._survey = Survey(journal, read)
        self._subjects: List[Subject] = []

    def run(
        self, wanted: Optional[Sequence[Wanted]], criteria: Optional[Mapping[str, Any]], full_command: bool
    ) -> Dict[str, Any]:
        """Raises ArgumentError, SelectError. wanted, criteria: None for both means every CUDA process."""
        if wanted is not None:
            self._subjects = self._survey.named(wanted)
        else:
            self._subjects = self._survey.selected(criteria)
        self._ask()
        findings = self._findings()
        snapshot = self._survey.snapshot
        return {
            "backend": self._backend.name,
            "driver": snapshot.host.driver_version if snapshot is not None else "",
            "gpus": [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "name": gpu.name,
                    "total_bytes": gpu.total_bytes,
                    "used_bytes": gpu.used_bytes,
                    "free_bytes": gpu.free_bytes,
                }
                for gpu in self._survey.gpus
            ],
            "processes": [self._shown(subject, full_command) for subject in self._subjects],
            "lost": [
                {
                    "pid": one.identity.pid,
                    "executable": one.executable,
                    "user": _subject.user_name(one.uid),
                    "run_id": one.run_id,
                    "device_bytes": sum(one.device_bytes.values()),
                }
                for one in self._survey.lost
            ],
            "findings": [asdict(finding) for finding in findings],
        }

    def _ask(self) -> None:
        pool = Pool(self._start_worker)
        commands = {
            subject.pid: Command("state")
            for subject in self._subjects
            if subject.kind == _plan.ASK and subject.process.may_be_cuda
        }
        outcomes = pool.run(commands, QUERY_SECONDS)
        pool.leave(set(commands))
        for subject in self._subjects:
            outcome = outcomes.get(subject.pid)
            if outcome is None:
                continue
            if outcome.ok:
                subject.saw(_plan.View(outcome.state))
            else:
                subject.failure = outcome
                subject.notes.append(f"its state could not be read: {outcome.text}")

    def _start_worker(self, pid: int, channel: socket.socket) -> int:
        subject = next(subject for subject in self._subjects if subject.pid == pid)
        return _worker.start(_worker.query_job(subject.process, self._backend, self._journal_path), channel)

    def _findings(self) -> List[Finding]:
        found: List[Finding] = []
        suspended = [subject for subject in self._subjects if subject.state == "checkpointed"]
        others = [subject for subject in self._subjects if subject.state != "checkpointed"]
        for subject in self._subjects:
            if subject.kind == _plan.UNOWNED:
                found.append(_findings.unowned(subject))
            elif subject.kind == _plan.BUSY:
                found.append(_findings.busy(subject))
        for action, subjects in (("suspend", others), ("resume", suspended)):
            found.extend(self._survey.evaluate(action, subjects))
        for finding in found:
            for subject in self._subjects:
                if subject.pid == finding.pid:
                    subject.findings.append(finding)
        return found

    def _shown(self, subject: Subject, full_command: bool) -> Dict[str, Any]:
        shown = _subject.result(subject, self._survey.gpus, full_command)
        shown["state"] = shown.pop("after")
        for name in ("before", "changed", "plan", "seconds", "gib_per_second", "error"):
            shown.pop(name, None)
        shown["run_id"] = None if subject.operation is None else subject.operation.run_id
        where: Tuple[str, Optional[str], Optional[str], Optional[str]] = places(subject.process)
        shown["cgroup"], shown["unit"], shown["slurm_job"], shown["container"] = where
        return shown
