# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Suspend, resume, ask and adopt, with real processes."""

from __future__ import annotations

import pytest

from tests.unit.plugins.hold.helpers import Target, held, resume, suspend


@pytest.mark.parametrize("threads", [0, 1, 60])
def test_suspended_is_parked_and_comes_back(threads: int) -> None:
    with Target(threads) as target:
        for _round in range(3):
            held(lambda: suspend(target))
            target.assert_parked()
            held(lambda: resume(target))
            target.assert_runs()
