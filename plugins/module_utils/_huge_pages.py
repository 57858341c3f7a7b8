# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Transparent huge pages while the driver copies between GPU and host memory, and while CRIU brings a process back.

What is copied lands in private anonymous memory of the process, whose pages the kernel makes one by one: with huge
pages, suspending took a quarter to a third less time on an H200. The setting is the host's, so it is changed for the
time of the copy only, and put back by the last one who needed it, in any process. What a killed one left is put
back by the next. It is worth some time and never a failed suspend: what can't be set is told and left.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Callable, Iterable, Iterator, List, Optional, Tuple

from ._host import read_boot_id
from ._journal import Journal
from ._journal_errors import JournalError
from ._journal_settings import Change, Setting, is_changed, setting
from ._process import Identity, is_alive

PATH = "/sys/kernel/mm/transparent_hugepage/enabled"
CHOICES: Tuple[str, ...] = ("auto", "always", "keep")
_NAME = "transparent_hugepage"


def target(wanted: str, value: str) -> Optional[str]:
    """What to set where `value` is set; None: leave it. auto respects "never", which an administrator chose."""
    if wanted == "always" and value in ("madvise", "never"):
        return "always"
    if wanted == "auto" and value == "madvise":
        return "always"
    return None


class Knob:
    """A setting of the kernel that offers words, the chosen one in brackets."""

    def __init__(self, path: str = PATH) -> None:
        self.path = path

    def read(self) -> Optional[str]:
        """None where the kernel has no such setting, or does not show it."""
        try:
            with open(self.path, encoding="ascii") as stream:
                chosen = re.search(r"\[(\w+)\]", stream.read())
        except (OSError, ValueError):
            return None
        return chosen.group(1) if chosen else None

    def write(self, value: str) -> str:
        """Returns why it could not be set, "" when it is."""
        try:
            with open(self.path, "w", encoding="ascii") as stream:
                stream.write(value)
        except OSError as error:
            return f"{self.path}: {error.strerror}"
        return ""


class HugePages:
    def __init__(
        self,
        journal: Journal,
        knob: Optional[Knob] = None,
        alive: Callable[[Identity], bool] = is_alive,
        boot_id: Callable[[], str] = read_boot_id,
    ) -> None:
        self._file = journal.file
        self._knob = knob or Knob()
        self._alive = alive
        self._boot_id = boot_id

    def acquire(self, owner: Identity, wanted: str) -> str:
        """Until release() or the end of owner. wanted: one of CHOICES. Returns what was done, "" for nothing.

        A setting whose change can't be journalled is not changed, and that is said: it could not be put back later.
        """
        if wanted == "keep" or self._knob.read() is None:
            return ""
        try:
            with setting(self._file, _NAME) as entry:
                notes = [self._settle(entry, owner.boot_id)]
                change, refused = self._enter(entry, owner, wanted)
            if change is None:
                return _sentence([*notes, refused])
            # The entry is written: killed from here on, the next one knows what to put back.
            with setting(self._file, _NAME) as entry:
                failure = self._set(change.during)
                if failure:
                    entry.leave(owner)
                    self._settle(entry, owner.boot_id)
            done = f"left at {change.before}: {failure}" if failure else f"{change.before} -> {change.during}"
            return _sentence([*notes, done])
        except JournalError as error:
            return _sentence([f"left alone: {error}"])

    def _enter(self, entry: Setting, owner: Identity, wanted: str) -> Tuple[Optional[Change], str]:
        """The change that owner is now a user of. None: no change, and why, or "" for no need."""
        change = entry.change
        value = self._knob.read() or ""
        if change is None:
            during = target(wanted, value)
            if during is None:
                return None, ""
            change = Change(owner.boot_id, value, during)
            entry.record(change)
        elif target(wanted, change.before) != change.during:
            return None, ""
        # Not in effect yet: its first user may be about to set it.
        elif value not in (change.before, change.during):
            return None, f"left at {value}: somebody else changed it from {change.during}"
        entry.join(owner)
        return change, ""

    def release(self, owner: Identity) -> str:
        """Returns what was done: "" when nothing was, or when somebody else still needs it."""
        try:
            with setting(self._file, _NAME) as entry:
                entry.leave(owner)
                return _sentence([self._settle(entry, owner.boot_id)])
        except JournalError as error:
            return _sentence([f"not put back, the next run will: {error}"])

    def mend(self, alive: Optional[Callable[[Identity], bool]] = None) -> List[str]:
        """Put back what processes that are gone have left changed. Returns warnings. Raises JournalError."""
        self._alive = alive or self._alive
        if not self._file.writable or not is_changed(self._file, _NAME):
            return []
        with setting(self._file, _NAME) as entry:
            done = self._settle(entry, self._boot_id())
        return [_sentence([f"{done} (a run that changed it has died)"])] if done else []

    def _settle(self, entry: Setting, boot_id: str) -> str:
        """Put the value back if nobody needs the change any more."""
        change = entry.change
        if change is None or (change.boot_id == boot_id and entry.is_used(self._alive)):
            return ""
        if change.boot_id != boot_id:
            # A reboot put it back to what is configured, whatever that is now.
            entry.forget()
            return ""
        value = self._knob.read()
        if value == change.during:
            failure = self._set(change.before)
            if failure:
                return f"still {value}, not back at {change.before}: {failure}"
            entry.forget()
            return f"{change.during} -> {change.before}"
        entry.forget()
        if value in (None, change.before):
            return ""
        return f"left at {value}: somebody else changed it from {change.during}"

    def _set(self, value: str) -> str:
        return "" if self._knob.read() == value else self._knob.write(value)


@contextmanager
def huge_pages(journal: Journal, owner: Identity, wanted: str, notes: List[str]) -> Iterator[str]:
    """As HugePages.acquire, until the end. Yields what was done; notes gets what could not be put back."""
    if wanted == "keep":
        yield ""
        return
    try:
        pages = HugePages(journal)
    except JournalError:
        yield ""
        return
    done = pages.acquire(owner, wanted)
    try:
        yield done
    finally:
        left = pages.release(owner)
        notes.extend([f"huge pages: {left}"] if "not" in left else [])


def _sentence(parts: Iterable[str]) -> str:
    text = "; ".join(part for part in parts if part)
    return f"transparent huge pages: {text}" if text else ""
