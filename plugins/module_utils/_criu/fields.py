# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading what somebody else may have written: every type, range and size is checked, and each refusal names the field,
what it holds and what is allowed."""

from __future__ import annotations

import json
import math
import os
import stat
from typing import Any, Dict, Iterable, List, Mapping, Pattern, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

#: Digits of a number. More cost time and mean nothing.
DIGITS = 20
_SHOWN = 60


class FieldError(ValueError):
    """field: which one, like "tree[2].pid", "" for the whole. seen: what it holds. allowed: what it may hold."""

    def __init__(self, field: str, seen: str, allowed: str) -> None:
        super().__init__(f"{field + ' is ' if field else ''}{seen}; allowed: {allowed}")
        self.field = field
        self.seen = seen
        self.allowed = allowed


def read_limited(path: str, most: int) -> bytes:
    """A regular file of at most so many bytes. Raises OSError, also for a symbolic link; FieldError for a larger one,
    or what is no file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise FieldError("", "no regular file", "a file")
        data = stream.read(most + 1)
    if len(data) > most:
        raise FieldError("", f"{max(info.st_size, len(data))} bytes long", f"at most {most} bytes")
    return data


def parse(data: bytes) -> object:
    """JSON in UTF-8: no name twice, no number that is none, nothing that costs more than its size.

    Raises FieldError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FieldError("", f"not UTF-8 at byte {error.start}", "JSON in UTF-8") from None
    try:
        return json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_number, parse_int=_integer, parse_float=_float
        )
    except FieldError:
        raise
    except RecursionError:
        raise FieldError("", "nested too deep", "lists and names in a few levels") from None
    except ValueError as error:
        raise FieldError("", f"not JSON ({printable(str(error))[:_SHOWN]})", "JSON") from None


def _once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise FieldError(shown(name), "there twice", "each name once")
        found[name] = value
    return found


def _no_number(text: str) -> object:
    raise FieldError("", f"a file with {text} as a number", "finite numbers")


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise FieldError("", f"a file with a number of {len(text)} digits", f"numbers of at most {DIGITS} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text) if len(text) <= 2 * DIGITS else math.inf
    if not math.isfinite(value):
        raise FieldError("", f"a file with the number {text[:_SHOWN]}", "finite numbers")
    return value


def shown(value: object) -> str:
    """As it can stand in a message: short, and without control characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = printable(value) if isinstance(value, str) else str(value)
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return f'"{text}"' if isinstance(value, str) else text


class Fields:
    """An object with exactly these names. where: its own name, "" at the top. Every method raises FieldError."""

    def __init__(self, value: object, where: str, names: Iterable[str]) -> None:
        if not isinstance(value, dict):
            raise FieldError(where, shown(value) if where else f"a file with {shown(value)}", "an object")
        self._where = where
        known = set(names)
        for name in value:
            if name not in known:
                raise FieldError(self.name(str(shown(name)).strip('"')), "there", ", ".join(sorted(known)))
        for name in sorted(known):
            if name not in value:
                raise FieldError(self.name(name), "missing", "a value")
        self._values: Mapping[str, object] = value

    def name(self, field: str) -> str:
        return f"{self._where}.{field}" if self._where else field

    def raw(self, field: str) -> object:
        return self._values[field]

    def number(self, field: str, least: int, most: int) -> int:
        return number(self._values[field], self.name(field), least, most)

    def real(self, field: str, least: float, most: float) -> float:
        value = self._values[field]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise FieldError(self.name(field), shown(value), f"{least:g} to {most:g}")
        return float(value)

    def flag(self, field: str) -> bool:
        value = self._values[field]
        if not isinstance(value, bool):
            raise FieldError(self.name(field), shown(value), "true or false")
        return value

    def choice(self, field: str, choices: Sequence[str]) -> str:
        value = self._values[field]
        if not isinstance(value, str) or value not in choices:
            raise FieldError(self.name(field), shown(value), ", ".join(f'"{one}"' for one in choices))
        return value

    def text(self, field: str, pattern: Pattern[str], allowed: str) -> str:
        return text(self._values[field], self.name(field), pattern, allowed)

    def line(self, field: str, most: int = 256) -> str:
        """A text that can stand in any message as it is."""
        value = self._values[field]
        if not isinstance(value, str) or len(value) > most or not value.isprintable():
            raise FieldError(self.name(field), shown(value), f"at most {most} printable characters")
        return value

    def items(self, field: str, most: int) -> List[Tuple[str, object]]:
        """Each with its own name."""
        value = self._values[field]
        if not isinstance(value, list):
            raise FieldError(self.name(field), shown(value), "a list")
        if len(value) > most:
            raise FieldError(self.name(field), f"a list of {len(value)}", f"at most {most}")
        return [(f"{self.name(field)}[{index}]", one) for index, one in enumerate(value)]

    def mapping(self, field: str, most: int) -> List[Tuple[str, object]]:
        """Its names, which are not checked, and values."""
        value = self._values[field]
        if not isinstance(value, dict) or len(value) > most:
            raise FieldError(self.name(field), shown(value), f"an object of at most {most} names")
        return list(value.items())


def number(value: object, name: str, least: int, most: int) -> int:
    """Raises FieldError; true and 1.0 are no numbers here."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise FieldError(name, shown(value), f"{least} to {most}")
    return value


def text(value: object, name: str, pattern: Pattern[str], allowed: str) -> str:
    """Raises FieldError unless the whole of it matches."""
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise FieldError(name, shown(value), allowed)
    return value
