# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text of tools made comparable: no PIDs, UUIDs, addresses or times."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEX = re.compile(r"\b0x[0-9a-fA-F]+\b")
_VERSION = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


class Names:
    """What the PIDs and GPUs of one case are called in its observations."""

    def __init__(self, gpus: Mapping[str, str]) -> None:
        self._pids: Dict[int, str] = {}
        self._gpus = dict(gpus)
        self._texts: Dict[str, str] = {}

    def add_pid(self, pid: int, name: str) -> None:
        """Small numbers stay as they are: they are arguments of the case, not accidents of the host."""
        if pid > 9:
            self._pids[pid] = name

    def add_text(self, text: str, name: str) -> None:
        """A path of this run, say."""
        self._texts[text] = name

    def of_gpu(self, uuid: str) -> str:
        return self._gpus.get(uuid, "unknown gpu")

    def of_pid(self, pid: int) -> str:
        return self._pids.get(pid, str(pid))

    def clean(self, text: str) -> str:
        for found, name in self._texts.items():
            text = text.replace(found, name)
        text = _UUID.sub(lambda match: f"<{self.of_gpu(match.group(0))}>", text)
        for pid, name in sorted(self._pids.items(), reverse=True):
            text = re.sub(rf"(?<!\d){pid}(?!\d)", f"<{name}>", text)
        return text.strip()


def options_in(text: str) -> List[str]:
    """The set of long options that a help text names: what may be relied on across versions."""
    return sorted(set(_OPTION.findall(text)))


def without_versions(text: str) -> str:
    return _HEX.sub("<address>", _VERSION.sub("<version>", text))


def tool_output(text: str) -> Any:
    """A help text is reduced to its options, and to the line before it that says why it came."""
    if "--get-state" not in text or "--action" not in text:
        return text
    first, _dummy, rest = text.partition("\n")
    return {"help": options_in(text)} if "utility" in first else {"help": options_in(rest), "first": first}


# Decisive words of CRIU's log, most specific first: its wording around them changes with the version.
_CRIU = (
    ("has bad size", r"File .* has bad size"),
    ("has bad mode", r"File .* has bad mode"),
    ("No space left on device", r"No space left on device"),
    # A real device is refused at its mapping, a simulated one, which can't be mapped, at its descriptor.
    ("refuses a device", r"handle_device_vma|Can't handle non-regular mapping|Can't dump file \d+ of that type .*chr"),
    ("Can't fork: File exists", r"(?:Can't fork for|fork).*File exists"),
    ("Pid is already in use", r"[Pp]id \d+ .*(?:already|in use)"),
    ("connected TCP socket", r"Connected TCP socket"),
    ("can't open file", r"Can't open file"),
    ("external unix socket", r"[Ee]xternal (?:socket|stream).*(?:used|Runtime)"),
    ("doesn't have a build-id match", r"build-id"),
    ("a process with this PID is not there", r"(?:No process with pid|Can't find|No such process)"),
    ("is already being traced", r"(?:is already being traced|[Uu]nable to (?:seize|interrupt))"),
)
_CRIU_NOISE = re.compile(r"^\(\d+\.\d+\)\s*(?:\d+:\s*)?|\(criu/[\w./-]+:\d+\):?\s*|\(compel/[\w./-]+:\d+\):?\s*")


def criu_reason(log: str) -> str:
    """The one word for a failed criu run: the first known reason among its errors, else its first error line."""
    errors = [line for line in log.splitlines() if "Error (" in line and "rlimit:" not in line]
    for label, pattern in _CRIU:
        if any(re.search(pattern, line) for line in errors):
            return label
    for line in errors:
        bare = _CRIU_NOISE.sub("", line)
        bare = re.sub(r"^\(\d+\.\d+\)\s*(?:\d+:\s*)?", "", bare)
        return re.sub(r"\d+", "N", _HEX.sub("<address>", bare)).strip()
    return "no error in the log"
