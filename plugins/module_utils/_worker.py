# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker of one process: makes every driver call for it, holds it meanwhile, and guards it while it is parked.

It lives in a session of its own and outlives the module: whatever dies (Ansible, SSH, the module), it finishes the step
that it is in. Then: a lock that nobody will use any more is undone; a suspended process stays parked and guarded; a
resume goes on to its end. Each step is journalled before it begins, so that whoever comes after a dead worker knows.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import socket
import time
import traceback
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.advice import advise
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import Backend, Call, Reply
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import text as result_text
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import freezer, park
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import HoldError, ProcessEndedError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.freezer import is_frozen
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.guard import ENDED, UNWANTED, guard
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.hold import Hold
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.process import Handle, live_tasks
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._huge_pages import huge_pages
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, Operation, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError, TakenOverError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Command, Outcome, command_from
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import (
    Identity,
    ProcessSnapshot,
    is_alive,
    own_identity,
    read_identity,
    read_process,
    restore_thread_id,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._step_names import ProcessStep
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import WORKER_NAME, waiting_words

# arg_start in /proc/PID/stat, behind the name: proc_pid_stat(5)
_ARGUMENTS = 45
_PR_SET_NAME = 15
NAME = WORKER_NAME.encode()
# A process that a dead worker has left stopped is asked for so long while it is held; a copy that is going on counts.
PROBE_SECONDS = 600.0
# How often a guard tries to write what its journal lacks.
LATE_SECONDS = 3.0
# Refusals of a checkpoint after which the driver refuses every later one of the same process.
FOR_EVER = frozenset((2, 801, 999))
# A driver call is never given up: it can't be cut, and the module has a watchdog of its own.
DEADLINES = park.Deadlines(call=math.inf)


@dataclass(frozen=True)
class Job:
    """One process, and what the worker has to know of it.

    device_bytes (GPU UUID to bytes), stopped_by: for the journal. park, guard: as in the module's options.
    previous: the operation that left the process as it is now, if any.
    """

    identity: Identity
    run_id: str
    goal: str
    executable: str
    uid: int
    stopped_by: str
    device_bytes: Mapping[str, int]
    park: bool
    guard: str
    huge_pages: str
    backend: Backend
    journal: str
    previous: Optional[Operation] = None


def query_job(process: ProcessSnapshot, backend: Backend, journal: str) -> Job:
    """For a worker that only asks."""
    return Job(
        identity=process.identity,
        run_id="",
        goal="",
        executable=process.executable,
        uid=process.uid,
        stopped_by="",
        device_bytes={},
        park=False,
        guard="none",
        huge_pages="keep",
        backend=backend,
        journal=journal,
    )


@dataclass
class _Clock:
    """Seconds of each step of the command at hand."""

    seconds: Dict[str, float] = field(default_factory=dict)
    _name: str = ""
    _since: float = 0.0

    def step(self, name: str) -> None:
        now = time.monotonic()
        if self._name:
            self.seconds[self._name] = round(self.seconds.get(self._name, 0.0) + now - self._since, 6)
        self._name, self._since = name, now


class _GoneError(Exception):
    """The process has ended, or its PID is another process now."""


def start(job: Job, channel: socket.socket) -> int:
    """Fork a worker that serves this channel; returns its PID. The caller must have no other thread."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        settle_in(channel, NAME, f"PID {job.identity.pid}, run {job.run_id}")
        Worker(job, channel).serve()
        status = 0
    finally:
        # No cleanup of the module's: its temporary files and buffers are not the worker's.
        os._exit(status)


def _show_as(text: bytes) -> None:
    """As its command line, in place of the module's, which looks like an Ansible that hangs. Where that can't be
    written, it stays: nothing depends on it."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARGUMENTS]), int(fields[_ARGUMENTS + 1])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(text[: end - start - 1].ljust(end - start, b"\0"))
    except (OSError, ValueError, IndexError):
        pass


def settle_in(channel: socket.socket, name: bytes, subject: str) -> None:
    """Become a process of its own: session, files, signals, and name (15 characters at most). subject: what `ps` shows
    behind it."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    hear_of_children()
    # Asked to end while it is at work, it finishes first; the guard waits for this signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    keep = channel.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)
    _show_as(b"%s: %s" % (name, subject.encode()))
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("-1000")
    except OSError:
        pass  # only root may; a worker that is killed leaves its process stopped


class Worker:
    def __init__(self, job: Job, channel: socket.socket) -> None:
        self._job = job
        self._channel = channel
        self._pid = job.identity.pid
        self._backend = job.backend
        self._opened: Optional[Journal] = None
        self._operation: Optional[Operation] = None
        self._hold: Optional[Hold] = None
        self._clock = _Clock()
        self._notes: List[str] = []
        self._huge_pages = ""
        self._undo_lock = False
        self._unwritten: Optional[Tuple[Command, Outcome]] = None
        self._committed = False
        self._state = "unknown"
        self._state_before = "unknown"
        self._stopped = job.stopped_by

    def serve(self) -> None:
        """Commands, one after another, until the module leaves or is gone."""
        buffer = b""
        while True:
            line, newline, rest = buffer.partition(b"\n")
            if not newline:
                data = self._receive()
                if not data:
                    self._abandoned()
                    return
                buffer += data
                continue
            buffer = rest
            command = command_from(line)
            if command.do == "leave":
                self._leave()
                return
            self._answer(self._perform(command))

    def _receive(self) -> bytes:
        """What the module sends next, b"" when it is gone. A process that is held meanwhile is guarded."""
        if self._hold is not None and guard(self._hold, wake=self._channel.fileno()) != UNWANTED:
            self._hold = None
        try:
            return self._channel.recv(65536)
        except ConnectionError:
            return b""

    def _answer(self, outcome: Outcome) -> None:
        self._state = outcome.state
        try:
            self._channel.sendall(outcome.line())
        except OSError:
            pass  # the module is gone: the next read says so

    def _perform(self, command: Command) -> Outcome:
        self._clock = _Clock()
        self._notes = []
        self._committed = command.undo
        self._state_before = command.state_before or self._state_before
        actions: Dict[str, Callable[[Command], Outcome]] = {
            "state": self._query,
            "probe": self._probe,
            "lock": self._lock,
            "unlock": self._unlock,
            "suspend": self._suspend,
            "resume": self._resume,
            "adopt": self._adopt,
            "go_on": self._go_on,
        }
        try:
            if not is_alive(self._job.identity):
                raise _GoneError()
            self._check_ours()
            outcome = actions[command.do](command)
        except _GoneError:
            outcome = self._gone(command)
        except TakenOverError as error:
            words = f"{error.evidence}. {error.reason}"
            with suppress(JournalError):
                self._journal.release(own_identity())
            return replace(self._not_held(command, words, error.remedy), stopped="", busy=True)
        except HoldError as error:
            outcome = self._not_held(command, f"{error.subject}: {error.evidence}. {error.reason}", error.remedy)
        except JournalError as error:
            outcome = self._not_held(command, str(error), "Mend the journal, and run the task again.")
        except Exception as error:
            # Whatever it was, it is told; the process stays as it is, stopped if it was held, and the next run asks.
            outcome = self._unexpected(command, error)
        if not outcome.ok and outcome.state != "gone" and not is_alive(self._job.identity):
            outcome = self._gone(command)  # whatever the driver says of a process that is not there any more
        try:
            if command.do == "resume":
                self._journal.release(own_identity())
            self._unwritten = (command, outcome)
            self._record(command, outcome)
            self._unwritten = None
        except JournalError as error:
            outcome = replace(outcome, notes=(*outcome.notes, f"its outcome could not be journalled: {error}"))
        return outcome

    # What a command comes to

    def _outcome(
        self, ok: bool, state: str, reply: Optional[Reply] = None, step: str = "", remedy: str = ""
    ) -> Outcome:
        self._clock.step("")
        failed = None if ok else reply
        return Outcome(
            ok=ok,
            state=state,
            stopped=self._stopped,
            step="" if ok else step,
            code=failed.code if failed else None,
            text="" if failed is None else _words(failed),
            remedy="" if ok else remedy,
            seconds=dict(self._clock.seconds),
            notes=tuple(self._notes),
            huge_pages=self._huge_pages,
        )

    def _gone(self, command: Command) -> Outcome:
        self._clock.step("")
        now = read_identity(self._pid)
        text = "the process has ended" if now is None or now == self._job.identity else "the PID is another process now"
        return Outcome(
            ok=False,
            state="gone",
            step=command.do,
            text=f"{text}; it was left alone",
            seconds=dict(self._clock.seconds),
        )

    def _not_held(self, command: Command, text: str, remedy: str) -> Outcome:
        """The process could not be held, or the step not be journalled: nothing was asked of the driver. What is held
        stays so, to be guarded.
        """
        self._clock.step("")
        seen = read_process(self._pid)
        if seen is None or seen.identity != self._job.identity or seen.is_zombie:
            return self._gone(command)
        ours = seen.state == "T" or (seen.state == "t" and seen.tracer_pid == os.getpid())
        self._stopped = (self._job.stopped_by or "us") if ours or is_frozen(self._job.identity) else ""
        if ours or seen.state == "t" or seen.frozen:
            # Asked, it might never answer.
            state = "checkpointed" if seen.looks_suspended else "unknown"
        else:
            state = self._ask(self._backend.state(self._pid)).state or "unknown"
        return Outcome(
            ok=False,
            state=state,
            stopped=self._stopped,
            step=command.do,
            text=text,
            remedy=remedy,
            seconds=dict(self._clock.seconds),
        )

    def _unexpected(self, command: Command, error: Exception) -> Outcome:
        self._clock.step("")
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(
            ok=False,
            state="unknown",
            stopped=self._stopped,
            step=command.do,
            text=f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})",
            remedy="This is an error of the program: please report it. Run the task again: the state is read anew.",
            seconds=dict(self._clock.seconds),
        )

    # The journal

    @property
    def _journal(self) -> Journal:
        """Opened by the first step: a query leaves no trace."""
        if self._opened is None:
            self._opened = open_journal(self._job.journal)
        return self._opened

    def _step(self, name: ProcessStep) -> None:
        """Written before it happens. Once the driver was called, or on the way back, a journal that can't be written
        stops nobody: half way is worse than unwritten.
        """
        self._clock.step(name)
        try:
            self._write_step(name)
        except TakenOverError:
            raise
        except JournalError as error:
            if not self._committed:
                raise
            self._notes.append(f"step {name} could not be journalled: {error}")
        self._committed = self._committed or name in ("checkpoint", "restore")

    def _write_step(self, name: ProcessStep) -> None:
        if self._operation is None:
            job = self._job
            self._operation = self._journal.begin(
                run_id=job.run_id,
                identity=job.identity,
                executable=job.executable,
                uid=job.uid,
                goal=job.goal,
                state_before=self._state_before,
                step=name,
                worker=own_identity(),
                park=job.park,
                guard=job.guard,
                stopped_by=job.stopped_by,
                device_bytes=job.device_bytes,
                backend=job.backend.name,
                after=job.previous.id if job.previous is not None else 0,
                # That it had no GPU memory when the host ended is known already.
                durable=job.previous is None or job.previous.status != "suspended",
            )
            if job.previous is not None and job.previous.signal_mask and job.previous.status in ("active", "unknown"):
                # A worker that dies before it has put the masks back leaves them to the next one.
                self._journal.update(self._operation.id, signal_mask=job.previous.signal_mask)
            return
        self._journal.step(self._operation.id, name, status="active")

    def _check_ours(self) -> None:
        """Another run may take over what this one has suspended, while this one is busy with other processes."""
        if self._operation is None:
            return
        last = self._journal.latest(self._job.identity)
        if last is not None and last.id != self._operation.id:
            self._hold = None
            raise TakenOverError(
                self._journal.path,
                f"run {last.run_id} has taken it over in the meantime",
                "Two runs must not drive one process.",
                "Wait for that run, and run the task again.",
            )

    def _fields(self, **changed: object) -> None:
        """What a later run needs to know or to undo, written before the next step."""
        if self._operation is None:
            return
        try:
            self._journal.update(self._operation.id, **changed)
        except JournalError as error:
            if not self._committed:
                raise
            self._notes.append(f"{', '.join(changed)} could not be journalled: {error}")

    def _record(self, command: Command, outcome: Outcome) -> None:
        if self._operation is None or command.do in ("state", "probe"):
            return  # asking settles nothing: until it is acted on, the next run has to know what this one knew
        if outcome.state == "checkpointed":
            status = "suspended" if outcome.ok or command.do != "resume" else "failed"
        elif outcome.state == "unknown" or outcome.stopped == "us":
            status = "unknown"
        elif outcome.state == "gone":
            status = "failed"
        elif (command.undo and outcome.ok) or (not outcome.ok and outcome.state == self._state_before):
            status = "undone"
        elif outcome.ok:
            status = "active" if outcome.state == "locked" and self._job.goal == "checkpointed" else "done"
        else:
            status = "failed"
        self._journal.finish(self._operation.id, status, outcome.text, outcome.seconds, stopped_by=outcome.stopped)

    # Driver calls

    def _ask(self, call: Call, drop: bool = True) -> Reply:
        """Its reply, however long it takes. drop: end with the module; a dropped query leaves nothing behind."""
        while True:
            reply = call.wait(0.25)
            if reply is not None:
                return reply
            if drop and self._operation is None and self._module_is_gone():
                os._exit(0)

    def _module_is_gone(self) -> bool:
        readable, _writable, _odd = select.select([self._channel], [], [], 0)
        if not readable:
            return False
        try:
            return not self._channel.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _read_state(self) -> Reply:
        if self._hold is not None:
            return self._held(lambda: self._backend.state(self._pid))
        return self._ask(self._backend.state(self._pid))

    def _held(self, start: Callable[[], Call]) -> Reply:
        """A call while only the restore thread runs, however long it takes."""
        if self._hold is None:
            raise ValueError("nothing is held")
        reply = park.ask(self._hold, start)
        if reply is None:
            raise ValueError("a wait without a deadline ended without a reply")
        return reply

    def _is_suspended_by_evidence(self) -> bool:
        seen = read_process(self._pid)
        if seen is None or seen.identity != self._job.identity:
            raise _GoneError()
        return bool(seen.looks_suspended)

    # Commands

    def _query(self, command: Command) -> Outcome:
        if self._stopped == "other":
            with park.continued(self._job.identity):
                reply = self._ask(self._backend.state(self._pid), drop=False)
        else:
            reply = self._read_state()
        return self._outcome(reply.state is not None, reply.state or "unknown", reply, "state")

    def _target(self) -> park.Target:
        reply = self._ask(self._backend.restore_thread(self._pid))
        thread = None if reply.tid is None else restore_thread_id(self._pid, reply.tid)
        if thread is None:
            raise HoldError(
                f"PID {self._pid}",
                f"the driver names no restore thread ({_words(reply)})",
                "Without it the process can't be held while the driver works on it.",
                "Look at the process with cuda_checkpoint_info.",
            )
        return park.Target(self._job.identity, thread)

    @contextmanager
    def _pages(self) -> Iterator[None]:
        """Huge pages while the driver copies, if that is wanted and can be had."""
        with huge_pages(self._journal, own_identity(), self._job.huge_pages, self._notes) as self._huge_pages:
            yield

    def _probe(self, command: Command) -> Outcome:
        """Of a process that a dead worker left stopped: hold it, ask, keep it held."""
        self._hold = self._seize(self._target())
        self._stopped = self._job.stopped_by or "us"
        reply = park.ask(self._hold, lambda: self._backend.state(self._pid), PROBE_SECONDS)
        if reply is None:
            self._let_go(run=False)
            silent = Reply(
                ok=False, code=None, text=f"no answer within {PROBE_SECONDS:g} s while it is held", seconds=0.0
            )
            return self._outcome(
                False, "unknown", silent, "probe", "A thread of it may be stopped inside a call of CUDA."
            )
        return self._outcome(reply.state is not None, reply.state or "unknown", reply, "probe")

    def _seize(self, target: park.Target, step: Optional[park.Step] = None) -> Hold:
        """Hold a process that is parked, was left stopped, or runs without its GPU. Masks of a dead worker go back."""
        previous = self._job.previous
        mask = previous.signal_mask if previous is not None else None
        return park.adopt(target, DEADLINES, mask=mask, step=step or self._step, make_room=self._relieve_guard)

    def _lock(self, command: Command) -> Outcome:
        self._step("lock")
        self._undo_lock = self._state_before == "running"
        if self._stopped == "other":
            with park.continued(self._job.identity):
                # Asked within: stopped again, it would not answer.
                reply, state = self._lock_running(command)
        else:
            reply, state = self._lock_running(command)
        self._undo_lock = self._undo_lock and state == "locked"
        return self._outcome(state == "locked", state, reply, "lock", _remedy("lock", reply, state))

    def _lock_running(self, command: Command) -> Tuple[Reply, str]:
        reply = self._ask(self._backend.lock(self._pid, command.timeout_ms), drop=False)
        return reply, self._ask(self._backend.state(self._pid), drop=False).state or "unknown"

    def _unlock(self, command: Command) -> Outcome:
        if self._stopped == "us" and self._hold is None:
            self._hold = self._seize(self._target())
        self._let_run()
        reply, state = self._unlock_running()
        self._undo_lock = False
        return self._outcome(state == "running", state, reply, "unlock", _remedy("unlock", reply, state))

    def _unlock_running(self) -> Tuple[Reply, str]:
        """Never of a process that is held: a thread that is held inside a call of CUDA has its share of the lock, and
        the driver would wait for it for ever. One that somebody else has stopped is continued for it.
        """
        self._step("unlock")
        with park.continued(self._job.identity) if self._stopped == "other" else nullcontext():
            reply = self._ask(self._backend.unlock(self._pid), drop=False)
            return reply, self._ask(self._backend.state(self._pid), drop=False).state or "unknown"

    def _let_run(self) -> None:
        """End the hold of a process that has its GPU memory. One that has not is never let run, whoever asks for it."""
        if self._hold is None:
            return
        if self._is_suspended_by_evidence():
            raise HoldError(
                f"PID {self._pid}",
                "it was to be continued, but it holds no device: its GPU memory is away",
                "Without it, its threads would die of what they read.",
                "Run the task again: it is restored first.",
            )
        self._step("continue")
        self._notes.extend(waiting_words(name) for name in self._hold.pending())
        self._let_go(run=self._stopped != "other")

    def _suspend(self, command: Command) -> Outcome:
        if not self._backend.can_hold:
            return self._suspend_unheld()
        target = self._target()
        with self._pages():
            reply, self._hold = park.suspend(
                target,
                lambda: self._backend.checkpoint(self._pid),
                self._step,
                DEADLINES,
                mask=lambda mask: self._fields(signal_mask=mask, restore_tid=target.restore_tid),
                hold=self._hold,
            )
        done = reply is not None and reply.ok and self._is_suspended_by_evidence()
        state = "checkpointed" if done else self._read_state().state or "unknown"
        self._undo_lock = self._undo_lock and state == "locked"
        if state != "checkpointed":
            if reply is not None and reply.code in FOR_EVER:
                self._fields(refused=reply.code)
            if state in ("locked", "running"):
                self._let_go(run=self._stopped != "other")
            else:
                self._stopped = self._stopped or "us"
            return self._outcome(False, state, reply, "checkpoint", _remedy("checkpoint", reply, state))
        if not self._job.park:
            self._let_go(run=self._stopped != "other")
            return self._outcome(True, state)
        self._stopped = self._stopped or "us"
        return self._freeze() or self._outcome(True, state)

    def _freeze(self) -> Optional[Outcome]:
        """In addition to the guard, where that is wanted; what kept it from being done."""
        if self._job.guard != "cgroup":
            return None
        self._step("guard")
        try:
            freezer.freeze(self._job.identity)
        except HoldError as error:
            reply = Reply(ok=False, code=None, text=f"{error.evidence}. {error.reason}", seconds=0.0)
            return self._outcome(False, "checkpointed", reply, "guard", error.remedy)
        return None

    def _suspend_unheld(self) -> Outcome:
        self._step("checkpoint")
        reply = self._ask(self._backend.checkpoint(self._pid), drop=False)
        state = self._ask(self._backend.state(self._pid)).state or "unknown"
        self._undo_lock = self._undo_lock and state == "locked"
        return self._outcome(state == "checkpointed", state, reply, "checkpoint", _remedy("checkpoint", reply, state))

    def _resume(self, command: Command) -> Outcome:
        goal = "running" if command.unlock else "locked"
        mapped = bool(command.pairs)
        if not self._backend.can_hold:
            return self._resume_unheld(command, goal)
        target = self._target()
        if self._hold is None:
            self._hold = self._seize(target)
        with self._pages():
            replies, self._hold = park.resume(
                target,
                [("restore", lambda: self._backend.restore(self._pid, command.pairs))],
                self._step,
                DEADLINES,
                mask=lambda mask: self._fields(signal_mask=mask, restore_tid=target.restore_tid),
                hold=self._hold,
            )
        reply = replies[0]
        if reply is None or not reply.ok:
            state = self._read_state().state or "unknown"
            self._stopped = self._stopped or "us"
            return self._outcome(False, state, reply, "restore", _remedy("restore", reply, state, mapped))
        self._let_run()
        if not command.unlock:
            state = "locked" if self._stopped else self._read_state().state or "unknown"
            return self._outcome(state == goal, state, reply, "restore", _remedy("restore", reply, state, mapped))
        reply, state = self._unlock_running()
        return self._outcome(state == goal, state, reply, "unlock", _remedy("unlock", reply, state))

    def _resume_unheld(self, command: Command, goal: str) -> Outcome:
        """With a tool that knows --toggle only: one toggle restores and unlocks."""
        self._step("restore")
        mapped = bool(command.pairs)
        reply = self._ask(self._backend.restore(self._pid, command.pairs), drop=False)
        state = self._ask(self._backend.state(self._pid)).state or "unknown"
        return self._outcome(state == goal, state, reply, "restore", _remedy("restore", reply, state, mapped))

    def _adopt(self, command: Command) -> Outcome:
        """Stop a suspended process whose threads run, or attach to one that lost its guard: that one stays what it is,
        and is in danger until then, so that the journal can wait."""
        if self._hold is None and self._is_parked():
            self._hold = self._seize(self._target(), self._clock.step)
            try:
                self._step("guard")
            except JournalError:
                self._let_go(run=False)
                raise
        else:
            self._step("guard")
            self._hold = self._hold or self._seize(self._target())
        ran = not self._hold.stopped_before
        self._stopped = self._stopped or "us"
        done = self._is_suspended_by_evidence()
        state = "checkpointed" if done else self._read_state().state or "unknown"
        failed = self._freeze() if state == "checkpointed" else None
        return replace(failed or self._outcome(state == "checkpointed", state, step="guard"), details={"ran": ran})

    def _is_parked(self) -> bool:
        return set(live_tasks(self._pid).values()) == {"T"}

    def _go_on(self, command: Command) -> Outcome:
        """Let a process that was left stopped, and has its GPU memory, run again in the state that it is in."""
        if self._hold is None:
            self._hold = self._seize(self._target())
        self._let_run()
        state = self._read_state().state or "unknown"
        return self._outcome(state != "unknown", state)

    # Holding

    def _let_go(self, run: bool) -> None:
        if self._hold is not None:
            park.let_go(self._hold, run=run)
            self._hold = None
        if run:
            self._stopped = ""

    def _relieve_guard(self) -> None:
        """The worker that guards the process makes room: only one tracer can be attached."""
        other = self._journal.guard(self._job.identity, _tracer_of(self._pid))
        if other is None:
            return
        try:
            handle = Handle(other)
            handle.send(signal.SIGTERM)
            handle.send(signal.SIGCONT)  # one that somebody has stopped lets go of nothing
            handle.close()
        except ProcessEndedError:
            return
        end = time.monotonic() + 30
        # It lets go at once; it ends only when the run that it belongs to is over.
        while _tracer_of(self._pid) == other.pid and is_alive(other):
            if time.monotonic() > end:
                raise HoldError(
                    f"PID {self._pid}",
                    f"its guard (PID {other.pid}) does not let go within 30 s",
                    "Only one tracer can be attached to a process.",
                    "Look at that worker; ended with SIGKILL it leaves the process stopped.",
                )
            time.sleep(0.0005)

    # The end

    def _abandoned(self) -> None:
        """The module died or gave up waiting: nothing is left half way."""
        if self._undo_lock and self._state in ("locked", "unknown"):
            self._state = self._perform(Command("unlock", undo=True)).state
        self._leave()

    def _leave(self) -> None:
        self._channel.close()
        if self._hold is None:
            return
        if self._state != "checkpointed" or self._job.guard == "none":
            self._let_go(run=False)
            return
        if self._job.guard == "cgroup":
            with suppress(HoldError):
                # Thawed by a resume that failed. What can't be frozen again is guarded all the same.
                freezer.freeze(self._job.identity)
        if self._guard(self._hold) == ENDED and self._operation is not None:
            self._journal.finish(self._operation.id, "failed", "the process ended while it was parked", {})

    def _guard(self, hold: Hold) -> str:
        """As long as it takes. What could not be journalled is, as soon as it can be: until then every other run takes
        this one for one at work."""
        while True:
            self._journal.close()
            late = self._unwritten
            left = guard(hold, deadline=None if late is None else time.monotonic() + LATE_SECONDS)
            if left != UNWANTED or late is None:
                return left
            with suppress(JournalError):
                self._record(*late)
                self._unwritten = None


def _words(reply: Reply) -> str:
    return reply.text or ("" if reply.code is None else result_text(reply.code))


def _tracer_of(pid: int) -> int:
    seen = read_process(pid)
    return seen.tracer_pid if seen is not None else 0


def _remedy(call: str, reply: Optional[Reply], state: str, mapped: bool = False) -> str:
    """Why the driver said so and what helps; where that is not known, what the state that was read allows."""
    advice = None if reply is None or reply.ok else advise(call, reply.code, mapped)
    if advice is not None:
        return f"{advice.reason[0].upper()}{advice.reason[1:]}. {advice.remedy}."
    if state == "checkpointed":
        return "It is still suspended and whole: run the task again."
    if state == "locked":
        return "It is locked and whole: run the task again."
    return "Run the task again: the state is read anew."
