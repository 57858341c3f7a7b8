# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a process and its descendants from /proc."""

from __future__ import annotations

import os
import stat as kinds
import time
from typing import Dict, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around_parse import descendants, strip_deleted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular, Tree, TreeMember
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import list_processes
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import parse_status
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_stat, read_text, tasks_of

_ATTEMPTS = 10


def read_tree(root: int) -> Optional[Tree]:
    """None: there is no such process, or it is a zombie. Zombies further down are left out: CRIU knows how to keep
    them. Raises OSError where /proc can't be read."""
    for _attempt in range(_ATTEMPTS):
        at = time.time()
        pids = _family(root)
        if not pids:
            return None
        found = {process.pid: process for process in list_processes(pids) if process.pid in pids}
        if root not in found or found[root].is_zombie:
            return None
        members = [_member(found[pid]) for pid in pids if pid in found and not found[pid].is_zombie]
        if _family(root) == pids:
            return Tree(tuple(members), at)
    return Tree(tuple(members), at)


def _family(root: int) -> Tuple[int, ...]:
    """Parents before their children."""
    parents: Dict[int, int] = {}
    for name in os.listdir("/proc"):
        stat = read_stat(f"/proc/{name}/stat") if name.isdigit() else None
        if stat is not None:
            parents[int(name)] = stat.parent
    return tuple(descendants(root, parents)) if root in parents else ()


def _member(process: ProcessSnapshot) -> TreeMember:
    threads = tuple(thread.tid for thread in process.threads)
    return TreeMember(
        identity=process.identity,
        parent=process.parent,
        group=process.group,
        session=process.session,
        name=process.name,
        executable=process.executable,
        uid=process.uid,
        threads=(process.pid, *(tid for tid in threads if tid != process.pid)),
        state=process.state,
        tty=process.tty,
        cuda=bool(process.may_be_cuda),
        switches=switches(process.pid),
        rss_anon_bytes=process.rss_anon_bytes,
        files=_files(process.pid),
    )


def switches(pid: int) -> int:
    """Context switches of all threads so far. A thread that runs has been switched to."""
    total = 0
    try:
        tasks = tasks_of(pid)
    except OSError:
        return -1
    for tid in tasks:
        try:
            status = parse_status(read_text(f"/proc/{pid}/task/{tid}/status"))
        except OSError:
            continue
        total += int(status.get("voluntary_ctxt_switches", 0)) + int(status.get("nonvoluntary_ctxt_switches", 0))
    return total


def _files(pid: int) -> Tuple[OpenRegular, ...]:
    """Each path once."""
    found: List[OpenRegular] = []
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return ()
    for number in numbers:
        link = f"/proc/{pid}/fd/{number}"
        try:
            target, info = os.readlink(link), os.stat(link)
            flags = int(parse_status(read_text(f"/proc/{pid}/fdinfo/{number}")).get("flags", "0"), 8)
        except OSError:
            continue
        if not kinds.S_ISREG(info.st_mode) or not target.startswith("/"):
            continue
        one = OpenRegular(
            path=strip_deleted(target),
            size=info.st_size,
            deleted=info.st_nlink == 0,
            writable=bool(flags & os.O_ACCMODE),
        )
        if one not in found:
            found.append(one)
    return tuple(found)
