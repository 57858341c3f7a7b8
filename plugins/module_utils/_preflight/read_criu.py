# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of CRIU: where it is, its version, what `criu check` says, and its CUDA plugin."""

from __future__ import annotations

import os
import re
from typing import Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Command
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.tool import ToolError, find
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import _files
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.elf import plugin_hooks
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import CriuFacts, PluginFacts

DEFAULT = "criu"
SECONDS = 30.0
PLUGIN = "cuda_plugin.so"
_VERSION = re.compile(r"^Version:\s*(\d+(?:\.\d+)*)", re.MULTILINE)
_PLUGIN_DIRECTORIES = ("/usr/lib/criu", "/usr/lib64/criu", "/usr/lib/x86_64-linux-gnu/criu", "/usr/local/lib/criu")


def parse_version(text: str) -> str:
    """ "4.1.1" out of `criu --version`, "" for none."""
    match = _VERSION.search(text)
    return match.group(1) if match else ""


def _plugin(directories: Tuple[str, ...]) -> Optional[PluginFacts]:
    for directory in directories:
        path = os.path.join(directory, PLUGIN)
        image = _files.data(path)
        if image is not None:
            return PluginFacts(path, plugin_hooks(image))
    return None


class CriuProbe:
    """Started at once, so that CRIU works while other evidence is read. check: run `criu check`, which takes root."""

    def __init__(self, executable: str, check: bool) -> None:
        self._path = self._why = ""
        self._version: Optional[Command] = None
        self._check: Optional[Command] = None
        self._facts: Optional[CriuFacts] = None
        try:
            self._path = find(executable)
        except ToolError as error:
            self._why = str(error)
            return
        self._version = Command([self._path, "--version"])
        self._check = Command([self._path, "check"]) if check else None

    def finish(self, seconds: float = SECONDS) -> CriuFacts:
        """Raises nothing: what goes wrong is the answer."""
        if self._facts is None:
            self._facts = self._read(seconds)
        return self._facts

    def _read(self, seconds: float) -> CriuFacts:
        if self._version is None:
            return CriuFacts(self._path, self._why)
        version = self._version.finish(seconds)
        check = self._check.finish(seconds) if self._check is not None else None
        known = parse_version(version.out + "\n" + version.err)
        said = version.problem or (
            version.lines[0] if version.lines else f"exit status {version.status} without a word"
        )
        words = () if check is None else (*check.lines, *filter(None, [check.problem]))
        status = None if check is None else -1 if check.status is None else check.status
        own = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(self._path))), "lib/criu")
        directories = (os.environ.get("CRIU_LIBS_DIR", ""), own, *_PLUGIN_DIRECTORIES)
        return CriuFacts(
            path=self._path,
            why="" if known else f"{self._path} --version: {said}",
            version=known,
            check=status,
            words=tuple(words),
            plugin=_plugin(tuple(directory for directory in directories if os.path.isabs(directory))),
        )
