# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a dump that died half way has left of a tree that lives: taken out of it before its processes are brought back,
and let go on after that.

The tree goes on as itself, so what there is of an image of it goes: it would be a second life.
"""

from __future__ import annotations

from typing import List, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_units as units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import PARTIAL
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.stillness import go_on
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import Drain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_evidence import image_rows
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_left import take_out
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_images import ImageRow
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive


def broken_off(journal: Journal, drain: Drain) -> Tuple[ImageRow, ...]:
    """Dumps whose worker is dead, while the root of their tree lives as it was."""
    newest = {row.path: row for row in image_rows(journal, drain)}
    return tuple(
        row
        for row in newest.values()
        if not row.finished
        and row.status in ("active", "dumped", "sealed")
        and (row.worker is None or not is_alive(row.worker))
        and is_alive(row.root)
    )


def prepare(journal: Journal, drain: Drain) -> Tuple[str, ...]:
    """Before anything of it is brought back: CRIU's code out of the processes, and the image away. Returns what was
    done, in words. Raises CriuError, OSError, JournalError."""
    notes: List[str] = []
    for row in broken_off(journal, drain):
        hurt, problems, foreign = take_out(journal, row)
        notes.extend(foreign)
        if hurt:
            notes.append(f"criu was killed at work in the tree of PID {row.root.pid}; what it had left was taken out")
        if problems:
            # What it was like is in the partial image, which has to stay then.
            raise CriuError(
                f"PID {row.root.pid}",
                "; ".join(problems),
                "Continued like that, it would die",
                "Detach what traces it (a debugger, strace), and run the same command again",
            )
        if store.find_image(row.path) is not None:
            store.remove(row.path)
            notes.append(f"{row.path} was removed: the process of that image lives")
        if store.remove_partial_of(row.path):
            notes.append(f"{row.path}{PARTIAL} was removed: its dump was broken off")
    return tuple(notes)


def let_go(journal: Journal, drain: Drain) -> Tuple[str, ...]:
    """After its CUDA processes run: the rest of each tree. Returns what was done. Raises CriuError, JournalError."""
    notes: List[str] = []
    for row in broken_off(journal, drain):
        if store.has_partial(row.path) or store.find_image(row.path) is not None:
            raise CriuError(
                row.path,
                "its dump was broken off, and it is there still",
                "Its tree lives, and would live twice",
                "Run the same command again",
            )
        notes.extend(go_on(list(row.stopped)))
        units.let_go(journal, row.lineage, notes, row.root)
        journal.finish_image(row.id, "undone", f"its worker had died at step {row.step}")
    return tuple(notes)
