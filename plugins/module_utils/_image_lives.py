# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has come out of an image, and whether CRIU is still at it: also after everybody who knew has died."""

from __future__ import annotations

import os
from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import RESTORING
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.namespace import inside
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import PARTIAL
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Image
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_bytes


def half_restored(image: Image) -> Optional[Tree]:
    """The tree of a restore that was broken off after CRIU had made it; None: there is none.

    Where it was broken off before its members were written down, the tree is known by its PIDs, all of them, and the
    program of its root, in the same boot: nobody else can have them all by chance.
    """
    life, manifest = image.life, image.manifest
    if life.state != RESTORING or life.boot_id != read_boot_id():
        return None
    here = inside(life.init.pid) if life.init is not None and is_alive(life.init) else {}
    if life.init is not None and manifest.root not in here:
        return None
    tree = read_tree(here.get(manifest.root, manifest.root))
    root = manifest.member(manifest.root)
    if tree is None or root is None:
        return None
    if life.members:
        return tree if tree.root.identity in life.members else None
    expected = {here.get(pid, pid) for pid in manifest.pids}
    return tree if set(tree.pids) == expected and tree.root.executable == root.executable else None


def is_any_left(image: Image) -> bool:
    """Is there a process with the PID and the program of one of its members? A restore that was broken off may have
    left some of them."""
    for member in image.manifest.tree:
        try:
            program = os.readlink(f"/proc/{member.pid}/exe")
        except OSError:
            continue
        if program == member.executable:
            return True
    return False


def criu_at(path: str) -> int:
    """PID of a criu that works on the image at this path, or on the one that is to be there; 0 for none. It goes on
    when whoever started it is killed."""
    directory, image = os.path.split(path)
    ours = (path.encode(), (path + PARTIAL).encode())
    unpacked = os.path.join(directory, f".{image}.").encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = read_bytes(f"/proc/{name}/cmdline").split(b"\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == b"criu" and any(
            word in ours or word.startswith(unpacked) for word in words[1:]
        ):
            return int(name)
    return 0
