# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes out of a recording what tells about the machine and the people it was made on. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Dict, Mapping

BOOT_ID = "00000000-0000-4000-8000-000000000000"

_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX = re.compile(r"(?<![0-9a-f])[0-9a-f]{32,}(?![0-9a-f])")
_HOME = re.compile(r"/home/[^/\s]+")
_ADDRESS = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?![\d.])")
_ADDRESS6 = re.compile(r"(?<![0-9a-fA-F:])(?=[0-9a-fA-F:]*:[0-9a-fA-F:]*:)[0-9a-fA-F:]{4,39}(?=:\d+$)")


class Scrubber:
    """The same input gives the same output within one recording, so that what belongs together stays recognisable.

    paths: directory -> what stands for it ("/scratch/x" -> "/work"). words: whatever else must go, such as host names.
    """

    def __init__(self, paths: Mapping[str, str], words: Mapping[str, str]) -> None:
        self._paths = sorted(((path.rstrip("/"), name) for path, name in paths.items() if len(path) > 1), reverse=True)
        self._words = {word: name for word, name in words.items() if len(word) > 1}
        self._uuids: Dict[str, str] = {}
        self._addresses: Dict[str, str] = {}

    def __call__(self, value: Any, key: str = "") -> Any:
        """A JSON value, all texts and all keys in it."""
        if isinstance(value, dict):
            return {self._text(str(name)): self(one, str(name)) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(one, key) for one in value]
        if isinstance(value, str):
            return BOOT_ID if key == "boot_id" else self._text(value)
        return value

    def _text(self, text: str) -> str:
        for path, name in self._paths:
            text = re.sub(re.escape(path) + r"(?=/|$|[\s'\":,])", name, text)
        text = _HOME.sub("/home/user", text)
        text = _UUID.sub(lambda match: self._uuid(match.group(0)), text)
        text = _HEX.sub(lambda match: hashlib.sha512(match.group(0).encode()).hexdigest()[: len(match.group(0))], text)
        text = _ADDRESS.sub(lambda match: self._address(match.group(1)), text)
        text = _ADDRESS6.sub(lambda match: self._address(match.group(0)), text)
        for word, name in self._words.items():
            text = re.sub(rf"(?<![\w]){re.escape(word)}(?![\w])", name, text)
        return text

    def _uuid(self, uuid: str) -> str:
        number = self._uuids.setdefault(uuid, f"{len(self._uuids):012x}")
        return f"GPU-00000000-0000-4000-8000-{number}"

    def _address(self, address: str) -> str:
        """The range that is set aside for documentation."""
        if address.startswith(("127.", "0.")) or address in ("::1", "::"):
            return address
        return self._addresses.setdefault(address, f"192.0.2.{len(self._addresses) % 254 + 1}")
