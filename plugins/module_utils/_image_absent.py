# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deletes images: one by its path, or what is old in a store. One that a process could still come back from stays."""

from __future__ import annotations

import os
import time
from typing import List

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_units as units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import hidden, prune, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import HELD, MOVED, RETURNED, SPENT
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Image
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_engine import Subject, wait_for
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_job import ImageOptions
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive


class Absent:
    """One run of criu_image with state absent."""

    def __init__(self, options: ImageOptions, journal: Journal) -> None:
        self.options = options
        self._journal = journal
        self.subjects: List[Subject] = []
        self.warnings: List[str] = []

    def run(self) -> None:
        """Raises CriuError."""
        if self.options.path:
            self._one(self.options.path)
            return
        self._old()

    def _one(self, path: str) -> None:
        subject = Subject(path=path, name=os.path.basename(path), before="absent", after="absent")
        self.subjects.append(subject)
        wait_for(self._journal, path, self.options.step_timeout)
        # What force does not override either is refused before, and in check mode as well.
        store.check_place(path)
        if os.path.lexists(path):
            store.check_image(path)
        try:
            image = store.find_image(path)
        except CriuError as error:
            if not self.options.force:
                raise CriuError(
                    error.subject,
                    error.evidence,
                    "What it holds can't be told.",
                    "force: true deletes it.",
                    "force: true",
                ) from None
            self._delete(subject)
            return
        if image is None:
            if store.has_partial(path):
                subject.notes.append("only the rest of an interrupted dump was there")
                self._delete(subject)
            return
        subject.image, subject.lineage, subject.before = image, image.manifest.lineage, "present"
        # Beside its living original, a snapshot is not what anybody depends on.
        beside = image.manifest.snapshot and is_alive(image.manifest.root_identity)
        if image.life.state in (HELD, MOVED) and not self.options.force:
            raise CriuError(
                path,
                f"it is {image.life.state}: it is on its way between two hosts",
                "Until it is known to live on one of them, each copy may be the one that it comes back from.",
                "Run gpufleet.checkpoint.migrate again: it carries on, or brings the process back.",
                "force: true",
            )
        if image.life.state not in (SPENT, RETURNED) and not beside and not self.options.force:
            raise CriuError(
                path,
                f"it has not been restored: PID {image.manifest.root} ({image.manifest.name}) of "
                f"{image.manifest.hostname} can only come back from it",
                "Deleted, that process is lost.",
                "Restore it first.",
                "force: true",
            )
        self._delete(subject)

    def _delete(self, subject: Subject) -> None:
        subject.changed, subject.after = True, "absent"
        if not self.options.check:
            store.remove(subject.path)
            store.remove_partial_of(subject.path)
            if subject.lineage:
                units.let_go(self._journal, subject.lineage, subject.notes)

    def _old(self) -> None:
        images = []
        for entry in store.list_images(self.options.store):
            if isinstance(entry, Image):
                images.append(entry)
            else:
                self.warnings.append(f"{entry.path} is left alone: {entry.why}")
        for verdict in prune.prune(images, time.time(), self.options.keep, self.options.max_age, self.options.force):
            subject = Subject(verdict.image.path, verdict.image.manifest.name, before="present", after="present")
            subject.image, subject.lineage = verdict.image, verdict.image.manifest.lineage
            subject.notes.append(verdict.reason)
            self.subjects.append(subject)
            if verdict.delete:
                self._delete(subject)
        if not self.options.check:
            hidden.sweep(self.options.store)
