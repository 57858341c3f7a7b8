# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd services of a tree: held before the first member is stopped, let go when the tree is back."""

from __future__ import annotations

from typing import List, Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold import UnitHoldError, UnitHolds
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import IMAGE, Look
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_rows import image_owner


def look(journal: Journal, tree: Tree) -> Look:
    """What would have to be held, and what of it can't be."""
    return UnitHolds(journal).look(IMAGE, [member.identity for member in tree.members])


def hold(journal: Journal, tree: Tree, lineage: str, notes: List[str]) -> None:
    """Raises CriuError: nothing is held then."""
    try:
        done = UnitHolds(journal).hold(look(journal, tree), image_owner(lineage))
    except UnitHoldError as error:
        found = error.finding
        raise CriuError(found.subject, found.evidence, found.reason, found.remedy) from None
    notes.extend(f"{one.unit} is held: no watchdog, no second copy" for one in done if one.held)


def let_go(journal: Journal, lineage: str, notes: List[str], lives: Optional[Identity] = None) -> None:
    """What is held for this image; also where nothing is. lives: the root, where it goes on."""
    try:
        done, warnings = UnitHolds(journal).release([image_owner(lineage)], lives)
    except JournalError as error:
        done, warnings = [], [f"units stay held: {error}"]
    notes.extend(f"{one.unit} is no longer held" for one in done if not one.held)
    notes.extend(warnings)
