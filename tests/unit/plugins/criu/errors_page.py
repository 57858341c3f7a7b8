# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/criu-errors.md, made from log_kinds.py.

python -m tests.unit.plugins.criu.errors_page      writes the page anew
"""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kinds import (
    BOTH,
    DUMP,
    KINDS,
    RESTORE,
    Kind,
)
from tests.unit.plugins.criu.said import NOT_HERE

PAGE = Path(__file__).resolve().parents[4] / "docs/criu-errors.md"
HEAD = "| kind | CRIU says | what it means | what to do | option |\n|---|---|---|---|---|\n"


def row(kind: Kind) -> str:
    source = "" if kind.id not in NOT_HERE or kind.id in ("unknown", "no_log") else " (not seen)"
    plain = not kind.says[0].isupper() and kind.says.startswith(("nothing", "anything"))
    says = kind.says if plain else "; ".join(f"`{word}`" for word in kind.says.split("; "))
    option = f"`{kind.option}`" if kind.option else ""
    cells = (f'<a id="{kind.id}"></a>`{kind.id}`', says + source, f"{kind.reason}.", f"{kind.remedy}.", option)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells).rstrip() + " |\n"


def inserted(page: str) -> str:
    """The page with its tables as they are to be. Raises ValueError where it has no place for one."""
    for name, doing in (("dump", DUMP), ("restore", RESTORE), ("both", BOTH)):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        if begin not in page or end not in page:
            raise ValueError(f"{PAGE.name} has no {begin.strip()}")
        before, rest = page.split(begin, 1)
        table = HEAD + "".join(row(kind) for kind in KINDS if kind.doing == doing)
        page = before + begin + table + end + rest.split(end, 1)[1]
    return page


if __name__ == "__main__":
    PAGE.write_text(inserted(PAGE.read_text()))
