# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Without root, the tests need a kernel that lets a process be traced by another one of the same user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


@pytest.fixture(autouse=True)
def may_trace() -> None:
    if os.geteuid() != 0 and SCOPE.exists() and SCOPE.read_text().strip() != "0":
        pytest.skip("needs root, or kernel.yama.ptrace_scope = 0")
