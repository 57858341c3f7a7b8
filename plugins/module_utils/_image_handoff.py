# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each step by which images go from one host to another, on the host that takes it.

Whoever is at work holds the image's lock from the reading of its mark to the writing of the next one, and has
journalled what is about to be written. Every step may be repeated: what is done already is left as it is, and answered
the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import digest, handoff, owner, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import MANIFEST, content
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    HELD,
    MOVED,
    RETURNED,
    SHARED,
    SOURCE,
    SPENT,
    TARGET,
    Handoff,
    Life,
    living,
    write_life,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import read_manifest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import PARTIAL
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Image
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._handoff_words import Entry, bad_entry
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id, read_machine_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_lives import (
    criu_at,
    half_restored,
    is_any_left,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import TRANSFER_STEP
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive, own_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

STEPS = ("offered", "received", "accepted", "fenced", "taken", "returned", "reclaimed", "concluded")
#: In a partial image that is coming from another host: which move it belongs to. Not a part of any image.
INCOMING = ".incoming"


@dataclass(frozen=True)
class HandoffOptions:
    """state: the step. store: of this host. entries: what the step before returned. peer, peer_name: of the other host.
    transfer: "shared", or another word. verify: of a copy, before it is accepted. seconds: how long its transfer took,
    0.0 for unknown."""

    state: str
    store: str
    entries: Tuple[Entry, ...]
    peer: str
    peer_name: str
    transfer: str
    verify: str
    seconds: float
    run_id: str
    check: bool


@dataclass
class Moved:
    """What became of one image. after: its mark, "partial" for a copy that is coming, "none" for nothing."""

    entry: Entry
    path: str
    before: str = "none"
    after: str = "none"
    into: str = ""
    notes: List[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return self.before != self.after


class Handing:
    """One run of criu_image_handoff."""

    def __init__(self, options: HandoffOptions, journal: Journal) -> None:
        self.options = options
        self._journal = journal
        self._machine = read_machine_id()
        self._arrived: List[Tuple[int, int]] = []
        self.moved: List[Moved] = []

    def run(self) -> None:
        """Each for itself. Raises CriuError, JournalError, OSError at the end; what was done stays done, and is in
        moved."""
        steps: Mapping[str, Callable[[Entry], Moved]] = {
            "offered": self._offer,
            "received": self._receive,
            "accepted": self._accept,
            "fenced": self._fence,
            "taken": self._take,
            "returned": self._give_back,
            "reclaimed": self._reclaim,
            "concluded": self._conclude,
        }
        problems: List[Exception] = []
        for entry in self.options.entries:
            try:
                if not self.options.check:
                    self._settle(store.image_path(self.options.store, entry.name))
                self.moved.append(steps[self.options.state](entry))
            except (CriuError, OSError) as error:
                problems.append(error)
                self._as_it_is(entry)
        if self._arrived and self.options.seconds > 0:
            total = sum(size for _row, size in self._arrived)
            self._journal.image_measured(self._arrived[0][0], TRANSFER_STEP, self.options.seconds, total)
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise CriuError("", "\n".join(str(problem) for problem in problems), "", "")

    def _as_it_is(self, entry: Entry) -> None:
        """Of the image that was asked for. What another of that name is tells nothing of it: who takes its state for an
        answer deletes the source's image, and ends the process with it."""
        path = store.image_path(self.options.store, entry.name)
        try:
            image = store.open_image(path)
        except (CriuError, OSError):
            return
        life = image.life
        is_move = bool(entry.id) and life.handoff is not None and life.handoff.id == entry.id
        # Its process has been dumped and restored here again since.
        lives = bool(entry.lineage) and image.manifest.lineage == entry.lineage and bool(living(life))
        if is_move or lives:
            self.moved.append(Moved(_of_side(entry, life), path, life.state, life.state))

    def _settle(self, path: str) -> None:
        """A step of a move that somebody died at: the mark tells whether it was made."""
        row = self._journal.image_latest(path)
        if row is None or row.finished or row.step not in STEPS or (row.worker is not None and is_alive(row.worker)):
            return
        self._journal.finish_image(row.id, "undone", f"its worker had died at step {row.step}")

    # Source

    def _offer(self, entry: Entry) -> Moved:
        fresh = Handoff(
            id=secrets.token_hex(16),
            side=SHARED if self.options.transfer == "shared" else SOURCE,
            peer=self.options.peer,
            peer_name=self.options.peer_name,
            key=secrets.token_hex(32),
        )
        with self._at(entry.name) as image:
            if image.manifest.snapshot:
                raise CriuError(
                    image.path,
                    "it is a snapshot",
                    "Its process goes on, and would live twice.",
                    "Dump it with leave_running: false.",
                )
            self._check_right(image, self.options.peer)
            life = handoff.offer(image.path, image.life, fresh)
            moved = self._write(image, life, "", entry)
            mark = life.handoff or fresh
            moved.entry = Entry(
                name=entry.name,
                id=mark.id,
                lineage=image.manifest.lineage,
                manifest=_sum(image.path),
                lock=handoff.lock_of(mark.key),
                side=mark.side,
            )
            return moved

    def _check_right(self, image: Image, peer: str) -> None:
        """peer: machine id of the host that it is for, which may have taken it already."""
        why = handoff.barred(image.life, self._machine)
        taken = handoff.taken_by(image.life)
        if why and image.life.state != MOVED and not (taken and taken == peer):
            raise CriuError(image.path, why, "Only the host that may restore an image can hand it on.", "Do it there.")
        alive = [
            member.pid
            for member in image.manifest.tree
            if is_alive(Identity(member.pid, member.start_ticks, image.manifest.boot_id))
        ]
        if alive:
            raise CriuError(
                image.path,
                f"{', '.join(f'PID {pid}' for pid in alive[:8])} of it {'is' if len(alive) == 1 else 'are'} alive here",
                "Its dump was broken off before the tree had ended. Restored elsewhere, it would live twice.",
                "Run the dump again (criu_image with state: present): it ends the tree, or dumps it anew.",
            )

    def _fence(self, entry: Entry) -> Moved:
        with self._at(entry.name) as image:
            mark = image.life.handoff
            self._check_right(image, "" if mark is None else mark.peer)
            life = handoff.fence(image.path, image.life, entry.id, entry.lock, self.options.run_id, time.time())
            moved = self._write(image, life, "moved", entry)
            moved.entry = replace(entry, key="" if life.handoff is None else life.handoff.key)
            return moved

    def _reclaim(self, entry: Entry) -> Moved:
        with self._at(entry.name) as image:
            life = handoff.reclaim(image.path, image.life, entry.id, entry.key, self._machine)
            return self._write(image, life, "returned", entry)

    def _conclude(self, entry: Entry) -> Moved:
        with self._at(entry.name) as image:
            return self._write(image, handoff.conclude(image.path, image.life, entry.id, time.time()), "moved", entry)

    # Target

    def _receive(self, entry: Entry) -> Moved:
        """A place for the copy, with what an earlier attempt has brought there already."""
        path = store.image_path(self.options.store, entry.name)
        moved = Moved(entry, path, after="partial", into=path + PARTIAL)
        present = store.find_image(path)
        if present is not None:
            mark = present.life.handoff
            if mark is not None and mark.id == entry.id:
                # All of it has come already, or both hosts see it.
                return Moved(entry, path, present.life.state, present.life.state)
            _check_replaceable(present, entry)
        elif entry.side == SHARED:
            raise CriuError(
                path,
                "there is no image",
                "With transfer: shared both hosts have to see the same store.",
                "Mount it here, or choose transfer: rsync.",
            )
        if _incoming(moved.into) == entry.id:
            moved.before = "partial"
        elif not self.options.check:
            if os.path.lexists(moved.into):
                store.remove_partial(moved.into)
            store.make_partial(path)
            with open(os.path.join(moved.into, INCOMING), "w") as stream:
                stream.write(json.dumps({"id": entry.id}))
            owner.release(moved.into, forget=False)
        return moved

    def _accept(self, entry: Entry) -> Moved:
        """All of it has come, as it was: it waits for its source now."""
        path = store.image_path(self.options.store, entry.name)
        present = store.find_image(path)
        mark = present.life.handoff if present is not None else None
        if present is not None and mark is not None and mark.id == entry.id:
            if mark.side == SHARED:
                self._verify(path, present.path, entry)
                return Moved(replace(entry, lock=""), path, present.life.state, present.life.state)
            lock = handoff.lock_of(mark.key)
            return Moved(replace(entry, lock=lock), path, present.life.state, present.life.state)
        partial = path + PARTIAL
        if _incoming(partial) != entry.id:
            raise CriuError(
                partial,
                f"no copy of move {entry.id[:8]} is coming there",
                "Only what was asked for is accepted.",
                "Run the migration again.",
            )
        if present is not None:
            _check_replaceable(present, entry)
        moved = Moved(entry, path, "partial", HELD)
        if self.options.check:
            return moved
        owner.claim(partial)
        try:
            _own(partial)
            self._verify(path, partial, entry)
            key = secrets.token_hex(32)
            mark = Handoff(entry.id, TARGET, self.options.peer, self.options.peer_name, key, entry.lock)
            write_life(partial, handoff.hold(Life(run_id=self.options.run_id, at=time.time()), mark))
            manifest = read_manifest(partial)
            row = self._begin(manifest.lineage, path, "accepted", Image(path, manifest, Life()))
            self._arrived.append((row, manifest.bytes))
            store.seal(partial, path)
            os.unlink(os.path.join(path, INCOMING))
            self._journal.finish_image(row, "held", f"from {self.options.peer_name}")
        finally:
            if os.path.lexists(partial) and owner.is_mine(partial):
                owner.release(partial, forget=False)
        moved.entry = replace(entry, lock=handoff.lock_of(key))
        return moved

    def _verify(self, path: str, directory: str, entry: Entry) -> None:
        manifest = read_manifest(directory)
        problems: List[str] = []
        if manifest.lineage != entry.lineage or _sum(directory) != entry.manifest:
            problems.append("its manifest is not the one that was offered")
        problems.extend(digest.verify(directory, manifest.chunks, self.options.verify))
        if problems:
            raise CriuError(
                path,
                "; ".join(problems[:8]),
                "What has come is not what was sent: a process made of it would run with wrong memory.",
                "Run the migration again: what is wrong is sent anew.",
            )

    def _take(self, entry: Entry) -> Moved:
        with self._at(entry.name) as image:
            life = handoff.take(image.path, image.life, entry.id, entry.key, entry.lock, self._machine)
            return self._write(image, life, "moved", entry)

    def _give_back(self, entry: Entry) -> Moved:
        path = store.image_path(self.options.store, entry.name)
        if store.find_image(path) is None:
            # It was never whole, so its source was never asked to give it up for it.
            if not self.options.check and _incoming(path + PARTIAL) == entry.id:
                store.remove_partial(path + PARTIAL)
                return Moved(entry, path, "partial", "none")
            return Moved(entry, path)
        with self._at(entry.name) as image:
            free = not _may_live(image)
            life = handoff.give_back(
                image.path, image.life, entry.id, self._machine, free, self.options.run_id, time.time()
            )
            moved = self._write(image, life, "returned", _of_side(entry, life))
            mark = life.handoff
            moved.entry = replace(moved.entry, key="" if mark is None or mark.side == SHARED else mark.key)
            return moved

    # Both

    @contextmanager
    def _at(self, name: str) -> Iterator[Image]:
        """Nobody else is at work on it meanwhile, on whatever host."""
        path = store.image_path(self.options.store, name)
        store.open_image(path)
        if self.options.check:
            yield store.open_image(path)
            return
        owner.claim(path)
        try:
            yield store.open_image(path)
        finally:
            owner.release(path)

    def _write(self, image: Image, life: Life, status: str, entry: Entry) -> Moved:
        """The next mark. It is journalled before it is written; a status of "" is not worth a row."""
        moved = Moved(entry, image.path, image.life.state, life.state)
        if life == image.life or self.options.check:
            return moved
        row = self._begin(image.manifest.lineage, image.path, self.options.state, image) if status else 0
        write_life(image.path, life)
        if status:
            name = life.handoff.peer_name if life.handoff is not None else self.options.peer_name
            self._journal.finish_image(row, status, f"{self.options.state}: {life.state}, other host {name}")
        return moved

    def _begin(self, lineage: str, path: str, step: str, image: Image) -> int:
        row = self._journal.begin_image(
            lineage=lineage,
            path=path,
            run_id=self.options.run_id,
            root=image.manifest.root_identity,
            leave="running",
            worker=own_identity(),
        )
        self._journal.image_step(row.id, step)
        return row.id


def _of_side(entry: Entry, life: Life) -> Entry:
    """Whoever asks from a plan does not know whether there is one image or two."""
    is_shared = life.handoff is not None and life.handoff.side == SHARED
    return replace(entry, side=SHARED) if is_shared else entry


def _may_live(image: Image) -> bool:
    """Is anything of its tree here, or at work on it? Known under its lock only."""
    if criu_at(image.path) or half_restored(image) is not None:
        return True
    init = image.life.init
    if init is not None and is_alive(init):
        return True
    return image.life.boot_id == read_boot_id() and is_any_left(image)


def _sum(directory: str) -> str:
    with open(os.path.join(directory, MANIFEST), "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()


def _incoming(partial: str) -> str:
    """Of which move it is, "" for none."""
    try:
        with open(os.path.join(partial, INCOMING)) as stream:
            told = json.loads(stream.read(4096))
    except (OSError, ValueError):
        return ""
    found = told.get("id") if isinstance(told, dict) else ""
    return found if isinstance(found, str) else ""


def _own(partial: str) -> None:
    """What a transfer has made is root's alone, and nothing but files of an image. Raises CriuError."""
    content(partial)
    with os.scandir(partial) as entries:
        for one in entries:
            seen = one.stat(follow_symlinks=False)
            if stat.S_ISREG(seen.st_mode):
                os.chown(one.path, os.geteuid(), os.getegid(), follow_symlinks=False)
                os.chmod(one.path, 0o600)
            elif stat.S_ISDIR(seen.st_mode) and one.name.startswith("."):
                # rsync's, for what it has not finished.
                shutil.rmtree(one.path)
            else:
                raise bad_entry(partial, one.name)
    os.chmod(partial, 0o700)


def _check_replaceable(image: Image, entry: Entry) -> None:
    """Nothing is replaced that somebody may still come back from."""
    life = image.life
    if life.state in (RETURNED, MOVED) or (life.state == SPENT and not living(life)):
        return
    if life.state == HELD and image.manifest.lineage == entry.lineage:
        return
    alive = ", and what came out of it is alive" if life.state == SPENT else ""
    raise CriuError(
        image.path,
        f"it is there already, of lineage {image.manifest.lineage}, and {life.state}{alive}",
        "The copy would take its name, and an image that somebody may need is never replaced.",
        "Restore or delete it first, or name another store for the target.",
    )


def result(handing: Handing) -> Dict[str, Any]:
    return {
        "changed": any(one.changed for one in handing.moved),
        "run_id": handing.options.run_id,
        "handoffs": [
            {
                "name": one.entry.name,
                "id": one.entry.id,
                "lineage": one.entry.lineage,
                "manifest": one.entry.manifest,
                "lock": one.entry.lock,
                "key": one.entry.key,
                "side": one.entry.side,
                "path": one.path,
                "into": one.into,
                "before": one.before,
                "after": one.after,
            }
            for one in handing.moved
        ],
        "diff": {
            "before": "".join(f"{one.path}: {one.before}\n" for one in handing.moved),
            "after": "".join(f"{one.path}: {one.after}\n" for one in handing.moved),
        },
    }
