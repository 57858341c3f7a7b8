# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The line with a bar, if the package rich is there."""

from __future__ import annotations

import sys
from typing import List, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._progress.course import Course
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record

try:
    from rich.console import Console
    from rich.text import Text

    AVAILABLE = True
except ImportError:
    AVAILABLE = False

_WIDTH = 20
_FULL, _HALF, _EMPTY = "\u2588", "\u2593", "\u2591"


def show(course: Course, text: str, no_color: bool = False) -> None:
    """On standard error. What is in the text stays as it is: names of hosts may look like markup."""
    console = Console(file=sys.stderr, no_color=no_color or None, highlight=False, markup=False, emoji=False)
    line = Text()
    for part, style in parts(course):
        line.append(part, style)
    line.append(" ")
    line.append(text, "bold red" if course.counts().get(record.FAILED) else "")
    console.print(line, soft_wrap=True)


def parts(course: Course) -> List[Tuple[str, str]]:
    """Of the bar: hosts that are finished, that are under way, that failed, and the others."""
    counts = course.counts()
    total = sum(counts.values())
    if not total:
        return []
    done = counts.get(record.FINISHED, 0)
    bad = counts.get(record.FAILED, 0) + counts.get(record.UNDONE, 0)
    rest = counts.get(record.UNTOUCHED, 0)
    ends = [round(_WIDTH * sum(found) / total) for found in ((done,), (done, bad), (total - rest,), (total,))]
    widths = [end - start for start, end in zip((0, *ends), ends)]
    styles = ((_FULL, "green"), (_FULL, "red"), (_HALF, "yellow"), (_EMPTY, "dim"))
    return [(one * width, style) for (one, style), width in zip(styles, widths) if width > 0]
