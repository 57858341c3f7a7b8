# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Room on the journal's disk for the way back, which has to be journalled: a dump may have filled it by then."""

from __future__ import annotations

import os
from typing import Optional

BYTES = 8 << 20


class Reserve:
    """A file without a name in that directory: it goes with the last process that has it open. Where the file system
    does not know such files, or is full already, there is none."""

    def __init__(self, directory: str) -> None:
        self._handle: Optional[int] = None
        try:
            self._handle = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.posix_fallocate(self._handle, 0, BYTES)
        except OSError:
            self.release()

    def release(self) -> None:
        if self._handle is None:
            return
        try:
            # Workers that were forked since have it open as well.
            os.ftruncate(self._handle, 0)
        finally:
            os.close(self._handle)
            self._handle = None
