# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No way to the driver."""

from __future__ import annotations


class BackendError(Exception):
    """The wanted backend can't be used. str() is the whole message: subject, what was looked for and found, remedy."""

    def __init__(self, subject: str, evidence: str, remedy: str) -> None:
        super().__init__(f"{subject}: {evidence}. {remedy}.")
        self.subject = subject
        self.evidence = evidence
        self.remedy = remedy
