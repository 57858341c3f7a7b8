# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes a list of processes from whatever state they are in to the one that is wanted.

Away from running it is all or nothing: whatever fails, every process goes back to where it was. Towards running it is
each for itself: every process that runs again stays so.
"""

from __future__ import annotations

import math
import os
import random
import socket
import time
from dataclasses import replace
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import (
    _device_map,
    _findings,
    _plan,
    _scope,
    _subject,
    _worker,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError, Options
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.advice import advise
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import Backend
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot, NvmlError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import size
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import OPTIONS as HAZARD_OPTIONS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._huge_pages import HugePages
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_reservations import Shortage
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Command, Outcome
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._pool import Pool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, is_alive, read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot, read_snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._survey import Survey
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold import UnitHoldError, UnitHolds
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import SUSPEND, Done, Look, lift

QUERY_SECONDS = 60.0
BUSY_SECONDS = 600.0
BUSY_POLL_SECONDS = 0.2
ATTEMPTS = 3
TURNS = 8
# What the kernel takes to stop the threads of a process again whose worker has died.
REVIVE_SECONDS = 0.05
# How to find out about a process whose worker died.
REVIVALS = {
    _plan.ASK: "state",
    _plan.RUNAWAY: "adopt",
    _plan.PARKED: "adopt",
    _plan.INTERRUPTED: "probe",
    _plan.LOOSE: "go_on",
}
ALLOW = HAZARD_OPTIONS | _findings.OWN_OPTIONS


class Refused(Exception):
    """A gate is closed; nothing has changed."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(finding.message() for finding in findings))
        self.findings = tuple(findings)


class Failed(Exception):
    """Something was tried and did not come out as wanted; the subjects say what was left."""


class Engine:
    """One run of cuda_checkpoint."""

    def __init__(
        self,
        options: Options,
        backend: Backend,
        journal: Journal,
        gpus: Callable[[], Tuple[GpuSnapshot, ...]],
        snapshot: Optional[Callable[[Sequence[int]], Snapshot]] = None,
        start: Callable[[_worker.Job, socket.socket], int] = _worker.start,
    ) -> None:
        """gpus: reads the GPUs as they are at the moment. snapshot, start: for tests."""
        self.options = self._options = options
        self.backend = self._backend = backend
        self.decided = False
        self._journal = journal
        self._start = start
        self._read_gpus = gpus
        self._pool = Pool(self._start_worker)
        read = snapshot or (lambda pids: read_snapshot(pids, gpus=gpus))
        self._survey = Survey(journal, read, options.allow)
        self.subjects: List[Subject] = []
        self.findings: List[Finding] = []
        self.warnings: List[str] = []
        self.lost: Tuple[Operation, ...] = ()
        self.units: List[Done] = []
        self._holds = UnitHolds(journal)
        self._held = Look(SUSPEND)

    @property
    def huge_pages(self) -> str:
        """What was done with the setting, in the words of whoever changed it first."""
        return next((subject.huge_pages for subject in self.subjects if subject.huge_pages), "kept")

    @property
    def gpus(self) -> Tuple[GpuSnapshot, ...]:
        return self._survey.gpus

    def run(self) -> None:
        """Raises ArgumentError, DeviceMapError, Refused, Failed."""
        try:
            self._run_in_turn()
        except (ArgumentError, _device_map.DeviceMapError, Refused, Failed):
            self._leave()
            raise
        except BaseException:
            self._pool.abandon()
            raise
        self._leave()

    def harden(self) -> None:
        """What this run has made of the processes outlives the host."""
        if any(subject.touched for subject in self.subjects):
            try:
                self._journal.harden()
            except JournalError as error:
                self.warnings.append(str(error))

    def _run_in_turn(self) -> None:
        """Two runs over the same processes exclude each other one process at a time: whoever comes second lets go of
        what it has, waits for the first, and begins anew with what that one has made of them.
        """
        earlier: List[Subject] = []
        try:
            for _turn in range(TURNS):
                try:
                    return self._run()
                except Failed:
                    failures = [one.failure for one in self.subjects if one.failure is not None]
                    if not failures or not all(failure.busy for failure in failures):
                        raise
                    if any(one.undo_failure is not None for one in self.subjects):
                        raise
                self._leave()
                earlier = self.subjects + earlier
                self.findings.clear()
                self.decided = False
                time.sleep(random.uniform(0.2, 1.0))
            self._run()
        finally:
            for one in earlier:
                for subject in self.subjects:
                    if subject is not one:
                        subject.carries_on(one)

    def _run(self) -> None:
        if not self._options.check:
            self._mend()
        self._see()
        self._ask()
        self._decide()
        if not self._options.check:
            self._act()
            self._settle()
        if any(subject.failure is not None for subject in self.subjects):
            raise Failed(self._message(""))

    def _leave(self) -> None:
        self._pool.leave({subject.pid for subject in self.subjects})

    def _mend(self) -> None:
        """What a dead run left behind on the host, besides its processes."""
        self.warnings.extend(HugePages(self._journal).mend(is_alive))
        self.warnings.extend(self._holds.mend())
        self._journal.drop_reservations(is_alive)

    # What is there

    def _see(self) -> None:
        options = self._options
        end = time.monotonic() + (options.step_timeout or BUSY_SECONDS)
        while True:
            if options.select is None:
                self.subjects = self._survey.named(options.pids)
            else:
                self.subjects = self._survey.selected(options.select)
            busy = [subject for subject in self.subjects if subject.kind == _plan.BUSY]
            if not busy:
                break
            if time.monotonic() > end:
                raise Refused([_findings.busy(subject) for subject in busy])
            time.sleep(BUSY_POLL_SECONDS)
        if not self.subjects:
            self.warnings.append("select matched no process")
        self.lost = self._survey.lost
        words = [_subject.lost_words(one) for one in self.lost]
        self.warnings.extend(one for one in words if one not in self.warnings)
        for pid in self._survey.left_out:
            self.warnings.append(f"PID {pid} was left out: this module runs below it")

    def _ask(self) -> None:
        """The state of those that only the driver can tell; a process that may not answer is held first."""
        commands: Dict[int, Command] = {}
        for subject in self.subjects:
            if subject.kind == _plan.ASK and subject.process.may_be_cuda:
                commands[subject.pid] = Command("state")
            elif subject.kind == _plan.INTERRUPTED:
                if self._options.check:
                    subject.saw(_plan.View(_guess(subject), "us", held_first=True))
                else:
                    commands[subject.pid] = Command("probe")
            elif subject.kind == _plan.LOOSE:
                if self._options.check:
                    subject.saw(_plan.View(_guess(subject), "us"))
                else:
                    commands[subject.pid] = Command("go_on")
            elif subject.kind == _plan.STOPPED and "stopped" in self._options.allow and not subject.process.tracer_pid:
                if self._options.check:
                    subject.saw(_plan.View("running", "other"))
                else:
                    commands[subject.pid] = Command("state")
        for pid, outcome in self._pool.run(commands, QUERY_SECONDS).items():
            self._told(self._of(pid), commands[pid], outcome)

    def _told(self, subject: Subject, command: Command, outcome: Outcome) -> None:
        if outcome.ok:
            stopped = "other" if subject.kind == _plan.STOPPED else outcome.stopped
            subject.saw(_plan.View(outcome.state, stopped, guarded=subject.guarded))
            if command.do == "probe" and subject.operation is None:
                subject.notes.append("it was suspended and stopped by somebody else; taken over")
            elif command.do in ("probe", "go_on") and subject.operation is not None:
                subject.mended = command.do == "go_on"
                step = subject.operation.step
                subject.notes.append(f"a worker had ended in the middle of it (step {step}); carried on from there")
            return
        subject.failure = outcome

    # What is to be done

    def _decide(self) -> None:
        options = self._options
        if options.goal == "locked" and not self._backend.can_lock:
            raise ArgumentError(
                "state",
                f"the {self._backend.name} backend can't lock: this driver's cuda-checkpoint knows --toggle only",
                "running and checkpointed are allowed with it.",
            )
        blocking: List[Finding] = []
        for subject in self.subjects:
            blocking.extend(self._own_findings(subject))
        planned = [one for one in self.subjects if one.view.state in _plan.RANK and one.kind != _plan.UNOWNED]
        for subject in planned:
            subject.plan = _plan.steps(
                subject.view,
                options.goal,
                options.park and self._backend.can_hold,
                options.guard != "none",
                self._backend.can_lock,
            )
            if "checkpoint" in subject.plan:
                blocking.extend(self._note(self._before_checkpoint(subject)))
        away = [subject for subject in planned if set(subject.plan) & {"lock", "checkpoint"}]
        blocked = [subject for subject in self.subjects if subject.view.state not in _plan.RANK]
        action = "suspend" if options.goal == "checkpointed" else "lock" if options.goal == "locked" else "resume"
        blocking.extend(self._gate(action, [*away, *blocked]))
        towards = [subject for subject in planned if "restore" in subject.plan]
        if towards:
            self._map_devices(towards)
            blocking.extend(self._gate_restores(towards))
        for subject in blocked:
            if not any(finding.pid == subject.pid for finding in blocking):
                blocking.append(_findings.unknown_state(subject))
        if blocking:
            raise Refused(blocking)
        self.decided = True

    def _before_checkpoint(self, subject: Subject) -> List[Finding]:
        found: List[Finding] = []
        refused = self._journal.refused(subject.process.identity)
        if refused is not None:
            found.append(_findings.refused_before(subject, refused, "checkpoint_refused" in self._options.allow))
        if not self._backend.can_hold:
            found.append(_findings.unparked(subject, "unparked" in self._options.allow))
        elif not self._options.park:
            found.append(_findings.window(subject))
        return found

    def _own_findings(self, subject: Subject) -> List[Finding]:
        if subject.kind == _plan.BUSY:
            return [_findings.busy(subject)]
        if subject.kind == _plan.UNOWNED:
            return [_findings.unowned(subject)]
        return []

    def _gate(self, action: str, subjects: Sequence[Subject]) -> List[Finding]:
        """The blocking findings; all of them are noted with their process."""
        findings = self._survey.evaluate(action, subjects)
        if self._options.unit_policy == "hold" and action != "resume":
            self._held = self._holds.look(SUSPEND, [subject.process.identity for subject in subjects])
            findings = (*lift(findings, self._held), *self._held.findings)
            if self._options.check:
                self.units = self._held.done
        return self._note(findings)

    def _note(self, findings: Sequence[Finding]) -> List[Finding]:
        self.findings.extend(findings)
        for finding in findings:
            for subject in self.subjects:
                if subject.pid == finding.pid:
                    subject.findings.append(finding)
        return [finding for finding in findings if finding.severity == "blocking"]

    def _map_devices(self, towards: Sequence[Subject]) -> None:
        """Where each goes. The biggest choose first; what is already given away counts as taken."""
        promised = dict(self._journal.reserved(is_alive))
        for subject in sorted(towards, key=lambda one: -one.total_bytes):
            mapped = _device_map.resolve(
                self._options.device_map, self.gpus, subject.device_bytes or {}, promised, self._options.origin
            )
            subject.pairs = mapped.pairs
            if subject.pairs and not self._backend.can_map:
                raise ArgumentError(
                    "device_map",
                    f"the {self._backend.name} backend of this driver restores to the same GPUs only",
                    "Leave it out; drivers from 580 on take a map.",
                )
            for uuid, held in _needs(subject).items():
                promised[uuid] = promised.get(uuid, 0) + held

    def _gate_restores(self, towards: Sequence[Subject]) -> List[Finding]:
        """Each for itself here, too: what has room comes back, what has none stays suspended and is named. Only where
        nothing at all can come back is it a refusal.
        """
        promised: Dict[str, int] = {}
        refusals: List[Finding] = []
        refused: List[Subject] = []
        for subject in towards:
            blocking = self._note(self._survey.evaluate("resume", [subject], subject.pairs, promised))
            if blocking:
                refused.append(subject)
                refusals.extend(blocking)
                subject.failure = _refusal(subject, blocking)
                continue
            for uuid, held in _needs(subject).items():
                promised[uuid] = promised.get(uuid, 0) + held
        if len(refused) == len(self.subjects):
            return refusals
        for subject in refused:
            subject.plan = ()
        return []

    # Doing it

    def _act(self) -> None:
        self._settle_workers([subject.pid for subject in self.subjects if subject.plan])
        away = [subject for subject in self.subjects if set(subject.plan) & {"lock", "checkpoint"}]
        towards = [subject for subject in self.subjects if subject.plan and subject not in away]
        try:
            if away:
                self._hold_units()
                self._away(away)
            if towards:
                self._towards(towards)
        except Failed:
            self._release_units()
            raise
        self._release_units()

    def _hold_units(self) -> None:
        """Before the first of them is locked: from there on it may no longer report."""
        try:
            self.units = self._holds.hold(self._held)
        except UnitHoldError as error:
            raise Refused([error.finding]) from error

    def _release_units(self) -> None:
        """Of those that run, or have ended. Held by an earlier run as well, whatever this one was told."""
        over = [one for one in self.subjects if one.state == "gone" or (one.state == "running" and not one.stopped)]
        try:
            done, warnings = self._holds.release_processes(one.process.identity for one in over)
        except JournalError as error:
            done, warnings = [], [str(error)]
        names = {one.unit for one in done}
        self.units = [one for one in self.units if one.unit not in names] + done
        self.warnings.extend(warnings)

    def _away(self, subjects: Sequence[Subject]) -> None:
        options = self._options
        stopped = {subject.pid: Command("go_on") for subject in subjects if "continue" in subject.plan}
        lock = {
            subject.pid: Command("lock", timeout_ms=max(1, math.ceil(options.lock_timeout * 1000)))
            for subject in subjects
            if "lock" in subject.plan
        }
        checkpoint = {subject.pid: Command("suspend") for subject in subjects if "checkpoint" in subject.plan}
        moved = sum(subject.total_bytes for subject in subjects)
        done = (
            self._phase(stopped, QUERY_SECONDS)
            and self._phase(lock, options.lock_timeout + QUERY_SECONDS)
            and self._phase(checkpoint, _plan.watchdog_seconds(moved, options.step_timeout))
        )
        if done:
            self._keep_guards(subjects)
            return
        if not options.rollback:
            raise Failed(self._message("rollback is off: every process was left as it is"))
        self._roll_back(subjects, _plan.watchdog_seconds(moved, options.step_timeout))
        self._keep_guards(subjects)
        raise Failed(self._message(""))

    def _phase(self, commands: Mapping[int, Command], seconds: float) -> bool:
        outcomes = self._pool.run(self._with_facts(commands), seconds, self._options.parallel, stop_on_failure=True)
        for pid, outcome in outcomes.items():
            self._of(pid).came_to(outcome)
        return all(outcome.ok for outcome in outcomes.values()) and len(outcomes) == len(commands)

    def _roll_back(self, subjects: Sequence[Subject], seconds: float) -> None:
        self._revive(subjects)
        commands: Dict[int, Command] = {}
        suspended: List[Subject] = []
        for subject in subjects:
            if subject.failure is not None and subject.failure.busy:
                continue  # what it is now is the other run's doing
            if subject.state == "checkpointed" and subject.view.state != "checkpointed":
                suspended.append(subject)
            elif subject.state == "locked" and subject.view.state == "running":
                commands[subject.pid] = Command("unlock", undo=True)
        for subject, shortage in self._reserve(suspended):
            if shortage is None:
                unlock = subject.view.state == "running"
                commands[subject.pid] = Command("resume", unlock=unlock, undo=True)
            else:
                # Its memory was given away meanwhile: a restore without room would lose it.
                subject.undo_failure = _no_room(subject, shortage, self.gpus)
        for pid, outcome in self._pool.run(self._with_facts(commands), seconds, self._options.parallel).items():
            self._of(pid).went_back(outcome)

    def _revive(self, subjects: Sequence[Subject]) -> None:
        """Processes whose worker died, or of which nothing is known: looked at and asked again. A late worker is left
        alone: it is at work.
        """
        commands: Dict[int, Command] = {}
        time.sleep(REVIVE_SECONDS)
        for subject in subjects:
            failure = subject.failure
            if (
                failure is None
                or failure.late
                or failure.busy
                or not (failure.lost_worker or subject.state == "unknown")
            ):
                continue
            try:
                again = self._survey.again(subject.pid)
            except (JournalError, NvmlError) as error:
                self.warnings.append(f"{subject.name} could not be looked at again: {error}")
                continue
            if again is None:
                subject.state = "gone"
                continue
            subject.operation, subject.kind = again.operation, again.kind
            command = REVIVALS.get(again.kind)
            if command is not None:
                commands[subject.pid] = Command(command)
        for pid, outcome in self._pool.run(self._with_facts(commands), QUERY_SECONDS).items():
            subject = self._of(pid)
            if outcome.ok:
                subject.state, subject.stopped = outcome.state, outcome.stopped

    def _towards(self, subjects: Sequence[Subject]) -> None:
        """Each for itself; what failed and can be tried again is."""
        left = self._try_towards(subjects)
        for _attempt in range(ATTEMPTS - 1):
            again = [subject for subject in left if _may_be_retried(subject)]
            if not again:
                break
            self._revive(again)
            left = [subject for subject in left if subject not in again] + self._try_towards(again)
        self._keep_guards(subjects)

    def _try_towards(self, subjects: Sequence[Subject]) -> List[Subject]:
        options = self._options
        commands: Dict[int, Command] = {}
        restored = [one for one in subjects if "restore" in one.plan and one.state == "checkpointed"]
        for subject, shortage in self._reserve(restored):
            subject.failure = None if shortage is None else _no_room(subject, shortage, self.gpus)
            if shortage is None:
                commands[subject.pid] = Command("resume", unlock=options.goal == "running", pairs=subject.pairs)
        for subject in subjects:
            if subject in restored:
                continue
            if options.goal != "checkpointed" and subject.state == options.goal and not subject.stopped:
                subject.failure = None
            elif "unlock" in subject.plan and subject.state == "locked":
                commands[subject.pid] = Command("unlock")
            elif "continue" in subject.plan and subject.state in ("running", "locked"):
                commands[subject.pid] = Command("go_on")
            elif set(subject.plan) & {"park", "guard"}:
                commands[subject.pid] = Command("adopt")
        moved = sum(subject.total_bytes for subject in subjects)
        seconds = _plan.watchdog_seconds(moved, options.step_timeout)
        for pid, outcome in self._pool.run(self._with_facts(commands), seconds, options.parallel).items():
            subject = self._of(pid)
            subject.came_to(outcome)
            if subject.failure is None and subject.state != options.goal:
                subject.failure = replace(
                    outcome, ok=False, step=commands[pid].do, text=f"its state is {subject.state}"
                )
        return [subject for subject in subjects if subject.failure is not None]

    def _reserve(self, subjects: Sequence[Subject]) -> List[Tuple[Subject, Optional[Shortage]]]:
        """Room on the GPUs that they go to, so that nobody counts on it. None: there is, or the operator says so."""
        wants: List[Tuple[Identity, Mapping[str, int]]] = []
        for subject in subjects:
            self._pool.ensure(subject.pid)
            owner = read_identity(self._pool.workers[subject.pid])
            if owner is None:
                raise Failed(f"{subject.name}: its worker ended at once. Run the task again.")
            wants.append((owner, _needs(subject)))
        if not wants:
            return []
        free = self._journal.reserve(wants, lambda: {gpu.uuid: gpu.free_bytes for gpu in self._read_gpus()})
        given = "vram_short" in self._options.allow
        return [(subject, None if given else shortage) for subject, shortage in zip(subjects, free)]

    def _settle(self) -> None:
        """Operations whose worker died, or whose process somebody else resumed: what was read is that they are over."""
        for subject in self.subjects:
            operation = subject.operation
            if operation is None or operation.status in ("done", "undone") or subject.touched:
                continue
            if subject.view.state in ("running", "locked"):
                status = "undone" if subject.view.state == operation.state_before else "done"
                words = f"run {self._options.run_id} found the process {subject.view.state}"
                try:
                    self._journal.finish(operation.id, status, words, {})
                except JournalError as error:
                    self.warnings.append(str(error))
        if self._options.goal == "running":
            self._bury()

    def _bury(self) -> None:
        """Once a run that was to bring everything back has told of them, they are no news any more."""
        for one in self.lost:
            try:
                self._journal.finish(
                    one.id, "undone", f"it had ended when run {self._options.run_id} looked for it", {}
                )
            except JournalError as error:
                self.warnings.append(str(error))

    def _keep_guards(self, subjects: Sequence[Subject]) -> None:
        for subject in subjects:
            if subject.touched:
                subject.guarded = subject.parked and self._options.guard != "none"
                subject.guard, subject.guard_pid = self._options.guard, self._pool.workers.get(subject.pid)

    # Workers

    def _settle_workers(self, pids: Sequence[int]) -> None:
        for pid in pids:
            self._pool.ensure(pid)
        workers = [self._pool.workers[pid] for pid in pids]
        run = self._options.run_id
        problem = _scope.move(
            f"gpufleet-checkpoint-{run}-{os.getpid()}", f"Workers of cuda_checkpoint run {run}", workers
        )
        if problem:
            self.warnings.append(problem)

    def _start_worker(self, pid: int, channel: socket.socket) -> int:
        subject = self._of(pid)
        options = self._options
        operation = subject.operation
        return self._start(
            _worker.Job(
                identity=subject.process.identity,
                run_id=options.run_id,
                goal=options.goal,
                executable=subject.process.executable,
                uid=subject.process.uid,
                park=options.park and self._backend.can_hold,
                guard=options.guard if self._backend.can_hold else "none",
                huge_pages=options.huge_pages,
                backend=self._backend,
                journal=options.journal,
                previous=operation,
                stopped_by=_stopped_by(subject),
                device_bytes=dict(subject.device_bytes or {}),
            ),
            channel,
        )

    def _with_facts(self, commands: Mapping[int, Command]) -> Dict[int, Command]:
        """The state before is only known once the worker has asked for it."""
        return {pid: replace(command, state_before=self._of(pid).view.state) for pid, command in commands.items()}

    def _of(self, pid: int) -> Subject:
        return next(subject for subject in self.subjects if subject.pid == pid)

    # Words

    def _message(self, first: str) -> str:
        lines = [first] if first else []
        for subject in self.subjects:
            if subject.failure is not None:
                lines.append(_subject.failure_text(subject, subject.failure))
        for subject in self.subjects:
            if subject.undo_failure is not None:
                lines.append("Not taken back: " + _subject.failure_text(subject, subject.undo_failure))
        undone = [subject.name for subject in self.subjects if subject.undone]
        if undone:
            lines.append(f"Taken back to where they were: {', '.join(undone)}.")
        return "\n".join(lines)


def _needs(subject: Subject) -> Dict[str, int]:
    """GPU UUID to bytes, on the GPUs that it goes to."""
    moved = dict(subject.pairs)
    return {moved.get(uuid, uuid): held for uuid, held in (subject.device_bytes or {}).items()}


def _guess(subject: Subject) -> str:
    """Check mode holds nobody: what the evidence says of a process that a dead worker left stopped."""
    if subject.process.looks_suspended:
        return "checkpointed"
    step = subject.operation.step if subject.operation is not None else ""
    return "running" if step in ("unlock", "continue") else "locked"


def _stopped_by(subject: Subject) -> str:
    if subject.kind in (_plan.STOPPED,):
        return "other"
    if subject.kind in (_plan.PARKED, _plan.INTERRUPTED):
        return subject.operation.stopped_by or "us" if subject.operation is not None else "us"
    return ""


def _refusal(subject: Subject, findings: Sequence[Finding]) -> Outcome:
    return Outcome(
        ok=False,
        state=subject.state,
        stopped=subject.stopped,
        step="gate",
        text="\n".join(finding.message() for finding in findings),
        remedy="It is still suspended and whole.",
    )


def _no_room(subject: Subject, shortage: Shortage, gpus: Sequence[GpuSnapshot]) -> Outcome:
    index = next((str(gpu.index) for gpu in gpus if gpu.uuid == shortage.gpu), "?")
    free = "is not there any more" if shortage.free is None else f"has {size(shortage.free)} free"
    others = f", {size(shortage.reserved)} of it reserved for other restores" if shortage.reserved else ""
    return Outcome(
        ok=False,
        state=subject.state,
        stopped=subject.stopped,
        step="reserve",
        text=f"GPU {index} ({shortage.gpu}) {free}{others}, and it needs {size(shortage.needed)}",
        remedy="It is still suspended and whole: make room on that GPU, or wait for the other restores, and run the "
        "task again. Override: allow: [vram_short].",
    )


def _may_be_retried(subject: Subject) -> bool:
    failure = subject.failure
    if failure is None or failure.late or failure.state == "gone":
        return False
    advice = advise("restore", failure.code, bool(subject.pairs))
    return advice is None or not advice.lost
