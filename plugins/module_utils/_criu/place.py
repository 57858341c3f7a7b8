# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where an image may lie: it holds the memory of a process, and whoever can change it decides what root runs."""

from __future__ import annotations

import os
import stat
from typing import List

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import NAME, NAME_ALLOWED
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

PARTIAL = ".partial"
_ACL = "system.posix_acl_access"
REASON = "An image holds a process's memory with its secrets, and whoever can change it decides what root runs."


def check_place(path: str) -> None:
    """Is this a path that an image may have? What is missing on the way is fine: it is made. Raises CriuError."""
    check_spelling(path)
    name = os.path.basename(path)
    if not NAME.fullmatch(name) or name.endswith(PARTIAL):
        raise CriuError(
            printable(path),
            f"its last part, {printable(name)}, is no name for an image",
            "",
            f"Allowed: {NAME_ALLOWED}; it must not end with {PARTIAL}.",
        )
    check_way(os.path.dirname(path))
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(path, path, error) from None
    if stat.S_ISLNK(seen.st_mode):
        raise _symlink(path, path)
    if not stat.S_ISDIR(seen.st_mode):
        raise CriuError(path, "it is no directory", "An image is a directory of its own.", "Choose another path.")


def check_spelling(path: str) -> None:
    """Raises CriuError unless it is absolute and says nothing in two ways."""
    if not path.startswith("/") or "\0" in path or os.path.normpath(path) != path or path.startswith("//"):
        raise CriuError(
            f'path "{printable(path)}"',
            "it is not absolute, or has . or .. or an empty part in it",
            "Where an image lies must not depend on where it is looked at from.",
            f"Name {os.path.abspath(path) if '/' in path and chr(0) not in path else 'a path that begins with /'}.",
        )


def check_way(directory: str) -> None:
    """Nobody but root and this user may put something else in place of this directory, of one above it, or into it.

    The sticky bit is enough further up, where it keeps others from renaming, but not in the last one that is there:
    others could take the name that is to be made in it. Raises CriuError.
    """
    ways: List[str] = [directory]
    while ways[-1] != "/":
        ways.append(os.path.dirname(ways[-1]))
    present = []
    for way in reversed(ways):
        try:
            seen = os.lstat(way)
        except FileNotFoundError:
            break
        except OSError as error:
            raise _unreadable(directory, way, error) from None
        if stat.S_ISLNK(seen.st_mode):
            raise _symlink(directory, way)
        if not stat.S_ISDIR(seen.st_mode):
            raise CriuError(directory, f"{way} is no directory", "", "Choose another path.")
        present.append((way, seen))
    for way, seen in present:
        if seen.st_uid not in (0, os.geteuid()):
            raise CriuError(
                directory,
                f"{way} belongs to user id {seen.st_uid}",
                REASON,
                "Choose a path whose directories all belong to root, or change its owner.",
            )
        sticky = bool(seen.st_mode & stat.S_ISVTX) and way != present[-1][0]
        if _others_write(way, seen) and not sticky:
            raise CriuError(
                directory,
                f"others can write {way} (mode {stat.S_IMODE(seen.st_mode):04o})",
                REASON,
                f"Choose another path, or close it: chmod go-w {way}",
            )


def _others_write(path: str, seen: os.stat_result) -> bool:
    """The group of root counts as root, unless the group's bits are those of an access list."""
    if seen.st_mode & stat.S_IWOTH:
        return True
    if not seen.st_mode & stat.S_IWGRP:
        return False
    return seen.st_gid != 0 or _has_access_list(path)


def _has_access_list(path: str) -> bool:
    try:
        return _ACL in os.listxattr(path, follow_symlinks=False)
    except OSError:
        return False  # a file system without them


def make_way(directory: str) -> None:
    """Make what is missing of it, for root only, and durable. Raises OSError."""
    missing = []
    while not os.path.lexists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for one in reversed(missing):
        try:
            os.mkdir(one, 0o700)
        except FileExistsError:
            continue
        handle = os.open(os.path.dirname(one), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _symlink(path: str, way: str) -> CriuError:
    return CriuError(
        path,
        f"{way} is a symbolic link",
        "Where it leads can be changed between two looks.",
        f"Name the place itself: {os.path.realpath(path)}",
    )


def _unreadable(path: str, way: str, error: OSError) -> CriuError:
    return CriuError(
        path, f"{way} can't be looked at: {error.strerror}", REASON, "Run the task as root (become), or look at it."
    )
