# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A version 2 control group around one parked process, frozen: whatever continues the process, no thread runs.

In addition to the stop, not in place of it: the kernel keeps it up without any process of ours. The group is a child of
the one that the process is in, with a name that says whose it is, so that it can be undone without a record.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from typing import Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _cgroup
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import process
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import HoldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity

_SECONDS = 5.0
_OURS = re.compile(f"^{_cgroup.own_group(0, 0).replace('0', '([0-9]+)')}$")


def _group_name(identity: Identity) -> str:
    return _cgroup.own_group(identity.pid, identity.start_ticks)


def _error(identity: Identity, evidence: str, reason: str) -> HoldError:
    return HoldError(
        process.name(identity.pid), evidence, reason, "Use guard: holder, or guard: none, which need no control group"
    )


def _directory(pid: int) -> Optional[Tuple[str, str]]:
    """(directory, path) of the version 2 group of a process; None where there is none or it is out of sight."""
    path = dict(_cgroup.parse_membership(process.read(pid, "cgroup"))).get("")
    if path is None:
        return None
    for mount in _cgroup.parse_mounts(process.read_host("/proc/self/mountinfo")):
        names = _cgroup.below(path, mount.root) if mount.version == 2 else None
        if names is not None:
            return os.path.join(mount.point, *names), path
    return None


def frozen_by_us(identity: Identity) -> Optional[str]:
    """The directory of the group that `freeze` has made for this process; None where it is not in it."""
    found = _directory(identity.pid)
    if found is None or os.path.basename(found[0]) != _group_name(identity):
        return None
    return found[0]


def is_frozen(identity: Identity) -> bool:
    """In a group of ours, and frozen by it."""
    directory = frozen_by_us(identity)
    return directory is not None and "frozen 1" in process.read_host(os.path.join(directory, "cgroup.events"))


def freeze(identity: Identity) -> str:
    """The directory of the frozen group. Nothing happens where it is frozen by us already.

    Raises HoldError where there is no version 2 hierarchy, it can't be written, or the group can't have a child.
    """
    there = frozen_by_us(identity)
    if there is not None:
        _write(identity, there, "cgroup.freeze", "1")
        _await(identity, there, "1")
        return there
    found = _directory(identity.pid)
    if found is None:
        raise _error(identity, "its control group of version 2 can't be seen", "The freezer of version 2 is needed")
    parent, path = found
    if not os.path.exists(os.path.join(parent, "cgroup.procs")):
        raise _error(identity, f"{parent} is no control group of version 2", "The freezer of version 2 is needed")
    kind = process.read_host(os.path.join(parent, "cgroup.type"))
    if kind not in ("", "domain"):
        raise _error(identity, f"its control group {path} is {kind!r}", "Only a domain group can hold a frozen child")
    _sweep(parent)
    directory = os.path.join(parent, _group_name(identity))
    try:
        os.mkdir(directory, 0o755)
    except FileExistsError:
        pass
    except OSError as error:
        raise _error(
            identity, f"no group can be made in {parent}: {error.strerror}", "It is frozen in one of its own"
        ) from None
    try:
        _write(identity, directory, "cgroup.procs", str(identity.pid))
        _write(identity, directory, "cgroup.freeze", "1")
        _await(identity, directory, "1")
    except HoldError:
        with contextlib.suppress(HoldError):
            thaw(identity)
        _remove(directory)
        raise
    return directory


def thaw(identity: Identity) -> bool:
    """Undo `freeze`: thawed, back in the group it came from (if that takes it still), the child removed. False where it
    was not frozen by us.

    Call it once every thread is held: what has been continued while it was frozen runs as soon as it is thawed.
    """
    directory = frozen_by_us(identity)
    if directory is None:
        return False
    _write(identity, directory, "cgroup.freeze", "0")
    _await(identity, directory, "0")
    with contextlib.suppress(HoldError):
        _write(identity, os.path.dirname(directory), "cgroup.procs", str(identity.pid))
        _remove(directory)
    return True


def _sweep(parent: str) -> None:
    """Remove the groups of processes that have ended in theirs."""
    for name in os.listdir(parent):
        match = _OURS.match(name)
        if match is None:
            continue
        there = read_identity(int(match.group(1)))
        if there is None or there.start_ticks != int(match.group(2)):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(parent, name))


def _remove(directory: str) -> None:
    end = time.monotonic() + 1.0
    while True:
        try:
            os.rmdir(directory)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # Busy for a moment after the last process has left; else it is left behind, empty and harmless.
            if error.errno != errno.EBUSY or time.monotonic() > end:
                return
        time.sleep(0.01)


def _write(identity: Identity, directory: str, name: str, value: str) -> None:
    try:
        with open(os.path.join(directory, name), "w") as stream:
            stream.write(value)
    except OSError as error:
        raise _error(
            identity,
            f"{os.path.join(directory, name)} can't be written: {error.strerror}",
            "The group has to be changed to freeze or thaw it",
        ) from None


def _await(identity: Identity, directory: str, wanted: str) -> None:
    end = time.monotonic() + _SECONDS
    while f"frozen {wanted}" not in process.read_host(os.path.join(directory, "cgroup.events")):
        if time.monotonic() > end:
            raise _error(
                identity,
                f"{directory} did not come to 'frozen {wanted}' within {_SECONDS:g} s",
                "A thread of it waits in the kernel where it can't be frozen",
            )
        time.sleep(0.001)
