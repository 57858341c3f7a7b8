# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Yes and no that are handed over as texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.plugins.security.test_hostile_node import ANSIBLES, Node, row


@pytest.mark.parametrize("ansible", sorted(ANSIBLES))
@pytest.mark.parametrize(("told", "done"), [("false", False), ("true", True)])
def test_a_text_is_no_yes(told: str, done: bool, ansible: str, tmp_path: Path) -> None:
    """A survey, and -e NAME=false, hand over a text."""
    node = Node(tmp_path, ANSIBLES[ansible])
    answer = row("suspended", todo=["restore"])
    output = node.play("recover", {"drain": answer, "cuda": [], **answer}, gpu_drain_maintenance_done=told)
    assert ("its processes are brought back now" in " ".join(output.split())) is not done
