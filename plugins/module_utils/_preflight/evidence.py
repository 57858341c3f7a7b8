# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads everything that a preflight looks at, whatever of it is missing. Changes nothing."""

from __future__ import annotations

import os
from typing import Any, Callable, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import BackendError, choose
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import (
    GpuReader,
    GpuSnapshot,
    NvmlError,
    NvmlMissing,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.mps import is_daemon
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import (
    Journal,
    Operation,
    StepRecord,
    open_journal,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import (
    BackendFacts,
    HostFacts,
    JournalFacts,
    NvmlFacts,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_criu import CriuProbe
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_driver import read_driver
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_kernel import read_kernel, read_rights
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_store import read_store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, is_alive
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import SelectError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot, read_snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._survey import Survey


class NoJournal(Journal):
    """Stands for one that can't be read: it remembers nothing."""

    def __init__(self) -> None:
        pass

    def close(self) -> None:
        pass

    def live(self, boot_id: str) -> Tuple[Operation, ...]:
        return ()

    def latest(self, identity: Identity) -> Optional[Operation]:
        return None

    def refused(self, identity: Identity) -> Optional[int]:
        return None

    def history(self, step: str, limit: int = 100) -> Tuple[StepRecord, ...]:
        return ()

    def reserved(self, alive: Callable[[Identity], bool] = is_alive, but: Iterable[Identity] = ()) -> Mapping[str, int]:
        return {}


def read_journal(path: str) -> Tuple[Journal, JournalFacts]:
    try:
        return open_journal(path, create=False), JournalFacts(path)
    except JournalError as error:
        return NoJournal(), JournalFacts(path, error.subject, error.evidence, error.reason, error.remedy)


def read_backend(wanted: str, executable: Optional[str]) -> BackendFacts:
    """wanted, executable: as choose() takes them."""
    try:
        backend = choose(wanted, executable) if executable else choose(wanted)
    except BackendError as error:
        return BackendFacts("", problem=error.subject, evidence=error.evidence, remedy=error.remedy)
    return BackendFacts(backend.name, backend.can_hold, backend.can_map)


class Evidence:
    """One reading of the host. CRIU and NVML work in the background from the start on."""

    def __init__(
        self,
        criu: str,
        journal: str,
        backend: str,
        executable: Optional[str],
        allow: FrozenSet[str] = frozenset(),
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """backend, executable: as choose() takes them. allow: as Survey takes it. meanwhile: what to do while NVML
        looks."""
        self._meanwhile = meanwhile
        self._criu = CriuProbe(criu, check=os.geteuid() == 0)
        self._nvml = NvmlFacts(None)
        self._gpus: Optional[GpuReader] = None
        try:
            self._gpus = GpuReader()
        except NvmlMissing:
            self._nvml = NvmlFacts(None, missing=True)
        self._backend = read_backend(backend, executable)
        # Last, because a fork closes it.
        self.journal, self._remembered = read_journal(journal)
        self.survey = Survey(self.journal, allow=allow, read=self._snapshot)

    def close(self) -> None:
        if self._gpus is not None:
            self._gpus.close()
        self._criu.finish()
        self.journal.close()

    def _snapshot(self, pids: Sequence[int]) -> Snapshot:
        return read_snapshot(pids, gpus=self._read_gpus)

    def _read_gpus(self) -> Tuple[GpuSnapshot, ...]:
        """None of them where NVML does not answer: `facts` tells why."""
        if self._gpus is not None:
            try:
                self._gpus.ask()
                self._meanwhile()
                self._nvml = NvmlFacts(self._gpus.read())
            except NvmlMissing:
                self._nvml = NvmlFacts(None, missing=True)
            except NvmlError as error:
                self._nvml = NvmlFacts(None, words=error.words, code=error.code)
        return self._nvml.gpus or ()

    def subjects(self, wanted: Optional[Sequence[Wanted]], criteria: Optional[Mapping[str, Any]]) -> List[Subject]:
        """wanted, criteria: None for both means every CUDA process. Raises ArgumentError, SelectError."""
        if wanted is not None:
            return self.survey.named(wanted)
        try:
            return self.survey.selected(criteria)
        except SelectError as error:
            if error.argument != "select.gpus" or self._nvml.gpus is not None:
                raise
            raise SelectError(
                "select.gpus",
                "which process is on which GPU is not known, because NVML does not answer",
                "Choose them by something else; a run without select says what is missing.",
            ) from error

    def facts(self, store: Optional[str]) -> HostFacts:
        """After `subjects`. store: where images are to lie, None for not named."""
        snapshot = self.survey.snapshot
        if snapshot is None:
            raise RuntimeError("nothing was read yet")
        return HostFacts(
            host=snapshot.host,
            driver=read_driver(),
            nvml=self._nvml,
            rights=read_rights(),
            kernel=read_kernel(snapshot.host.kernel),
            criu=self._criu.finish(),
            backend=self._backend,
            journal=self._remembered,
            store=None if store is None else read_store(store),
            mps=tuple((process.pid, process.name) for process in snapshot.processes if is_daemon(process)),
        )
