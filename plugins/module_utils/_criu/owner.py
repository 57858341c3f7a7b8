# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is at work in a directory. The kernel gives the lock up with its process, however that ends.

Locks of fcntl, not of flock: they are not inherited by the processes that a worker forks, and they work on network
file systems, between hosts as well.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from dataclasses import asdict, dataclass
from typing import Dict, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import OWNER
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import (
    FieldError,
    Fields,
    parse,
    read_limited,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

#: By device and inode of the directory: a file that is closed gives up all locks that its process has on it.
_held: Dict[Tuple[int, int, int], int] = {}


@dataclass(frozen=True)
class Owner:
    """hostname: of the host that it runs on."""

    pid: int
    start_ticks: int
    boot_id: str
    hostname: str


def _key(directory: str) -> Tuple[int, int, int]:
    info = os.lstat(directory)
    return os.getpid(), info.st_dev, info.st_ino


def claim(directory: str) -> None:
    """This process is at work there until it ends or lets go. Raises OSError, CriuError: somebody else is, or there can
    be no locks."""
    handle = os.open(
        os.path.join(directory, OWNER), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
    )
    try:
        lock(directory, handle)
        identity = read_identity(os.getpid()) or Identity(os.getpid(), 0, "")
        mine = Owner(identity.pid, identity.start_ticks, identity.boot_id, os.uname().nodename)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(asdict(mine)).encode(), 0)
        os.fsync(handle)
    except BaseException:
        os.close(handle)
        raise
    _held[_key(directory)] = handle


def lock(directory: str, handle: int) -> None:
    """Raises CriuError."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            owner = read_owner(directory)
            who = f"PID {owner.pid} of {owner.hostname}" if owner is not None else "another process"
            raise CriuError(
                directory, f"{who} is at work on it", "Two would destroy each other's work.", "Wait until it is done."
            ) from None
        raise CriuError(
            directory,
            f"files there can't be locked: {error.strerror}",
            "Without locks two runs, on two hosts, could make or restore one image at the same time.",
            "Choose a store on a file system with locks (NFS: version 4, or with its lock daemon).",
        ) from None


def release(directory: str, forget: bool = True) -> None:
    """Let go. forget: remove what says who was there, without which nobody takes it over. Does nothing where this
    process is not at work."""
    handle = _held.pop(_key(directory), None)
    if handle is None:
        return
    try:
        if forget:
            os.unlink(os.path.join(directory, OWNER))
    except FileNotFoundError:
        pass
    finally:
        os.close(handle)


def is_mine(directory: str) -> bool:
    """This very process is at work there."""
    return _key(directory) in _held


def is_owned(directory: str) -> bool:
    """Somebody is at work there, this process included."""
    if is_mine(directory):
        return True
    try:
        handle = os.open(os.path.join(directory, OWNER), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return False
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return True
        raise
    finally:
        os.close(handle)
    return False


def was_claimed(directory: str) -> bool:
    """By somebody, at some time: it was made here, and nobody else's files are in it."""
    return os.path.lexists(os.path.join(directory, OWNER))


def read_owner(directory: str) -> Optional[Owner]:
    """Who is at work there, or was; None where nothing says so. Not for one's own: see _held."""
    path = os.path.join(directory, OWNER)
    if is_mine(directory):
        data = os.pread(_held[_key(directory)], 4096, 0)
    else:
        try:
            data = read_limited(path, 4096)
        except (OSError, FieldError):
            return None
    try:
        fields = Fields(parse(data), "", Owner.__dataclass_fields__)
        pid, ticks = fields.number("pid", 1, 1 << 22), fields.number("start_ticks", 0, 1 << 63)
        boot, host = fields.raw("boot_id"), fields.raw("hostname")
    except FieldError:
        return None
    return Owner(pid, ticks, boot, host) if isinstance(boot, str) and isinstance(host, str) else None
