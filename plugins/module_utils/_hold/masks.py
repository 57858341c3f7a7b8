# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signal masks of held threads: as numbers, and as the text that is journalled.

While the restore thread runs alone it would be the one to take every signal that is meant for the process: to run its
SIGCONT handler before the GPU memory is back, or to die of a SIGTERM in the middle of a copy. So it blocks them then.
"""

from __future__ import annotations

import signal
from typing import Dict, Mapping

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import natural

# The kernel drops these two from any mask.
_UNBLOCKABLE = (signal.SIGKILL, signal.SIGSTOP)
# Raised by the thread's own instructions. Blocked, they kill at once and no handler is asked.
_SYNCHRONOUS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP, signal.SIGFPE, signal.SIGSYS)
_LAST = 64


def _bits(*numbers: int) -> int:
    return sum(1 << (number - 1) for number in numbers)


_ALL = _bits(*range(1, _LAST + 1)) & ~_bits(*_UNBLOCKABLE)

# The C library's own. It unblocks the first in every thread that it creates; programs can't block the second.
_CANCEL, _SETXID = 32, 33

#: While the restore thread runs alone. No program blocks exactly these by itself (_SETXID is among them, the
#: synchronous ones are not): a thread with this mask has it from us, or from the restore thread that created it.
ALONE = _ALL & ~_bits(*_SYNCHRONOUS, _CANCEL)

#: For the moment in which a held thread takes a SIGSTOP and nothing else. One signal is left out, to be told from the
#: mask that the C library sets for moments of its own; it has a higher number than SIGSTOP, so it comes after it.
STOPPING = _ALL & ~_bits(_LAST)

# What abort() sends: it does not come to its end without it.
_OF_ITS_OWN = _bits(signal.SIGABRT)

#: What the C library sets for a moment, in a thread that creates one and in the new one; then it sets what was before.
IN_TRANSIT = _ALL

OURS = frozenset((ALONE, STOPPING))


def must_wait(number: int) -> bool:
    """A signal that the restore thread should not take while it runs alone. It can come in spite of the mask: to a
    thread that waits with another mask for the time being (ppoll, sigsuspend), or that has just ended a handler."""
    return bool(_bits(number) & ALONE & ~_OF_ITS_OWN)


def to_text(masks: Mapping[int, int]) -> str:
    """Thread id to mask, as "12=0000000000004000,13=0000000000000000"."""
    return ",".join(f"{tid}={mask:016x}" for tid, mask in sorted(masks.items()))


def from_text(text: str) -> Dict[int, int]:
    """Raises ValueError for a text that is none."""
    found = {}
    for part in text.split(","):
        tid, separator, mask = part.partition("=")
        if not part:
            continue
        number = natural(tid)
        if not separator or number is None:
            raise ValueError(f"no signal masks: {text!r}")
        found[number] = int(mask, 16)
    return found
