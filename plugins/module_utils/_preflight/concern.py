# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A finding with the capabilities that it speaks against, and what a detector over the host is. Pure."""

from __future__ import annotations

from typing import ClassVar, FrozenSet, List, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import HostFacts
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

SUSPEND = "suspend"
DUMP = "dump"
MIGRATE = "migrate"
#: In the order in which each needs what the one before it needs.
CAPABILITIES: Tuple[str, ...] = (SUSPEND, DUMP, MIGRATE)
EVERYTHING: FrozenSet[str] = frozenset(CAPABILITIES)
IMAGES: FrozenSet[str] = frozenset((DUMP, MIGRATE))

DOCS = "https://github.com/gpufleet/checkpoint/blob/main/docs/preflight.md"


@dataclass(frozen=True)
class Concern:
    finding: Finding
    capabilities: FrozenSet[str]


class HostHazard:
    """One thing that a host can lack. capabilities: those that suffer."""

    id: ClassVar[str]
    capabilities: ClassVar[FrozenSet[str]]
    severity: ClassVar[str] = BLOCKING
    option: ClassVar[str] = ""

    def detect(self, facts: HostFacts) -> List[Concern]:
        """Empty: not seen, and everything that would show it was seen."""
        raise NotImplementedError

    def concern(
        self,
        subject: str,
        evidence: str,
        reason: str,
        remedy: str,
        severity: str = "",
        capabilities: FrozenSet[str] = frozenset(),
    ) -> Concern:
        """severity, capabilities: the class's own where not given."""
        finding = Finding(
            id=self.id,
            severity=severity or self.severity,
            subject=subject,
            evidence=evidence,
            reason=reason,
            remedy=remedy,
            option=self.option,
            reference=f"{DOCS}#{self.id}",
            pid=None,
        )
        return Concern(finding, capabilities or self.capabilities)
