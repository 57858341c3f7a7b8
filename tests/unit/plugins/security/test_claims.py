# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/security.md: each claim names a test, and each test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`", PAGE)
    assert len(named) > 60
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or f"\ndef {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert not missing
    files = re.findall(r"`((?:tests|extensions)/[\w/.]+)`", PAGE)
    assert not [file for file in files if not (ROOT / file).is_file()]


def test_every_claim_names_a_test() -> None:
    """Of tables whose last column is called so."""
    without, inside, claims = [], False, 0
    for line in PAGE.split("\n"):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[-1] == "test":
            inside = True
        elif inside and not set(line) <= set("|- "):
            claims += 1
            if not re.search(r"`(tests|extensions)/", cells[-1]) and cells[-1] != "the same":
                without.append(line)
    assert claims > 40 and not without
