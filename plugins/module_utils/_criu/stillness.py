# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stops the members of a tree that have no CUDA, lets them go on, and ends a whole tree that is in an image.

Parents are stopped before their children and continued after them: so no parent ever sees a child stopped, and none
can answer with a restart, a kill or the next command of its script.
"""

from __future__ import annotations

import signal
import time
from typing import Callable, Collection, Iterable, List, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree, switches
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree, TreeMember
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import HoldError, ProcessEndedError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.process import Handle, describe, live_tasks
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive, read_identity, task_state
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

STOP_SECONDS = 30.0
END_SECONDS = 60.0
_PAUSE = 0.005


def stop_others(
    root: Identity, stopped: List[Identity], remember: Callable[[], None], seconds: float = STOP_SECONDS
) -> Tree:
    """Stop every member without CUDA, also those that are made meanwhile. stopped: gets those that are stopped here;
    remember: called before they are, so that they can be continued whatever happens next. Returns the tree, in which
    all but CUDA's members stand still.

    Raises CriuError: the root has ended, or a thread does not stop.
    """
    end = time.monotonic() + seconds
    while True:
        tree = read_tree(root.pid)
        if tree is None or tree.root.identity != root:
            raise CriuError(f"PID {root.pid}", "it has ended", "There is nothing to dump.", "Look at its own log.")
        moving = [one for one in tree.members if not one.cuda and not _stands(one.identity)]
        if not moving:
            return tree
        stopped.extend(one.identity for one in moving if one.identity not in stopped)
        remember()
        for member in moving:
            _send(member.identity, signal.SIGSTOP)
            _wait_until_stopped(member, end)


def _stands(identity: Identity) -> bool:
    states = live_tasks(identity.pid)
    return read_identity(identity.pid) != identity or all(state in ("T", "t") for state in states.values())


def _wait_until_stopped(member: TreeMember, end: float) -> None:
    while not _stands(member.identity):
        if time.monotonic() > end:
            slow = [tid for tid, state in live_tasks(member.pid).items() if state not in ("T", "t")]
            raise CriuError(
                f"PID {member.pid} ({member.name})",
                f"it does not stop: {describe(member.pid, slow[0]) if slow else 'it is continued again and again'}",
                "A tree can only be dumped while it stands still.",
                "Look at what it waits for in the kernel, and run the task again.",
            )
        time.sleep(_PAUSE)


def go_on(stopped: Sequence[Identity]) -> Tuple[str, ...]:
    """Continue them, the last that was stopped first. Returns a word about each that has ended meanwhile."""
    ended = []
    for identity in reversed(stopped):
        if not _send(identity, signal.SIGCONT):
            ended.append(f"PID {identity.pid} ended while it was stopped")
    return tuple(ended)


def _send(identity: Identity, number: int) -> bool:
    try:
        handle = Handle(identity)
        try:
            handle.send(number)
        finally:
            handle.close()
    except ProcessEndedError:
        return False
    except HoldError as error:
        raise CriuError(error.subject, error.evidence, error.reason, error.remedy) from None
    return True


def who_ran(tree: Tree, guarded: Collection[int] = ()) -> Tuple[str, ...]:
    """Members that have run, ended or been replaced since the tree was read: an image of then is not what they are.
    guarded: PIDs of those that can't have run."""
    found = []
    for member in tree.members:
        if read_identity(member.pid) != member.identity or not is_alive(member.identity):
            found.append(f"PID {member.pid} ({member.name}) has ended")
        elif member.pid in guarded:
            continue
        elif not _stands(member.identity) or switches(member.pid) != member.switches:
            found.append(f"PID {member.pid} ({member.name}) has run")
    return tuple(found)


def end_tree(tree: Tree, seconds: float = END_SECONDS) -> Tuple[str, ...]:
    """SIGKILL to all; wait until each is gone and reaped. Returns words about those that remain: their PIDs are
    busy until their parents have reaped them.

    Children first: the kernel continues what is stopped in a process group that the death of a parent orphans, and what
    runs on then would write to files that the image expects unchanged.
    """
    for member in reversed(tree.members):
        _send(member.identity, signal.SIGKILL)
    return wait_gone([member.identity for member in tree.members], seconds)


def end(identity: Identity, seconds: float = END_SECONDS) -> Tuple[str, ...]:
    """SIGKILL to one; see end_tree."""
    _send(identity, signal.SIGKILL)
    return wait_gone([identity], seconds)


def wait_gone(identities: Iterable[Identity], seconds: float) -> Tuple[str, ...]:
    """Until none of them is in /proc any more, zombies included."""
    end = time.monotonic() + seconds
    left = list(identities)
    while True:
        left = [one for one in left if read_identity(one.pid) == one]
        if not left or time.monotonic() > end:
            return tuple(_remains(one) for one in left)
        time.sleep(_PAUSE)


def _remains(identity: Identity) -> str:
    state = task_state(identity.pid, identity.pid)
    if state == "Z":
        return f"PID {identity.pid} has ended, but its parent has not reaped it: the number stays in use until it does"
    return f"PID {identity.pid} is still there, in state {state or '?'}"
