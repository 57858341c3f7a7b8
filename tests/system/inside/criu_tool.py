# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in a test host, with the collection on its path: one step with CRIU, and what is there afterwards, as JSON.

usage: python3 criu_tool.py dump|restore|fit, options as JSON on standard input
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import images, options, proof, tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fit import fit, read_target
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest, Member
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id, read_host


def must_read(pid: int) -> Tree:
    tree = read_tree(pid)
    assert tree is not None, f"PID {pid} is gone"
    return tree


def shown(pid: int) -> list[dict[str, Any]]:
    tree = read_tree(pid)
    members = () if tree is None else tree.members
    return [
        {
            "pid": one.pid,
            "parent": one.parent,
            "group": one.group,
            "session": one.session,
            "state": one.state,
            "threads": len(one.threads),
        }
        for one in members
    ]


def stop(tree: Tree) -> None:
    for member in tree.members:
        os.kill(member.pid, signal.SIGSTOP)
    end = time.monotonic() + 20
    while not all(one.is_stopped for one in must_read(tree.root.pid).members):
        assert time.monotonic() < end
        time.sleep(0.01)


def dump(pid: int, directory: str, leave: str = "stopped", allow: tuple[str, ...] = (), **given: Any) -> dict[str, Any]:
    """The tree is stopped first, as a suspend would leave it."""
    os.makedirs(directory, 0o700, exist_ok=True)
    stop(must_read(pid))
    tree = must_read(pid)
    chosen = options.choose(options.parse(given), tree, frozenset(allow))
    argv = tool.dump_argv(tool.find(), pid, directory, chosen, leave)
    done = tool.run(argv, os.path.join(directory, tool.DUMP_LOG))
    if not images.is_complete(directory, "dump", done.log):
        return {"rc": done.rc, "log": done.log, "complete": False, "after": shown(pid)}
    return {
        "rc": done.rc,
        "complete": True,
        "arguments": chosen.arguments,
        "reasons": chosen.reasons,
        "problems": proof.prove(tree, images.read_pstree(directory), images.page_bytes(directory), {}),
        "files": {one.path: one.size for one in images.regular_files(directory)},
        "modes": sorted({oct(os.stat(os.path.join(directory, name)).st_mode) for name in os.listdir(directory)}),
        "pages": images.page_bytes(directory)[pid],
        "after": shown(pid),
    }


def restore(
    pid: int,
    directory: str,
    arguments: tuple[str, ...],
    seconds: float = 0,
    without: tuple[str, ...] = (),
    **given: Any,
) -> dict[str, Any]:
    before = set(os.listdir(directory))
    seen: list[int] = []

    def note(criu: int) -> str:
        seen.append(criu)
        return "noted"

    chosen = options.again(arguments, options.CriuOptions())
    log = os.path.join(directory, "restore.log")
    argv = [word for word in tool.restore_argv(tool.find(), directory, chosen, log) if word not in without]
    done = tool.run(argv, log, seconds, note)
    time.sleep(0.3)
    return {
        "rc": done.rc,
        "note": done.note,
        "criu": seen[0],
        "complete": images.is_complete(directory, "restore", done.log),
        "new": sorted(set(os.listdir(directory)) - before),
        "log": "" if done.rc == 0 else done.log,
        "after": shown(pid),
    }


def fits(pid: int, directory: str, tree: list[dict[str, Any]], arguments: tuple[str, ...]) -> list[dict[str, Any]]:
    """tree: of a live one, as `shown` gave it."""
    host = read_host()
    threads = {one.pid: one.threads for one in images.read_pstree(directory)}
    manifest = Manifest(
        lineage="test",
        created=0.0,
        hostname="h1",
        kernel=host.kernel,
        boot_id=read_boot_id(),
        machine=host.machine,
        driver="",
        gpus=(),
        criu="4.1.1",
        options=tuple(arguments),
        root=pid,
        tree=tuple(
            Member(
                pid=one["pid"],
                parent=one["parent"],
                group=one["group"],
                session=one["session"],
                start_ticks=0,
                name="",
                executable="",
                uid=0,
                threads=threads[one["pid"]],
                cuda=False,
                device_bytes={},
                state_before="",
                stopped_before=False,
            )
            for one in tree
        ),
        host_bytes=1 << 20,
        files=images.regular_files(directory),
        chunks=(),
        snapshot=False,
        compressed="",
        run_id="test",
        name="test",
    )
    return [one.as_dict() for one in fit(manifest, read_target(manifest, (), tool.find(), directory))]


if __name__ == "__main__":
    steps: dict[str, Any] = {"dump": dump, "restore": restore, "fit": fits}
    print(json.dumps(steps[sys.argv[1]](**json.load(sys.stdin))))
