# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories that are renamed without taking anything away, and removed without being seen half removed."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
import time
import uuid
from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import owner
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import sync_directory
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import REASON
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.users import user_of

NEW, DELETED, WORK = "new", "deleted", "work"
#: Names that nothing takes for an image: what is being made, being deleted, or unpacked.
HIDDEN = re.compile(r"\.(?P<name>[A-Za-z0-9].*)\.(?P<kind>new|deleted|work)-[0-9a-f]{12}")

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
#: A directory that is being made belongs to nobody for a moment; in seconds.
_GRACE = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


def rename_new(source: str, target: str) -> None:
    """Raises FileExistsError where the target is there, whatever it is; OSError."""
    number = _renameat2(source, target, _NOREPLACE)
    if number in (errno.EINVAL, errno.ENOSYS):
        # NFS. An empty directory would be replaced, and nothing else.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        os.rename(source, target)
    elif number:
        raise OSError(number, os.strerror(number), target)


def replace(source: str, target: str) -> str:
    """Put one directory in the place of another, which gets a hidden name; returns that. Durable. At no time is there
    neither, but on file systems that can't exchange names. Raises OSError: then nothing has changed."""
    old = hidden(target, DELETED)
    number = _renameat2(source, target, _EXCHANGE)
    if number == 0:
        os.rename(source, old)
    elif number in (errno.EINVAL, errno.ENOSYS):
        os.rename(target, old)
        try:
            os.rename(source, target)
        except OSError:
            os.rename(old, target)
            raise
    else:
        raise OSError(number, os.strerror(number), target)
    sync_directory(os.path.dirname(target))
    return old


def _renameat2(source: str, target: str, flags: int) -> int:
    """0, or the number of the error."""
    call = getattr(_libc, "renameat2", None)
    if call is None:
        return errno.ENOSYS
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags)) == 0:
        return 0
    return ctypes.get_errno()


def hidden(path: str, kind: str) -> str:
    """A name beside this one that is not there yet."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.{kind}-{uuid.uuid4().hex[:12]}")


def make(path: str, kind: str) -> str:
    """A new directory beside this path, for root only, at which this process is at work. Whatever a network file system
    would do wrong shows here. Raises CriuError, OSError."""
    fresh = hidden(path, kind)
    os.mkdir(fresh, 0o700)
    try:
        seen = os.lstat(fresh)
        if seen.st_uid != os.geteuid():
            raise CriuError(
                os.path.dirname(path),
                f"what user id {os.geteuid()} makes there belongs to user id {seen.st_uid}",
                "The file system takes root for somebody else (root_squash), who could then read the image.",
                "Export it with no_root_squash to this host, or choose a store of its own.",
            )
        if stat.S_IMODE(seen.st_mode) & 0o077:
            raise CriuError(
                os.path.dirname(path),
                f"a directory made there for its owner only has mode {stat.S_IMODE(seen.st_mode):04o}",
                REASON,
                "Choose a store on a file system that keeps owners and modes.",
            )
        owner.claim(fresh)
    except BaseException:
        discard(fresh)
        raise
    return fresh


def delete(path: str) -> None:
    """Under its name it is gone at once, and as a whole. Raises OSError: then it has its old name still, or a hidden
    one, which sweep() removes."""
    gone = hidden(path, DELETED)
    os.rename(path, gone)
    sync_directory(os.path.dirname(path))
    discard(gone)


def discard(path: str) -> None:
    """A directory with a hidden name. Raises OSError."""
    if not HIDDEN.fullmatch(os.path.basename(path)):
        raise ValueError(f"{path} is none of ours")
    if os.path.lexists(path):
        owner.release(path)
        shutil.rmtree(path)
        sync_directory(os.path.dirname(path))


def sweep(directory: str, name: Optional[str] = None) -> None:
    """Remove what processes that died have left of the image with this name, or of all. Nothing is raised for what
    can't be removed: it takes space, and nothing else."""
    for entry in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        if is_leftover(directory, entry, name):
            shutil.rmtree(os.path.join(directory, entry), ignore_errors=True)


def is_leftover(directory: str, entry: str, name: Optional[str] = None) -> bool:
    """Nobody works in it any more."""
    found = HIDDEN.fullmatch(entry)
    path = os.path.join(directory, entry)
    if found is None or (name is not None and found.group("name") != name) or os.path.islink(path):
        return False
    try:
        if found.group("kind") != DELETED and time.time() - os.lstat(path).st_mtime < _GRACE:
            return False
        return not owner.is_owned(path) and not user_of(path)
    except OSError:
        return False
