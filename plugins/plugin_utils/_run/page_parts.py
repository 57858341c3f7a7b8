# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the parts of a report's page have in common. Pure."""

from __future__ import annotations

from html import escape
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import page_timeline, record, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Host, Run

OUTCOMES = {
    record.UNTOUCHED: "untouched",
    record.IN_PROGRESS: "in progress",
    record.FINISHED: "finished",
    record.FAILED: "failed",
    record.UNDONE: "put back",
    record.LOST: "lost",
}


def shown(text: str) -> str:
    """For an element or an attribute. Line ends stay."""
    return "\n".join(escape(printable(line), quote=True) for line in text.split("\n"))


def sentence(text: str) -> str:
    """With a full stop. A capital would be no good for one that begins with a command."""
    text = text.strip()
    return text if text.endswith((".", "?", "!")) else text + "."


def moment(at: float) -> str:
    text = words.clock(at)
    return f'<time datetime="{text.replace(" ", "T")}">{text}</time>'


def of_outcome(outcome: str) -> str:
    """The sign of an outcome; the word for it stands beside it."""
    sign = page_timeline.SIGNS.get(outcome, ("", ""))[0]
    return f'<span aria-hidden="true">{sign}</span> ' if sign else ""


def badge(host: Host) -> str:
    return f'<span class="badge {host.outcome}">{of_outcome(host.outcome)}{shown(OUTCOMES[host.outcome])}</span>'


def later_attempts(run: Run) -> List[float]:
    """When each attempt but the first began."""
    first: Dict[int, float] = {}
    for one in run.attempts:
        first[one.attempt] = min(first.get(one.attempt, one.began), one.began)
    return [at for _number, at in sorted(first.items())[1:]]


def of_lost(one: Mapping[str, Any]) -> str:
    return sentence(f"{one.get('what', '')}: {one.get('why', '')}")


def table(title: str, head: Sequence[Tuple[str, str]], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """head: of each column its name and the class of its cells. rows: cells as HTML."""
    yield f"<h4>{shown(title)}</h4><table><thead><tr>"
    yield "".join(f'<th scope="col" class="{kind}">{shown(name)}</th>' for name, kind in head)
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = (f'<td class="{head[index][1]}">{cell}</td>' for index, cell in enumerate(row))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"
