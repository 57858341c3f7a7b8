# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard acts when whoever started it has died, and only then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.control import guard


@pytest.mark.parametrize(("said", "acts"), [(b"", True), (b".", False)])
def test_the_guard(tmp_path: Path, said: bytes, acts: bool) -> None:
    mark = tmp_path / "acted"
    program = [sys.executable, "-c", f"open({str(mark)!r}, 'w')"]
    done = subprocess.run([sys.executable, guard.__file__, *program], input=said, timeout=30, check=False)
    assert done.returncode == 0
    assert mark.exists() == acts
