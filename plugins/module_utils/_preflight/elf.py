# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file's own words about itself, without loading it: the descriptor in a plugin of CRIU, a build id. Pure.

Only what such files are: ELF, 64 bits, little endian, with section headers.
"""

from __future__ import annotations

import struct
from typing import Iterator, Optional

_MAGIC = b"\x7fELF\x02\x01"
_DYNSYM, _LOAD, _NOTE = 11, 1, 4
_GNU_BUILD_ID = 3
_DESCRIPTOR = b"CR_PLUGIN_DESC\0"
# struct cr_plugin_desc_t: name, init, exit (pointers), then two unsigned ints: version, max_hooks.
_HOOKS_AT = 28


def _value(image: bytes, at: int, form: str) -> int:
    value: int = struct.unpack_from(f"<{form}", image, at)[0]
    return value


def _table(image: bytes, start_at: int, width_at: int, count_at: int) -> Iterator[int]:
    """Where each header of a table in the file starts."""
    start, width = _value(image, start_at, "Q"), _value(image, width_at, "H")
    return (start + number * width for number in range(_value(image, count_at, "H")))


def _address(image: bytes, symbol: bytes) -> Optional[int]:
    """Of a symbol, its NUL included, in the tables for the loader."""
    sections = list(_table(image, 0x28, 0x3A, 0x3C))
    for section in sections:
        if _value(image, section + 4, "I") != _DYNSYM:
            continue
        names = _value(image, sections[_value(image, section + 40, "I")] + 24, "Q")
        start, size = _value(image, section + 24, "Q"), _value(image, section + 32, "Q")
        for entry in range(start, start + size, 24):
            name = names + _value(image, entry, "I")
            if image[name : name + len(symbol)] == symbol:
                return _value(image, entry + 8, "Q")
    return None


def _offset(image: bytes, address: int) -> Optional[int]:
    """Where in the file an address is loaded from."""
    for segment in _table(image, 0x20, 0x36, 0x38):
        offset, start, size = (_value(image, segment + at, "Q") for at in (8, 16, 32))
        if _value(image, segment, "I") == _LOAD and start <= address < start + size:
            return offset + address - start
    return None


def plugin_hooks(image: bytes) -> Optional[int]:
    """How many hooks the CRIU had that this plugin was built for; None for what is no such plugin."""
    try:
        address = _address(image, _DESCRIPTOR) if image.startswith(_MAGIC) else None
        at = None if address is None else _offset(image, address)
        return None if at is None else _value(image, at + _HOOKS_AT, "I")
    except (struct.error, IndexError, OverflowError):
        return None


def build_id(image: bytes) -> str:
    """In hexadecimal; "" for what has none, and for what is no such file. image: the file, or its beginning, where
    linkers put it."""
    try:
        if not image.startswith(_MAGIC):
            return ""
        for segment in _table(image, 0x20, 0x36, 0x38):
            if _value(image, segment, "I") == _NOTE:
                start, size = _value(image, segment + 8, "Q"), _value(image, segment + 32, "Q")
                found = _note(image, start, min(start + size, len(image)))
                if found:
                    return found
    except (struct.error, IndexError, OverflowError):
        pass
    return ""


def _note(image: bytes, at: int, end: int) -> str:
    while at + 12 <= end:
        name, size, kind = (_value(image, at + offset, "I") for offset in (0, 4, 8))
        content = at + 12 + (name + 3) // 4 * 4
        if kind == _GNU_BUILD_ID and image[at + 12 : at + 16] == b"GNU\0" and content + size <= len(image):
            return image[content : content + size].hex()
        at = content + (size + 3) // 4 * 4
    return ""
