# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be wrong when CRIU refuses: why it matters, and what helps. docs/criu-errors.md is made from it.

What CRIU says of each was seen with CRIU 4.1.1 on Linux 6.18, or stands in its source: tests/system/test_criu_log.py.
"""

from __future__ import annotations

from typing import Dict, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import (
    log_kinds_both,
    log_kinds_dump,
    log_kinds_restore,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kind import BOTH, DUMP, RESTORE, Kind

__all__ = ["BOTH", "BY_ID", "DUMP", "KINDS", "RESTORE", "Kind"]

#: Those of a dump, of both, of a restore.
KINDS: Tuple[Kind, ...] = log_kinds_dump.KINDS + log_kinds_both.KINDS + log_kinds_restore.KINDS
BY_ID: Dict[str, Kind] = {kind.id: kind for kind in KINDS}
