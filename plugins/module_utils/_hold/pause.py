# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for the kernel, which tells nobody when a thread of /proc changes its state."""

from __future__ import annotations

import time

#: Seconds between two looks: short while something moves, long while the driver copies.
SHORT, LONG = 0.0002, 0.01
#: Seconds that anything inside the kernel takes at most, if it is not stuck.
MOMENT = 1.0


class Pause:
    """Sleeps a little, and longer each time. deadline: a value of time.monotonic()."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._seconds = SHORT

    def over(self) -> bool:
        """True past the deadline, else after a moment's sleep."""
        if time.monotonic() >= self._deadline:
            return True
        time.sleep(self._seconds)
        self._seconds = min(self._seconds * 2, LONG / 2)
        return False
