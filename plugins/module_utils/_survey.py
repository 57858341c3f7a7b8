# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes are meant, and what can be said of each without asking the driver."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _findings, _plan
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError, Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around_read import look_around
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import Context, Finding, evaluate
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.freezer import is_frozen
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.process import pending
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import select
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject, waiting_words
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._targets import check_targets, own_ancestors

OURS = frozenset((_plan.PARKED, _plan.INTERRUPTED, _plan.LOOSE, _plan.RUNAWAY, _plan.BUSY))

#: From here on, and until it runs again, a process has nothing on its GPU.
_AWAY = frozenset(("checkpoint", "settle", "park", "guard", "restore"))
STALE_ATTEMPTS = 20
SETTLE_SECONDS = 0.02
# After the death of a worker, the kernel puts the threads of its process back into their stop one by one.
STOPPING_SECONDS = 1.0


class Survey:
    """One reading of the host and its journal. allow: the names that the operator overrides. criu: as in Context."""

    def __init__(
        self,
        journal: Journal,
        read: Callable[[Sequence[int]], Snapshot],
        allow: FrozenSet[str] = frozenset(),
        criu: Tuple[int, ...] = (),
    ) -> None:
        self._journal = journal
        self._allow = allow
        self._read = read
        self.criu = criu
        self.snapshot: Optional[Snapshot] = None
        self.left_out: Tuple[int, ...] = ()
        self.lost: Tuple[Operation, ...] = ()

    @property
    def gpus(self) -> Tuple[GpuSnapshot, ...]:
        return self.snapshot.gpus if self.snapshot is not None else ()

    def named(self, wanted: Sequence[Wanted]) -> List[Subject]:
        """Raises ArgumentError where one is no process that may be touched."""
        pids = [entry.pid for entry in wanted]
        began = time.time()
        self.snapshot = self._read(pids)
        check_targets(wanted, self.snapshot, self._remembered(), own_ancestors(), self._journal.latest)
        subjects = self._subjects(pids, began)
        if len(subjects) < len(pids):
            gone = sorted(set(pids) - {subject.pid for subject in subjects})[0]
            raise ArgumentError("pids", f"{gone} ended while it was looked at", "Name processes that run on this host.")
        return subjects

    def selected(self, criteria: Optional[Mapping[str, Any]]) -> List[Subject]:
        """Those that match; None: every CUDA process, suspended ones as well. What was suspended and has ended since
        matches nothing any more; it is in `lost`. Raises SelectError."""
        remembered = self._remembered()
        began = time.time()
        self.snapshot = self._read([operation.identity.pid for operation in remembered])
        self.lost = tuple(one for one in remembered if self._is_lost(one, self.snapshot))
        held = {operation.identity.pid: dict(operation.device_bytes) for operation in remembered}
        chosen = select(criteria or {"all": True}, self.snapshot, held)
        own = own_ancestors()
        self.left_out = tuple(pid for pid in chosen if pid in own)
        return self._subjects([pid for pid in chosen if pid not in own], began)

    def again(self, pid: int) -> Optional[Subject]:
        """One process, read anew; None when it has ended."""
        began = time.time()
        self.snapshot = self._read([pid])
        return next(iter(self._subjects([pid] if self.snapshot.process(pid) else [], began)), None)

    def _subjects(self, pids: Sequence[int], began: float) -> List[Subject]:
        """The journal is read after the processes. Where a worker has written to it since, what was read of its process
        is from before, and is read again: the two together would tell of a state that never was. So is a process
        whose worker has died in the middle of it a moment ago."""
        for _attempt in range(STALE_ATTEMPTS):
            if self.snapshot is None:
                break
            subjects = [self.subject(self.snapshot, pid) for pid in pids]
            if all(_is_settled(one, began) for one in subjects):
                return subjects
            time.sleep(SETTLE_SECONDS)
            began = time.time()
            self.snapshot = self._read(pids)
            pids = [pid for pid in pids if self.snapshot.process(pid) is not None]
        return subjects

    def _remembered(self) -> Tuple[Operation, ...]:
        return self._journal.live(read_boot_id())

    def _is_lost(self, operation: Operation, snapshot: Snapshot) -> bool:
        """Suspended, and gone without an image that it could have ended for."""
        if operation.status != "suspended" and operation.step not in _AWAY:
            return False
        process = snapshot.process(operation.identity.pid)
        if (process is not None and process.identity == operation.identity) or is_alive(operation.identity):
            return False
        return not self._journal.images_of(operation.identity) and not self._journal.images_of_run(operation.run_id)

    def subject(self, snapshot: Snapshot, pid: int) -> Subject:
        process = snapshot.process(pid)
        if process is None:
            raise LookupError(f"PID {pid} is not in the snapshot")
        operation = self._journal.latest(process.identity)
        memory = None if operation is None else _memory(operation)
        guard = None if operation is None else self._journal.guard(process.identity, process.tracer_pid)
        guarded = (memory is not None and memory.worker_alive) or guard is not None
        evidence = _plan.Evidence(
            # One thread is enough: a stop is of all, and on its way where the others still move.
            stopped=any(state in ("T", "t") for state in (process.state, *(one.state for one in process.threads))),
            frozen=bool(process.frozen),
            frozen_by_us=bool(process.frozen) and is_frozen(process.identity),
            looks_suspended=bool(process.looks_suspended),
            holds_devices=bool(process.has_devices),
        )
        kind = _plan.look(evidence, memory)
        if kind == _plan.UNOWNED and "parked_unowned" in self._allow:
            kind = _plan.INTERRUPTED
        subject = Subject(process, operation, kind, traced_by_us=guard is not None)
        subject.device_bytes = _device_bytes(snapshot.gpus, operation, pid)
        if kind in OURS and process.state in ("T", "t"):
            subject.notes.extend(waiting_words(name) for name in pending(pid))
        # One whose restore failed has to be asked, and is guarded all the same.
        subject.guarded = kind == _plan.INTERRUPTED and guarded
        if kind == _plan.PARKED and operation is not None:
            subject.saw(_plan.View("checkpointed", operation.stopped_by or "us", guarded))
            subject.guard = operation.guard if guarded else "none"
            worker = guard or operation.worker
            subject.guard_pid = worker.pid if guarded and worker is not None else None
        elif kind == _plan.UNOWNED:
            subject.saw(_plan.View("checkpointed", "other"))
        elif kind == _plan.RUNAWAY:
            subject.saw(_plan.View("checkpointed"))
            subject.notes.append(
                "it was parked, but its threads run without their GPU: somebody continued it while nobody guarded it"
            )
        return subject

    def evaluate(
        self,
        action: str,
        subjects: Sequence[Subject],
        pairs: Sequence[Tuple[str, str]] = (),
        promised: Optional[Mapping[str, int]] = None,
    ) -> Tuple[Finding, ...]:
        """What speaks against an action ("lock", "suspend", "resume", "dump") on all of them.

        pairs: old and new GPU UUID. promised: GPU UUID to bytes that this run has given to others already.
        """
        if not subjects or self.snapshot is None:
            return ()
        self.snapshot = look_around(self.snapshot, [subject.pid for subject in subjects], action)
        moved = dict(pairs)
        reserved = dict(self._journal.reserved(is_alive))
        for uuid, held in (promised or {}).items():
            reserved[uuid] = reserved.get(uuid, 0) + held
        context = Context(
            snapshot=self.snapshot,
            targets=tuple(subject.pid for subject in subjects),
            action=action,
            device_bytes={
                subject.pid: {moved.get(uuid, uuid): held for uuid, held in (subject.device_bytes or {}).items()}
                for subject in subjects
            },
            parked_by_us=frozenset(subject.pid for subject in subjects if subject.kind in OURS),
            uid=os.geteuid(),
            reserved=reserved,
            criu=self.criu,
            left_stopped={
                subject.pid: subject.operation.run_id
                for subject in subjects
                if subject.operation is not None
                and subject.operation.stopped_by == "other"
                and subject.operation.status in ("done", "undone")
            },
        )
        foreign = [
            _findings.traced(subject, self.snapshot.process(subject.process.tracer_pid))
            for subject in subjects
            if _is_traced_by_others(subject)
        ]
        return (*foreign, *evaluate(context, self._allow))


def _is_traced_by_others(subject: Subject) -> bool:
    """Of a process that is ours: others are the hazards' business."""
    return subject.kind in OURS and subject.process.tracer_pid != 0 and not subject.traced_by_us


def _is_settled(subject: Subject, began: float) -> bool:
    """Nobody has written about it since it was read, and no stop is on its way."""
    operation = subject.operation
    if operation is None:
        return True
    stopping = (
        subject.kind == _plan.ASK and operation.status in ("active", "unknown") and operation.step in _plan.STOPPING
    )
    return operation.updated < began and not (stopping and time.time() - operation.updated < STOPPING_SECONDS)


def _memory(operation: Operation) -> _plan.Memory:
    return _plan.Memory(
        status=operation.status,
        step=operation.step,
        worker_alive=operation.worker is not None and is_alive(operation.worker),
        park=operation.park,
        stopped_by=operation.stopped_by,
    )


def _device_bytes(gpus: Sequence[GpuSnapshot], operation: Optional[Operation], pid: int) -> Optional[Dict[str, int]]:
    """GPU UUID to bytes, as NVML lists them. A suspended process is on no GPU: then what the journal remembers."""
    listed = {gpu.uuid: one.used_bytes for gpu in gpus for one in gpu.processes if one.pid == pid}
    known = {uuid: held for uuid, held in listed.items() if held is not None}
    if listed:
        return known if len(known) == len(listed) else None
    if operation is not None and operation.status not in ("done", "undone") and operation.device_bytes:
        return dict(operation.device_bytes)
    return None
