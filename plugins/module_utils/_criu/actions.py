# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What processes do on SIGTRAP, as an image has it: the handler that was there only while CRIU was (`traps`) is
replaced by what the process itself has.

The new numbers take as many bytes as the old ones, which protobuf allows: nothing moves in the file.
"""

from __future__ import annotations

import os
import struct
from typing import Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import traps
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import write_file
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.saved import Saved
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.wire import ImageError


def put_right(directory: str, saved: Sequence[Saved]) -> None:
    """Every handler of `traps` in an image of these processes. Raises ImageError, OSError."""
    left = {one.identity.pid: one for one in saved if one.action}
    for name in sorted(os.listdir(directory)) if left else ():
        if not (name.startswith("core-") and name.endswith(".img")):
            continue
        with open(os.path.join(directory, name), "rb") as stream:
            data = was = stream.read()
        for pid in list(left):
            ours = _entry(traps.ours(pid), traps.ours(pid))
            if data.count(ours) == 1:
                data = data.replace(ours, _entry(left.pop(pid).action, traps.ours(pid)))
        if data != was:
            write_file(directory, name, data)
    if left:
        raise ImageError("core-*.img", f"what PID {min(left)} does on SIGTRAP is not where it was expected")


def _entry(action: bytes, like: bytes) -> bytes:
    """A sa_entry of CRIU's; each number as long as the one in `like`."""
    numbers, lengths = (struct.unpack(traps.ACTION, one) for one in (action, like))
    found = b""
    for field, (number, length) in enumerate(zip(numbers, lengths), 1):
        found += bytes([field << 3]) + _varint(number, len(_varint(length, 0)))
    return found


def _varint(number: int, size: int) -> bytes:
    """size: how many bytes it has at least. Raises ImageError: it has more."""
    found = bytearray()
    while number or not found or len(found) < size:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    if size and len(found) > size:
        raise ImageError("core-*.img", "a sigaction of SIGTRAP that has no room there")
    found[-1] &= 0x7F
    return bytes(found)
