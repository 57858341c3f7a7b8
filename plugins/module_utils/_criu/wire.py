# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CRIU's image files are made of: a magic number, then records, each a length and a protobuf message.

They may come from anywhere: nothing is read that is larger than it says or than is plausible.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import IO, Dict, Iterator, List, Tuple, Union

#: Number of a field -> its values, in order: integers, or bytes for what has a length.
Message = Dict[int, List[Union[int, bytes]]]

COMMON = 0x54564319
SERVICE = 0x55105940
MOST_FIELDS = 1 << 16


class ImageError(Exception):
    """A file of CRIU's is not what it has to be. name: of the file. problem: what is wrong with it."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


def records(directory: str, name: str, magic: int, most: int) -> Iterator[bytes]:
    """The messages of a file. magic: its kind. most: bytes of a message.

    Raises ImageError: it is missing, another kind of file, cut short, or a message is larger.
    """
    with _open(directory, name) as stream:
        _check_magic(stream, name, magic)
        while True:
            head = stream.read(4)
            if not head:
                return
            (size,) = struct.unpack("<I", head) if len(head) == 4 else (-1,)
            if size > most:
                raise ImageError(name, f"a record of {size} bytes; at most {most} are plausible")
            data = stream.read(size) if size >= 0 else b""
            if len(data) != size:
                raise ImageError(name, "it ends in the middle of a record")
            yield data


def _open(directory: str, name: str) -> IO[bytes]:
    try:
        handle = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ImageError(name, f"it can't be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ImageError(name, "it is no regular file")
    return os.fdopen(handle, "rb")


def _check_magic(stream: IO[bytes], name: str, magic: int) -> None:
    """The inventory has its own number only; the others have a common one before it."""
    found = stream.read(4)
    if found in (struct.pack("<I", COMMON), struct.pack("<I", SERVICE)):
        found = stream.read(4)
    if found != struct.pack("<I", magic):
        raise ImageError(name, f"it begins with {found.hex() or 'nothing'}, not with {struct.pack('<I', magic).hex()}")


def parse(data: bytes, name: str) -> Message:
    """A message by the numbers of its fields. Packed repeated numbers stay bytes. Raises ImageError."""
    fields: Message = {}
    at = count = 0
    while at < len(data):
        key, at = _varint(data, at, name)
        number, kind = key >> 3, key & 7
        value: Union[int, bytes]
        if kind == 0:
            value, at = _varint(data, at, name)
        elif kind == 2:
            size, at = _varint(data, at, name)
            value, at = _take(data, at, size, name)
        elif kind in (1, 5):
            raw, at = _take(data, at, 8 if kind == 1 else 4, name)
            value = int.from_bytes(raw, "little")
        else:
            raise ImageError(name, f"a field of the unknown kind {kind}")
        fields.setdefault(number, []).append(value)
        count += 1
        if number == 0 or count > MOST_FIELDS:
            raise ImageError(name, "a record with impossible fields")
    return fields


def _take(data: bytes, at: int, size: int, name: str) -> Tuple[bytes, int]:
    if size > len(data) - at:
        raise ImageError(name, "a field is longer than its record")
    return data[at : at + size], at + size


def _varint(data: bytes, at: int, name: str) -> Tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ImageError(name, "a number that does not end")


def number(message: Message, field: int, name: str, default: int = -1) -> int:
    """The last one, as protobuf has it. default: where it is missing; -1: then it is an error. Raises ImageError."""
    values = message.get(field)
    if not values:
        if default < 0:
            raise ImageError(name, f"a record lacks its field {field}")
        return default
    value = values[-1]
    if not isinstance(value, int):
        raise ImageError(name, f"field {field} is no number")
    return value


def numbers(message: Message, field: int, name: str) -> Tuple[int, ...]:
    """All of a repeated field, packed or not. Raises ImageError."""
    found: List[int] = []
    for value in message.get(field, ()):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at, name)
            found.append(one)
    return tuple(found)


def content(message: Message, field: int, name: str) -> bytes:
    """Of a string or an embedded message; b"" where it is missing. Raises ImageError."""
    values = message.get(field)
    if not values:
        return b""
    value = values[-1]
    if not isinstance(value, bytes):
        raise ImageError(name, f"field {field} is a number")
    return value
