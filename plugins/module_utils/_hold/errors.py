# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that can't be held, or that ended meanwhile."""

from __future__ import annotations

import os
from typing import Optional


class HoldError(Exception):
    """str() is the whole message: subject, what was seen, why it matters, what helps."""

    def __init__(self, subject: str, evidence: str, reason: str, remedy: str) -> None:
        words = [f"{subject}: {evidence}", reason, remedy]
        super().__init__(" ".join(word.rstrip(".") + "." for word in words if word))
        self.subject = subject
        self.evidence = evidence
        self.reason = reason
        self.remedy = remedy


class NotAtRestError(HoldError):
    """A thread that was let run does not stop again. Everything is still held: try `settle` again, or end."""


class ProcessEndedError(HoldError):
    """The process ended while it was held; its threads have been reaped.

    status: as from wait(2), None where its own parent got it first.
    """

    def __init__(self, subject: str, status: Optional[int], during: str) -> None:
        super().__init__(
            subject,
            f"it ended while it was held ({during}): {describe_end(status)}",
            "There is nothing left to suspend or resume",
            "Look into its own log, and for the kernel's OOM killer in the kernel log",
        )
        self.status = status


def describe_end(status: Optional[int]) -> str:
    """ "killed by signal 9", "exit status 1"."""
    if status is None:
        return "how is not known"
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return f"exit status {os.WEXITSTATUS(status)}"
