# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one kind of refusal of CRIU is told with."""

from __future__ import annotations

from dataclasses import dataclass

DUMP = "dump"
RESTORE = "restore"
BOTH = ""


@dataclass(frozen=True)
class Kind:
    """doing: "dump", "restore", or "" for both. says: the words of CRIU. reason, remedy: sentences without their full
    stop. option: of criu_image, with the value that overrides it; "" for none.
    """

    id: str
    doing: str
    says: str
    reason: str
    remedy: str
    option: str = ""
