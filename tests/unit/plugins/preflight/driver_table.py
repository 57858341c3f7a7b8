# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of driver versions in docs/preflight.md, made of the one in the code.

`PYTHONPATH=.:build/tree build/venv/bin/python -m tests.unit.plugins.preflight.driver_table` writes it into the page.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import drivers

PAGE = Path(__file__).resolve().parents[4] / "docs" / "preflight.md"
BEGIN = "<!-- driver table: begin -->\n"
END = "<!-- driver table: end -->\n"


def table() -> str:
    lines = ["| from | brings | without it | known |", "|---|---|---|---|"]
    for since, group in groupby(drivers.FEATURES, key=lambda one: one.since):
        for number, one in enumerate(group):
            version = f"**{drivers.show(since)}**" if number == 0 else ""
            lines.append(f"| {version} | {one.brings} (`{one.name}`) | {one.without} | {one.source} |")
    lines += ["", "Not to be used (`driver_denied`):", "", "| version | why | known |", "|---|---|---|"]
    lines += [f"| **{drivers.show(one.version)}**, every build | {one.why} | {one.source} |" for one in drivers.DENIED]
    return "\n".join(lines) + "\n"


def inserted(page: str) -> str:
    """The page with the table of the code. Raises ValueError where it has no place for it."""
    head, begin, rest = page.partition(BEGIN)
    _old, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{head}{begin}\n{table()}\n{end}{tail}"


if __name__ == "__main__":
    PAGE.write_text(inserted(PAGE.read_text()))
    sys.exit(0)
