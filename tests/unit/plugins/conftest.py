# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of the collection's code share."""

from collections.abc import Callable

import psutil
import pytest


@pytest.fixture
def new_children() -> Callable[[], list[psutil.Process]]:
    """The children of this process that were not there when the test began; zombies count."""
    before = set(psutil.Process().children())
    return lambda: [child for child in psutil.Process().children() if child not in before]
