# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong with an image."""

from __future__ import annotations


class CriuError(Exception):
    """subject: whom it is about. evidence: what was seen. reason: why it matters. remedy: what helps. option: what
    overrides it, "" for nothing. As a string: all of it, for the operator.
    """

    def __init__(self, subject: str, evidence: str, reason: str, remedy: str, option: str = "") -> None:
        words = [_sentence(f"{subject}: {evidence}" if subject else evidence), _sentence(reason), _sentence(remedy)]
        if option:
            words.append(f"Override: {option}.")
        super().__init__(" ".join(word for word in words if word))
        self.subject = subject
        self.evidence = evidence
        self.reason = reason
        self.remedy = remedy
        self.option = option


def _sentence(text: str) -> str:
    return text if not text or text[-1] in ".!?" else f"{text}."
