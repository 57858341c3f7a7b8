# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a journal that can't be used says."""

from __future__ import annotations

import sys


class JournalError(Exception):
    """The journal can't be read or written. str() is the whole message."""

    def __init__(self, subject: str, evidence: str, reason: str, remedy: str) -> None:
        super().__init__(f"{subject}: {evidence}. {reason} {remedy}")
        self.subject = subject
        self.evidence = evidence
        self.reason = reason
        self.remedy = remedy


class SqliteMissing(JournalError):
    """This Python has no sqlite3. `library`: its name for missing_required_lib(); `trace`: of the import."""

    library = "sqlite3"

    def __init__(self, trace: str) -> None:
        super().__init__(
            f"Python {sys.executable}",
            "its module sqlite3 can't be imported",
            "The journal is an SQLite database.",
            "Install the package that has it, or name another Python in ansible_python_interpreter.",
        )
        self.trace = trace


class TakenOverError(JournalError):
    """Another run has begun to drive the process since it was looked at."""
