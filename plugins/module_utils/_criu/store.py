# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images on the disk: each a directory for root only, which has its name when it is whole, and not a moment earlier.

An image that is being made lies beside its place, with `.partial` after its name. Nothing restores one of those.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Tuple, Union

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import ending, hidden, owner
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import (
    LIFE,
    MANIFEST,
    content,
    is_content,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import sync_directory, sync_files
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import Life, read_life, write_life
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest, read_manifest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import (
    PARTIAL,
    REASON,
    check_place,
    check_spelling,
    check_way,
    make_way,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.users import user_of
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import places, unescape
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

__all__ = [
    "Broken",
    "Image",
    "Partial",
    "check_image",
    "check_place",
    "content",
    "find_image",
    "has_partial",
    "image_name",
    "image_path",
    "list_images",
    "list_partials",
    "make_partial",
    "open_image",
    "probe",
    "remove",
    "remove_partial",
    "remove_partial_of",
    "seal",
    "selection",
    "sync",
]

_ATTEMPTS = 5
_UNSAFE = re.compile(r"[^A-Za-z0-9._+@=-]+")
_NAME_LENGTH = 120


@dataclass(frozen=True)
class Image:
    """One that can be judged. Whether its content is as it was: digest.verify()."""

    path: str
    manifest: Manifest
    life: Life


@dataclass(frozen=True)
class Broken:
    """A directory of a store that is no image, or none that can be trusted, and why."""

    path: str
    why: str


@dataclass(frozen=True)
class Partial:
    """An image that is being made, unpacked or deleted, or what is left of one. by: "PID n of HOST" of who is or was at
    work, "" unknown. active: it still is. bytes: on the disk."""

    path: str
    by: str
    active: bool
    bytes: int


# Names


def image_path(store: str, name: str) -> str:
    return os.path.join(store, name)


def image_name(process: ProcessSnapshot) -> str:
    """By what a person knows the process by: Slurm job, container or systemd unit, and by its PID. That tells two of
    one unit apart, and is the same again when the process is restored."""
    _cgroup, unit, job, container = places(process)
    pid = process.identity.pid
    if job:
        return _safe(f"slurm-{job}-{pid}")
    if container:
        return _safe(f"container-{container[:12]}-{pid}")
    if unit and unit.endswith(".service"):
        stem = _safe(unescape(unit)[: -len(".service")])[:_NAME_LENGTH]
        return _safe(f"{stem}-{pid}")
    return f"pid-{pid}"


def _safe(text: str) -> str:
    return _UNSAFE.sub("-", text).lstrip("._+@=-") or "image"


def selection(select: Optional[Mapping[str, Any]]) -> str:
    """The option select as one text: equal for what means the same. "" for none."""
    if not select:
        return ""
    said = {name: value for name, value in select.items() if value not in (None, False, [], "")}
    return json.dumps(said, sort_keys=True, separators=(",", ":"))


# Making


def make_partial(path: str) -> str:
    """A new directory for an image that is to be at this path; this process is at work in it until seal(),
    remove_partial() or its end. What a dead process has left there goes.

    Raises CriuError: the place, somebody else at work, a file system that does not keep what it is told; OSError.
    """
    check_place(path)
    directory = os.path.dirname(path)
    make_way(directory)
    check_place(path)
    hidden.sweep(directory, os.path.basename(path))
    partial = path + PARTIAL
    for _attempt in range(_ATTEMPTS):
        fresh = hidden.make(path, hidden.NEW)
        try:
            hidden.rename_new(fresh, partial)
        except FileExistsError:
            hidden.discard(fresh)
            _take_over(partial)
            continue
        except BaseException:
            hidden.discard(fresh)
            raise
        return partial
    raise CriuError(partial, "others make it again and again", "", "Find out who works on that image, and wait.")


def _take_over(partial: str) -> None:
    """Remove a partial image if nobody is at work on it. Raises CriuError."""
    try:
        if not _is_ours(partial):
            raise CriuError(
                partial,
                "it is there, and was not made by this collection",
                "Nothing is deleted that somebody else may need.",
                "Move it away.",
            )
        _claim_left(partial)
        if ending.is_only_copy(partial):
            owner.release(partial, forget=False)
            raise CriuError(
                partial,
                "it holds a tree that CRIU has ended for it, and nothing else does",
                "Deleted, it would be lost.",
                "Run criu_image with state: restored and that path: the image is finished then. Where that is refused, "
                "keep a copy before you remove it.",
            )
    except FileNotFoundError:
        return  # sealed or removed meanwhile
    hidden.delete(partial)


def _is_ours(partial: str) -> bool:
    """Made by this collection. Raises OSError."""
    seen = os.lstat(partial)
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and owner.was_claimed(partial)


def _claim_left(partial: str) -> None:
    """Of one that a dead process has left. Raises CriuError, OSError."""
    if owner.is_mine(partial):
        raise ValueError(f"this process is at work on {partial} already")
    owner.claim(partial)
    user = user_of(partial)
    if user:
        owner.release(partial, forget=False)
        raise CriuError(
            partial,
            f"PID {user} still writes to it, though who started it has ended",
            "What it stops and continues must not be taken from it half way.",
            "Wait until it is done.",
        )


def finish(path: str, is_whole: Callable[[str], bool]) -> bool:
    """The image of a tree that CRIU has ended, and whose maker died before it was sealed. is_whole: whether CRIU had
    written everything into that directory. False: there is none, or its tree lives. Raises CriuError, OSError."""
    partial = path + PARTIAL
    if not os.path.lexists(partial):
        return False
    check_place(path)
    if not _is_ours(partial) or not ending.is_only_copy(partial):
        return False
    _claim_left(partial)
    try:
        if not is_whole(partial):
            raise CriuError(
                partial,
                "CRIU has ended a tree for it, and was ended before it had written everything",
                "It can't be restored.",
                "Keep it, with CRIU's log in it, until you know what became of that process.",
            )
        ending.complete(partial)
        seal(partial, path)
        ending.forget(path)
    except BaseException:
        if os.path.lexists(partial):
            owner.release(partial, forget=False)
        raise
    return True


def probe(path: str) -> Tuple[str, ...]:
    """What a store at this path, or the nearest directory that is there, does not do: belong to root, keep modes,
    lock, reach the disk. Empty: it does all. Makes a directory and removes it."""
    directory = path
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    try:
        hidden.discard(hidden.make(os.path.join(directory, "probe"), hidden.NEW))
        sync_directory(directory)
    except CriuError as error:
        return (str(error),)
    except OSError as error:
        return (f"{directory}: {error.strerror or error}",)
    return ()


def sync(partial: str) -> None:
    """Every file, and the names. Raises OSError."""
    sync_files([os.path.join(partial, name) for name in sorted(os.listdir(partial)) if not name.startswith(".")])
    sync_directory(partial)


def seal(partial: str, path: str) -> None:
    """Give it its name. An image that is there already is replaced, and there is one or the other at any time. It is on
    the disk when the call returns. Raises CriuError, OSError: then it does not have its name."""
    if partial != path + PARTIAL or not owner.is_mine(partial):
        raise ValueError(f"{partial} is not being made by this process")
    if not os.path.lexists(os.path.join(partial, MANIFEST)):
        raise ValueError(f"{partial} has no manifest")
    if not os.path.lexists(os.path.join(partial, LIFE)):
        write_life(partial, Life())
    content(partial)
    for name in os.listdir(partial):
        os.chmod(os.path.join(partial, name), 0o600)
    os.chmod(partial, 0o700)
    sync(partial)
    old = ""
    try:
        hidden.rename_new(partial, path)
        sync_directory(os.path.dirname(path))
    except FileExistsError:
        check_image(path)
        owner.claim(path)
        old = hidden.replace(partial, path)
    owner.release(path)
    if old:
        try:
            hidden.discard(old)
        except OSError:
            pass  # the next run sweeps it


def remove_partial(partial: str) -> None:
    """One of this process, or one that nobody is at work on. Raises CriuError, OSError."""
    if not partial.endswith(PARTIAL):
        raise ValueError(f"{partial} is no partial image")
    if os.path.lexists(partial) and owner.is_mine(partial):
        hidden.delete(partial)
    else:
        _take_over(partial)


def has_partial(path: str) -> bool:
    """One is being made, or was begun by somebody who died at it."""
    return os.path.lexists(path + PARTIAL)


def remove_partial_of(path: str) -> bool:
    """What a dead process has left of the image that was to be at this path: True if there was something. Raises
    CriuError: somebody is at work on it."""
    check_place(path)
    hidden.sweep(os.path.dirname(path), os.path.basename(path))
    if not os.path.lexists(path + PARTIAL):
        return False
    remove_partial(path + PARTIAL)
    return True


def remove(path: str) -> None:
    """An image, sound or not. It is gone as a whole: a half deleted one has no name. Raises CriuError, OSError."""
    check_place(path)
    check_image(path)
    owner.claim(path)
    hidden.sweep(os.path.dirname(path), os.path.basename(path))
    hidden.delete(path)


def check_image(path: str) -> None:
    """Nothing else is replaced or deleted. Raises CriuError."""
    if not os.path.lexists(os.path.join(path, MANIFEST)):
        raise CriuError(
            path,
            f"there is something without {MANIFEST}",
            "Nothing is deleted or replaced that is no image.",
            "Choose another path, or move that away.",
        )


# Looking


def find_image(path: str) -> Optional[Image]:
    """None: there is nothing. Raises CriuError for a place that can't be trusted, and for something that is no sound
    image."""
    check_place(path)
    return open_image(path) if os.path.lexists(path) else None


def open_image(path: str) -> Image:
    """Its own words are checked, its content is not. Raises CriuError."""
    check_place(path)
    if not os.path.lexists(path):
        partial = os.path.lexists(path + PARTIAL)
        raise CriuError(
            path,
            "there is no image" + (f", only one that was not finished, {path + PARTIAL}" if partial else ""),
            "What was not finished can't be restored." if partial else "",
            "List those that are there with criu_image_info.",
        )
    try:
        _check_modes(path)
    except OSError as error:
        raise CriuError(
            path, f"it can't be read: {error.strerror}", REASON, "Run the task as root (become), or look at it."
        ) from None
    return Image(path, read_manifest(path), read_life(path))


def _check_modes(path: str) -> None:
    _check_mode(path, os.lstat(path), 0o077, f"chmod 700 {path}")
    with os.scandir(path) as entries:
        for entry in entries:
            seen = entry.stat(follow_symlinks=False)
            name = os.path.join(path, printable(entry.name))
            if not stat.S_ISREG(seen.st_mode) and (is_content(entry.name) or entry.name in (MANIFEST, LIFE)):
                raise CriuError(
                    name,
                    "it is no regular file",
                    "What it leads to would be taken for a part of the image.",
                    "Bring the image from its origin again.",
                )
            if stat.S_ISREG(seen.st_mode):
                _check_mode(name, seen, 0o022, f"chmod 600 {name}")


def _check_mode(name: str, seen: os.stat_result, forbidden: int, remedy: str) -> None:
    if seen.st_uid not in (0, os.geteuid()):
        raise CriuError(
            name, f"it belongs to user id {seen.st_uid}", REASON, "Bring the image from its origin again, as root."
        )
    if seen.st_mode & forbidden:
        raise CriuError(
            name,
            f"it is open to others (mode {stat.S_IMODE(seen.st_mode):04o})",
            REASON,
            f"Find out who did that, then: {remedy}",
        )


def list_images(store: str) -> Tuple[Union[Image, Broken], ...]:
    """By name; a store that is not there has none. Raises CriuError: the place; OSError."""
    found: List[Union[Image, Broken]] = []
    for name in _names(store):
        path = os.path.join(store, name)
        if name.startswith(".") or name.endswith(PARTIAL) or not stat.S_ISDIR(os.lstat(path).st_mode):
            continue
        try:
            found.append(open_image(path))
        except CriuError as error:
            found.append(Broken(path, str(error)))
    return tuple(found)


def list_partials(store: str) -> Tuple[Partial, ...]:
    """By name. Raises as list_images()."""
    found = []
    for name in _names(store):
        path = os.path.join(store, name)
        if not os.path.isdir(path) or not (name.endswith(PARTIAL) or hidden.HIDDEN.fullmatch(name)):
            continue
        try:
            who = owner.read_owner(path)
            active = owner.is_owned(path)
            size = sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(path))
        except OSError:
            continue  # gone meanwhile
        found.append(Partial(path, f"PID {who.pid} of {printable(who.hostname)}" if who else "", active, size))
    return tuple(found)


def _names(store: str) -> List[str]:
    check_spelling(store)
    check_way(store)
    try:
        return sorted(os.listdir(store))
    except FileNotFoundError:
        return []
    except OSError as error:
        remedy = "Run the task as root (become), or look at it."
        raise CriuError(store, f"it can't be read: {error.strerror}", REASON, remedy) from None
