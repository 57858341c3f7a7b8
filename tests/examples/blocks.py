# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every example on the pages that an operator reads: README.md, docs/ and the READMEs of the roles."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/*.md", "roles/*/README.md", "docs/docsite/rst/*.rst")
_MARKDOWN = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
_RST = re.compile(r"^\.\. code-block:: (?P<language>\w+)\n\n(?P<text>(?:(?: {3}.*)?\n)+)", re.M)
# "# name.yml" alone in the first line, or with more words behind it: the file that the block is.
_TITLE = re.compile(r"# (?P<file>[\w/.-]+\.yml)\b")
_PROMPT = re.compile(r"^(?P<prompt>[$#]) (?P<command>.+)$", re.M)


@dataclass(frozen=True)
class Block:
    """A code block. line: of the page, where its text begins."""

    page: str
    line: int
    language: str
    text: str

    @property
    def file(self) -> str:
        """Under which name the page uses it; empty if it has none."""
        named = _TITLE.match(self.text)
        return named["file"] if named and self.language == "yaml" else ""

    @property
    def content(self) -> Any:
        return yaml.safe_load(self.text)

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Prompt and command of each line with a prompt; the other lines are what is seen."""
        return [(found["prompt"], found["command"]) for found in _PROMPT.finditer(self.text)]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    return [str(path.relative_to(ROOT)) for pattern in PAGES for path in sorted(ROOT.glob(pattern))]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return list(_blocks(page, text))


def _blocks(page: str, text: str) -> Iterator[Block]:
    for found in (_RST if page.endswith(".rst") else _MARKDOWN).finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(page, line, found["language"], textwrap.dedent(found["text"]).strip("\n") + "\n")
