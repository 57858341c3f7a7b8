# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker of one image: a process of its own that outlives the module.

It is told to dump, and then to commit or to undo. Between the two the tree is alive and stands still, so that until an
image is proved and on the disk nothing is lost by going back. A module that dies before it has said which undoes it.
A restore goes on to its end.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from dataclasses import replace
from typing import Callable, Dict, Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.wire import ImageError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import HoldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_dump import Dump
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageJob
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_restore import Restore
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_steps import Steps
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Command, Outcome, command_from
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._worker import settle_in

NAME = b"gpufleet-image"


def start(job: ImageJob, channel: socket.socket) -> int:
    """Fork a worker that serves this channel; returns its PID. The caller must have no other thread."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        settle_in(channel, NAME, f"{job.path}, run {job.options.run_id}")
        # Its own children are CRIU and the workers of the CUDA processes: none may be ended half way either.
        ImageWorker(job, channel).serve()
        status = 0
    finally:
        os._exit(status)


class ImageWorker:
    def __init__(self, job: ImageJob, channel: socket.socket) -> None:
        self._job = job
        self._channel = channel
        self._journal = open_journal(job.options.journal)
        self._steps = Steps(self._journal, job)
        self._dump: Optional[Dump] = None
        self._back = ""

    def serve(self) -> None:
        """Commands, one after another, until the module leaves or is gone."""
        buffer = b""
        while True:
            line, newline, rest = buffer.partition(b"\n")
            if not newline:
                try:
                    data = self._channel.recv(65536)
                except ConnectionError:
                    data = b""
                if not data:
                    break
                buffer += data
                continue
            buffer = rest
            command = command_from(line)
            if command.do == "leave":
                break
            outcome = self._perform(command)
            try:
                self._channel.sendall(outcome.line())
            except OSError:
                pass  # the module is gone: the next read says so
        if self._dump is not None and self._dump.is_open:
            self._perform(Command("undo"))
        self._channel.close()
        self._journal.close()

    def _perform(self, command: Command) -> Outcome:
        actions: Dict[str, Callable[[], Outcome]] = {
            "dump": self._do_dump,
            "commit": self._do_commit,
            "dump+commit": self._do_both,
            "undo": self._do_undo,
            "restore": self._do_restore,
        }
        self._steps.clear()
        self._back = ""
        began = time.monotonic()
        try:
            outcome = actions[command.do]()
        except (CriuError, HoldError, ImageError, JournalError, OSError) as error:
            outcome = self._failed(command, error)
        except Exception as error:
            outcome = self._unexpected(command, error)
        outcome.seconds["all"] = round(time.monotonic() - began, 6)
        return outcome

    def _outcome(self, state: str, **details: object) -> Outcome:
        return Outcome(
            ok=True,
            state=state,
            seconds=self._steps.seconds(),
            notes=tuple(self._steps.notes),
            details=dict(details),
        )

    def _do_dump(self) -> Outcome:
        self._dump = Dump(self._job, self._journal, self._steps)
        try:
            details = self._dump.make()
        except BaseException:
            # Whatever it was: first the tree goes on.
            self._go_back(self._dump)
            raise
        return self._outcome("dumped", **details)

    def _do_commit(self) -> Outcome:
        if self._dump is None:
            raise ValueError("nothing is dumped")
        try:
            details = self._dump.commit()
        except BaseException:
            if self._dump.is_open:
                self._go_back(self._dump)
            raise
        return self._outcome("present", **details)

    def _go_back(self, dump: Dump) -> None:
        failed = self._steps.last
        problems = dump.undo("failed")
        self._steps.seconds()
        self._steps.last = failed
        if problems:
            self._back = (
                f"It could not be taken back whole: {'; '.join(problems)} Run state: running of cuda_checkpoint."
            )
        elif not dump.is_alive:
            self._back = "It has ended."
        else:
            self._back = "It was taken back, and goes on as before."

    def _do_both(self) -> Outcome:
        dumped = self._do_dump()
        done = self._do_commit()
        return replace(done, seconds=self._steps.seconds(), details={**dumped.details, **done.details})

    def _do_undo(self) -> Outcome:
        if self._dump is None:
            raise ValueError("nothing is dumped")
        problems = self._dump.undo("undone")
        if problems:
            raise CriuError(self._dump.name, "; ".join(problems), "It could not be taken back whole.", "Run it again.")
        return self._outcome("running")

    def _do_restore(self) -> Outcome:
        return self._outcome("restored", **Restore(self._job, self._journal, self._steps).make())

    def _failed(self, command: Command, error: Exception) -> Outcome:
        return Outcome(
            ok=False,
            state="unknown",
            step=self._steps.last or command.do,
            text=str(error),
            remedy=self._back,
            seconds=self._steps.seconds(),
            notes=tuple(self._steps.notes),
            details=dict(self._steps.details),
        )

    def _unexpected(self, command: Command, error: Exception) -> Outcome:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(
            ok=False,
            state="unknown",
            step=self._steps.last or command.do,
            text=f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})",
            remedy=f"{self._back} This is an error of the program: please report it.".strip(),
            seconds=self._steps.seconds(),
            notes=tuple(self._steps.notes),
        )
