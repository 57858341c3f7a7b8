# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What speaks against an action, in words for the operator."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Dict, List, Optional, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

BLOCKING = "blocking"
WARNING = "warning"
DOCS = "https://github.com/gpufleet/checkpoint/blob/main/docs/hazards.md"


@dataclass(frozen=True)
class Finding:
    """The texts are sentences without their full stop, but for `subject`.

    id: of the hazard. severity: "blocking" or "warning". subject: what it is about. evidence: what was seen.
    reason: why it matters. remedy: what helps. option: the name for `allow:`, "" where nothing overrides it.
    reference: where to read on. pid: of the process it is about; None where it is about several, or the host.
    """

    id: str
    severity: str
    subject: str
    evidence: str
    reason: str
    remedy: str
    option: str
    reference: str
    pid: Optional[int]

    def message(self) -> str:
        """One text: what was seen, why it matters, what helps, what overrides it."""
        parts = [f"{self.subject}: {self.evidence}", self.reason, self.remedy]
        if self.option and self.severity == BLOCKING:
            parts.append(f"Override: allow: [{self.option}]")
        return " ".join(_sentence(part) for part in parts if part)

    def as_dict(self) -> Dict[str, Any]:
        return asdict(self)

    def allowed(self) -> "Finding":
        """The same, as something that the operator knows and accepts."""
        return replace(self, severity=WARNING)


def warning_lines(findings: Sequence[Finding]) -> List[str]:
    """For the operator's screen: each kind of warning once, with what it was seen on first and how often again."""
    kinds: Dict[str, List[Finding]] = {}
    for finding in findings:
        if finding.severity == WARNING:
            kinds.setdefault(finding.id, []).append(finding)
    return [
        f"{identifier}: {found[0].message()}"
        + (f" The same of {len(found) - 1} more: see findings." * (len(found) > 1))
        for identifier, found in kinds.items()
    ]


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "?", "!")) else text + "."


def reference(identifier: str) -> str:
    """The place in the documentation of a hazard."""
    return f"{DOCS}#{identifier}"
