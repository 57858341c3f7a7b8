# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is left of a dump that was broken off: an image that can be finished, or CRIU's code in the processes."""

from __future__ import annotations

import os
from typing import List, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import images, lifeline, store, tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import PARTIAL
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.read_tree import read_tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import read_log
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.saved import Saved, load
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import ImageRow
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity


def finish(path: str) -> bool:
    """An image whose tree CRIU has ended, and whose worker died before it was sealed. Raises CriuError, OSError."""
    return store.finish(
        path, lambda partial: images.is_complete(partial, "dump", read_log(os.path.join(partial, tool.DUMP_LOG)))
    )


def take_out(journal: Journal, row: ImageRow) -> Tuple[Tuple[Saved, ...], Tuple[str, ...], Tuple[str, ...]]:
    """Those in which it had left something; words about those that could not be put back, and about those that were
    left alone. Raises JournalError.

    What each was like lies in the partial image, and so in the store. Whoever can write there must not choose what root
    writes into which process, so only those are written to that this host knows to be of that dump.
    """
    known = {row.root, *row.stopped}
    tree = read_tree(row.root.pid)
    if tree is not None and tree.root.identity == row.root:
        known.update(member.identity for member in tree.members)
    saved = load(row.path + PARTIAL)
    ours = [one for one in saved if one.identity in known or _is_of_run(journal, one.identity, row.run_id)]
    hurt, problems = lifeline.put_back_all(ours)
    return hurt, problems, _foreign([one.identity.pid for one in saved if one not in ours], row)


def _is_of_run(journal: Journal, identity: Identity, run_id: str) -> bool:
    """One that was suspended for the dump, and whose root has ended."""
    operation = journal.latest(identity)
    return operation is not None and operation.run_id == run_id


def _foreign(pids: List[int], row: ImageRow) -> Tuple[str, ...]:
    if not pids:
        return ()
    who = ", ".join(f"PID {pid}" for pid in pids)
    return (f"{row.path}{PARTIAL} tells of {who}, which this host does not know to be of that dump: left alone",)
