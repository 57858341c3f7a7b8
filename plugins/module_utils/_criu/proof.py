# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is everything in the image that was seen of the tree? Pure."""

from __future__ import annotations

from typing import Iterable, List, Mapping, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.images import Task
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree, TreeMember
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable


def prove(
    tree: Tree,
    tasks: Sequence[Task],
    page_bytes: Mapping[int, int],
    device_bytes: Mapping[int, Mapping[str, int]],
) -> Tuple[str, ...]:
    """What speaks against it, in words; empty: proved.

    tree: as it stood still. tasks, page_bytes: of the image. device_bytes: PID -> GPU UUID -> bytes that it held before
    it was suspended: they are its private host memory since, so its image can't have less.
    """
    problems: List[str] = []
    known = {task.pid: task for task in tasks}
    if tasks and tasks[0].pid != tree.root.pid:
        problems.append(f"its root is PID {tasks[0].pid}, not PID {tree.root.pid}")
    for member in tree.members:
        task = known.get(member.pid)
        if task is None:
            problems.append(f"{_name(member)} is not in the image")
            continue
        problems.extend(_differences(member, task, member is tree.root))
        problems.extend(_too_little(member, page_bytes, device_bytes.get(member.pid, {})))
    for task in tasks:
        # The tree is read without zombies.
        if tree.member(task.pid) is None and not task.is_zombie:
            problems.append(f"PID {task.pid} ({printable(task.name)}) is in the image, and was not seen in the tree")
    for pid in sorted(set(device_bytes) - set(tree.pids)):
        problems.append(f"PID {pid} held GPU memory, and was not seen in the tree")
    return tuple(problems)


def _differences(member: TreeMember, task: Task, root: bool) -> Iterable[str]:
    if task.is_zombie:
        yield f"{_name(member)} is dead in the image"
        return
    seen = (member.parent, member.group, member.session)
    held = (task.parent, task.group, task.session)
    for what, ours, theirs in zip(("parent", "process group", "session"), seen, held):
        # Who started the root is not in the image.
        if ours != theirs and not (root and what == "parent"):
            yield f"{_name(member)} has the {what} {theirs} in the image, and {ours} in the tree"
    if set(member.threads) != set(task.threads) or len(member.threads) != len(task.threads):
        lost = sorted(set(member.threads) - set(task.threads))
        more = sorted(set(task.threads) - set(member.threads))
        yield (
            f"{_name(member)} has {len(task.threads)} threads in the image, and {len(member.threads)} in the tree"
            + (f"; missing: {', '.join(map(str, lost[:8]))}" if lost else "")
            + (f"; more: {', '.join(map(str, more[:8]))}" if more else "")
        )


def _too_little(member: TreeMember, page_bytes: Mapping[int, int], held: Mapping[str, int]) -> Iterable[str]:
    there = page_bytes.get(member.pid)
    if there is None:
        yield f"no memory of {_name(member)} is in the image"
        return
    needed = sum(held.values())
    if there < needed:
        yield f"{_name(member)} has {there} bytes of memory in the image; from its GPUs alone came {needed}"


def _name(member: TreeMember) -> str:
    return f"PID {member.pid} ({printable(member.name)})"
