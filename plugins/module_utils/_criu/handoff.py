# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the right to one life goes from an image to its copy on another host. Pure: from mark to mark.

Whoever may restore has a mark that says so, and at no time do two. A side gives the right up first, durable, and only
then hands out the key that the other side needs to take it: each holds the SHA-256 of the other's key, and never the
key itself. What is lost on the way is asked for again; the answer is the same.

    source   unspent --fence--> moved --reclaim(key of the target)--> unspent
    target   held --take(key of the source)--> unspent --give back--> returned

Where both hosts see one image there is one mark, and each step is one write of it: moved to whom, and from then on
restored by that host alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    HELD,
    MOVED,
    RESTORING,
    RETURNED,
    SHARED,
    SOURCE,
    SPENT,
    TARGET,
    UNSPENT,
    Handoff,
    Life,
)

_LIVES = (
    "The right to its one life is not here any more, and two lives write to the same files and answer the same peers"
)


def lock_of(key: str) -> str:
    """What the other side holds of this key."""
    return hashlib.sha256(key.encode("ascii")).hexdigest()


def opens(key: str, lock: str) -> bool:
    return bool(key) and bool(lock) and lock_of(key) == lock


def barred(life: Life, machine: str) -> str:
    """Why this host may not restore an image with this mark, "" if it may. machine: the machine id of this host."""
    handoff = life.handoff
    name = handoff.peer_name if handoff is not None and handoff.peer_name else "another host"
    if life.state == MOVED:
        return f"it was handed to {name} by run {life.run_id or 'unknown'}, and can only live there"
    if life.state == HELD:
        return f"it is a copy from {name} that has not been given up there: its process can still come back there"
    if life.state == RETURNED:
        return f"it was given back to {name}, and can only live there"
    if life.host and life.host != machine:
        who = "that it was handed to" if life.state == UNSPENT else "that has begun to restore it"
        return f"only the host {who} (machine id {life.host}) may restore it"
    return ""


def taken_by(life: Life) -> str:
    """Machine id of the host that has taken the one image that both see, "" for none. It may live there only."""
    handoff = life.handoff
    if handoff is None or handoff.side != SHARED or life.state not in (UNSPENT, RESTORING, SPENT):
        return ""
    return handoff.peer if life.host == handoff.peer else ""


def offer(subject: str, life: Life, fresh: Handoff) -> Life:
    """It may go to the host of `fresh`. It can be restored here as before, which ends the offer. To the same host it is
    the same offer again; to another one a new one, and no copy for an older one is ever of use again."""
    now = life.handoff
    same = now is not None and now.peer == fresh.peer and (now.side == SHARED) == (fresh.side == SHARED)
    taken = bool(fresh.peer) and taken_by(life) == fresh.peer
    if same and (life.state == MOVED or taken):
        return life
    if life.state == UNSPENT and now is not None and same and now.side in (SOURCE, SHARED):
        return life
    if life.state != UNSPENT or taken:
        raise _wrong(subject, life, "offered", "Look where it lives, with criu_image_info on both hosts.")
    return replace(life, handoff=fresh)


def hold(life: Life, handoff: Handoff) -> Life:
    """The mark of a copy that is whole."""
    return replace(Life(), state=HELD, run_id=life.run_id, at=life.at, handoff=handoff)


def fence(subject: str, life: Life, handoff_id: str, lock: str, run_id: str, at: float) -> Life:
    """From here on it is never restored here, unless the other side gives it back. lock: of the target, "" where both
    see one image."""
    handoff = _known(subject, life, handoff_id)
    if handoff.side == TARGET:
        raise _wrong(subject, life, "given up as a source", "Name the image that was offered.")
    if life.state == MOVED:
        if handoff.side == SOURCE and handoff.lock != lock:
            raise CriuError(
                subject,
                "it was given up for another copy than this one",
                _LIVES,
                f"Carry on with the copy on {handoff.peer_name or 'the other host'}, or have that given back.",
            )
        return life
    if taken_by(life):
        return life
    if life.state != UNSPENT:
        raise _wrong(subject, life, "given up", "Look who lives here, with criu_image_info.")
    if handoff.side == SOURCE and not lock:
        raise ValueError("a copy without a lock")
    return replace(life, state=MOVED, run_id=run_id, at=at, handoff=replace(handoff, lock=lock))


def take(subject: str, life: Life, handoff_id: str, key: str, lock: str, machine: str) -> Life:
    """The right is here now. key, lock: as the fence told them, so lock is of the copy that it was given up for."""
    handoff = _known(subject, life, handoff_id)
    if handoff.side == SHARED:
        if life.state == MOVED and handoff.peer == machine:
            return replace(life, state=UNSPENT, host=machine)
        if life.host == machine and life.state in (UNSPENT, RESTORING, SPENT):
            return life
        raise _wrong(subject, life, "taken", "It has to be given up for this very host first.")
    if handoff.side != TARGET or life.state in (MOVED, RETURNED):
        raise _wrong(subject, life, "taken", "Offer it anew.")
    if life.state == HELD:
        if lock != lock_of(handoff.key):
            raise CriuError(
                subject,
                "its source has given the image up for another copy than this one",
                "Of several copies one may live, and it is not this one.",
                "Carry on with that copy, or have it given back and offer the image anew.",
            )
        if not opens(key, handoff.lock):
            raise CriuError(
                subject,
                "the key that is to open it is not that of its source",
                "Only a source that can't restore it any more gives its key away; without it there could be two lives.",
                "Fence the image on its source for this very copy, and name what that returned.",
            )
        return replace(life, state=UNSPENT)
    return life


def give_back(subject: str, life: Life, handoff_id: str, machine: str, is_free: bool, run_id: str, at: float) -> Life:
    """It will not be restored here. is_free: of one that is being restored, nothing of the tree is there, and nobody is
    at work on it."""
    handoff = _known(subject, life, handoff_id)
    if handoff.side == SOURCE:
        raise _wrong(subject, life, "given back by its source", "Name the copy at the target.")
    if life.state == RETURNED or (life.state == MOVED and handoff.side == SHARED):
        return life
    if life.state == SPENT:
        raise CriuError(
            subject,
            f"it was restored here, by run {life.run_id or 'unknown'}",
            _LIVES,
            "Its process is here. If it has ended since, its life is over.",
        )
    if life.state == RESTORING and not is_free:
        raise CriuError(
            subject,
            f"it is being restored here, or was when something broke off (run {life.run_id or 'unknown'})",
            "As long as its tree is here, or may be, it must come back nowhere else.",
            "Run criu_image with state: restored here: it carries on from what there is.",
        )
    if handoff.side == SHARED and life.host != machine:
        raise _wrong(subject, life, "given back", "Only the host that has taken it can.")
    state = MOVED if handoff.side == SHARED else RETURNED
    return replace(life, state=state, run_id=run_id, at=at, boot_id="", members=(), init=None)


def reclaim(subject: str, life: Life, handoff_id: str, key: str, machine: str) -> Life:
    """The right is at its source again."""
    handoff = _known(subject, life, handoff_id)
    if life.state == UNSPENT and life.host in ("", machine) and handoff.side != TARGET:
        return replace(life, host="")
    if life.state != MOVED or handoff.side == TARGET:
        raise _wrong(subject, life, "reclaimed", "Look where it lives, with criu_image_info on both hosts.")
    if handoff.side == SOURCE and not opens(key, handoff.lock):
        raise CriuError(
            subject,
            f"the copy on {handoff.peer_name or 'the other host'} has not been given back",
            "It could be restored there, or has been. Nothing may bring it back here until that is known.",
            "Give it back there first; where that host and its disks are gone for good, see allow.",
            "criu_image with state: restored and allow: [second_life]",
        )
    return replace(life, state=UNSPENT, run_id="", at=0.0, handoff=None, host="")


def conclude(subject: str, life: Life, handoff_id: str, at: float) -> Life:
    """It lives at its target: what is left here may be deleted."""
    handoff = _known(subject, life, handoff_id)
    if handoff.side != SOURCE or life.state not in (MOVED, SPENT):
        raise _wrong(subject, life, "concluded", "It has to be given up first.")
    return replace(life, state=SPENT, at=at)


def _known(subject: str, life: Life, handoff_id: str) -> Handoff:
    handoff: Optional[Handoff] = life.handoff
    if handoff is None or not handoff_id or handoff.id != handoff_id:
        there = "no move" if handoff is None else f"move {handoff.id[:8]}"
        raise CriuError(
            subject,
            f"its mark ({life.state}) tells of {there}, not of move {handoff_id[:8] or 'unknown'}",
            "It was offered anew, restored or replaced meanwhile; what belonged to the other move is of no use.",
            "Run the migration again: it reads what there is now.",
        )
    return handoff


def _wrong(subject: str, life: Life, what: str, remedy: str) -> CriuError:
    return CriuError(subject, f"it is {life.state}, and can't be {what}", _LIVES, remedy)
