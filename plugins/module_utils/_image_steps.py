# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of an image: journalled before each begins, and timed."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Literal, Optional, Sequence, Union

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageJob
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import ImageRow
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import own_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._step_names import ImageStep

#: Read again only by a later run on the same boot; and a file system at work on images takes a second to make sure.
HASTY = ("stop", "suspend", "dump", "prove", "compress", "seal")
#: Half way back is worse than unwritten.
UNDO = ("undo", "continue")


class Steps:
    """notes: what an operator should know. details: what a failure shows beside its words. must_go_on: there is no way
    back, so a step that can't be journalled is a note."""

    def __init__(self, journal: Journal, job: ImageJob) -> None:
        self._journal = journal
        self._job = job
        self._row: Optional[ImageRow] = None
        self._times: Dict[str, float] = {}
        self._since = 0.0
        self.last: Union[ImageStep, Literal[""]] = ""
        self.must_go_on = False
        self.notes: List[str] = []
        self.details: Dict[str, Any] = {}

    def clear(self) -> None:
        """Before a command: its notes and times are its own."""
        self._times, self.last = {}, ""
        self.notes = []

    def seconds(self) -> Dict[str, float]:
        """By step, the running one included."""
        self._clock("")
        return dict(self._times)

    def _clock(self, name: Union[ImageStep, Literal[""]]) -> None:
        now = time.monotonic()
        if self.last and self._since:
            self._times[self.last] = round(self._times.get(self.last, 0.0) + now - self._since, 6)
        self._since = now if name else 0.0
        self.last = name or self.last

    def begin(self, name: ImageStep, stopped: Optional[Sequence[Identity]] = None) -> None:
        """Raises JournalError; on the way back, and where there is none, that is a note: to go on is what matters."""
        self._clock(name)
        try:
            if self._row is None:
                self._row = self._journal.begin_image(
                    lineage=self._job.lineage,
                    path=self._job.path,
                    run_id=self._job.options.run_id,
                    root=self._job.root,
                    leave="running" if self._job.options.leave_running else "killed",
                    worker=own_identity(),
                )
            self._journal.image_step(self._row.id, name, stopped=stopped, durable=name not in HASTY)
        except JournalError as error:
            if name not in UNDO and not self.must_go_on:
                raise
            self.notes.append(f"step {name} could not be journalled: {error}")

    def stopped(self, identities: Sequence[Identity]) -> None:
        """These are about to be stopped."""
        self.begin(self.last or "stop", identities)

    def measured(self, name: str, steps: Sequence[str], moved: int) -> None:
        """How long these steps have taken together, and how many bytes of memory they moved: estimates come from it.
        They are over."""
        times = self.seconds()
        if self._row is None:
            return
        try:
            self._journal.image_measured(self._row.id, name, sum(times.get(step, 0.0) for step in steps), moved)
        except JournalError as error:
            self.notes.append(f"how long it took could not be journalled: {error}")

    def finish(self, status: str, message: str = "") -> None:
        if self._row is None:
            return
        try:
            self._journal.finish_image(self._row.id, status, message)
        except JournalError as error:
            self.notes.append(f"how it ended could not be journalled: {error}")
