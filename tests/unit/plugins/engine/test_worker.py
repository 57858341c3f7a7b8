# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker that finds another run at its process."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, List, Optional

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _worker
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.backend import Reply
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.guard import RELEASED, UNWANTED
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, Operation, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Command, Outcome, outcome_from
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive, read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._worker import Job, Worker

CHILD = """
import os, socket, time
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._worker import NAME, settle_in
channel = socket.socket(fileno=int(os.environ["FD"]))
settle_in(channel, NAME, "PID 4711, run night")
channel.send(b".")
time.sleep(60)
"""


class Answered:
    def poll(self) -> Reply:
        return Reply(ok=True, code=0, text="", seconds=0.0, state="checkpointed")

    def wait(self, seconds: float) -> Reply:
        return self.poll()


class Silent:
    """Knows --toggle only, and is never to be asked for more than a state."""

    name = "silent"
    can_hold = False
    can_lock = False

    def state(self, pid: int) -> Answered:
        return Answered()


def job_of(identity: Identity, journal: str, goal: str, stopped_by: str, guard: str) -> Job:
    return Job(
        identity=identity,
        run_id="mine",
        goal=goal,
        executable="/bin/sleep",
        uid=0,
        stopped_by=stopped_by,
        device_bytes={},
        park=guard != "none",
        guard=guard,
        huge_pages="keep",
        backend=Silent(),  # type: ignore[arg-type]  # one question is all that may be asked
        journal=journal,
    )


def begin(journal: Journal, identity: Identity, worker: Identity, run_id: str, goal: str, step: str) -> Operation:
    return journal.begin(
        run_id=run_id,
        identity=identity,
        executable="/bin/sleep",
        uid=0,
        goal=goal,
        state_before="checkpointed" if goal == "running" else "running",
        step=step,
        worker=worker,
        park=True,
        guard="holder",
        stopped_by="us",
        device_bytes={},
        backend="silent",
    )


def test_one_that_another_run_has_taken_over_keeps_no_room_on_a_gpu(tmp_path: Path) -> None:
    path = str(tmp_path / "journal" / "checkpoint.db")
    with subprocess.Popen(["sleep", "60"]) as victim:
        try:
            identity, own = read_identity(victim.pid), read_identity(os.getpid())
            assert identity is not None and own is not None
            journal = open_journal(path)
            begin(journal, identity, own, "other", "running", "restore")
            assert journal.reserve([(own, {"GPU-1": 5})], lambda: {"GPU-1": 10}) == [None]
            assert journal.reserved(is_alive) == {"GPU-1": 5}
            ours, theirs = socket.socketpair()
            with ours, theirs:
                job = job_of(identity, path, "running", stopped_by="us", guard="none")
                ours.sendall(Command("resume").line())
                ours.shutdown(socket.SHUT_WR)  # then the module leaves
                Worker(job, theirs).serve()
                outcome = outcome_from(ours.recv(65536))
            assert outcome.busy
            assert journal.reserved(is_alive) == {}
        finally:
            victim.kill()


@pytest.mark.parametrize("room", [True, False])
def test_ps_shows_whose_guard_it_is(room: bool) -> None:
    """As far as the command line of the module had room for it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        environment = {**os.environ, "FD": str(theirs.fileno()), "PYTHONPATH": ":".join(sys.path)}
        child = subprocess.Popen(
            ["python3", "-c", CHILD] if room else ["python3"],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        assert child.stdin is not None
        child.stdin.write(b"" if room else CHILD.encode())
        child.stdin.close()
        try:
            assert ours.recv(1) == b"."
            shown = Path(f"/proc/{child.pid}/cmdline").read_bytes().rstrip(b"\0")
            assert shown == b"gpufleet-hold: PID 4711, run night"[: None if room else len("python3")]
            assert Path(f"/proc/{child.pid}/comm").read_text() == "gpufleet-hold\n"
        finally:
            child.kill()
            child.wait()


def test_a_guard_writes_what_its_journal_lacks_once_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal was read-only when the process had been suspended: what came after took the guard for one at work."""
    with subprocess.Popen(["sleep", "60"]) as victim:
        try:
            identity, own = read_identity(victim.pid), read_identity(os.getpid())
            assert identity is not None and own is not None
            path = str(tmp_path / "journal" / "checkpoint.db")
            ours, theirs = socket.socketpair()
            with ours, theirs:
                worker = Worker(job_of(identity, path, "checkpointed", stopped_by="", guard="holder"), theirs)
                journal = open_journal(path)
                worker._operation = begin(journal, identity, own, "mine", "checkpointed", "checkpoint")
                suspended = Outcome(ok=True, state="checkpointed", stopped="us")
                real, failing = Journal.finish, [True, True]

                def finish(of: Journal, *arguments: Any, **more: Any) -> None:
                    if failing and failing.pop():
                        raise JournalError("journal", "it is read-only", "", "")
                    real(of, *arguments, **more)

                deadlines: List[Optional[float]] = []

                def guard(_hold: object, deadline: Optional[float] = None, **_more: object) -> str:
                    deadlines.append(deadline)
                    return UNWANTED if deadline is not None else RELEASED

                monkeypatch.setattr(Journal, "finish", finish)
                monkeypatch.setattr(_worker, "guard", guard)
                monkeypatch.setattr(worker, "_suspend", lambda _command: suspended)
                assert "could not be journalled" in worker._perform(Command("suspend")).notes[-1]
                assert journal.get(worker._operation.id).status == "active"
                assert worker._guard(object()) == RELEASED  # type: ignore[arg-type]  # the guard is played, and looks at no hold
                assert journal.get(worker._operation.id).status == "suspended"
                assert [one is None for one in deadlines] == [False, False, True]
        finally:
            victim.kill()
