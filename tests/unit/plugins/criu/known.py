# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded image, and the tree that it was made of."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree, TreeMember
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

RECORDED = Path(__file__).parent / "recordings" / "tree"
BOOT = "5f6b8a1e-9c1d-4a83-8f8f-0f5e4dd3a1c2"


def unpack(directory: Path) -> str:
    """A copy of the recorded image, with files of memory that are as long as they were."""
    shutil.copytree(RECORDED, directory)
    for line in (directory / "pages.txt").read_text().splitlines():
        name, size = line.split()
        with open(directory / name, "wb") as stream:
            os.truncate(stream.fileno(), int(size))
    (directory / "pages.txt").unlink()
    return str(directory)


def member(pid: int, parent: int, name: str, **fields: Any) -> TreeMember:
    one = TreeMember(
        identity=Identity(pid, 1000 + pid, BOOT),
        parent=parent,
        group=223,
        session=223,
        name=name,
        executable=f"/usr/bin/{name}",
        uid=0,
        threads=(pid,),
        state="T",
        tty=0,
        cuda=False,
        switches=1,
        rss_anon_bytes=100 << 10,
    )
    return replace(one, **fields)


def tree(*others: TreeMember, root: TreeMember | None = None) -> Tree:
    """As it was seen when it was dumped; its zombie is left out. Others take the place of members with their PID."""
    members = {
        223: root or member(223, 1, "sh"),
        225: member(225, 223, "victim", threads=(225, 228, 229)),
        226: member(226, 223, "sleep"),
    }
    members.update({one.pid: one for one in others})
    return Tree(tuple(members.values()), 0.0)
