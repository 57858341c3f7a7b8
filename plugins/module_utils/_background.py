# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that runs while other evidence is read, and what it said."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import IO, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.tool import environment
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines

# More than any of these programs says; what a broken one writes beyond it is not read.
MOST_BYTES = 65536


@dataclass(frozen=True)
class Said:
    """status: exit status, None where it did not end in time or could not be started (`problem` says which)."""

    status: Optional[int]
    out: str = ""
    err: str = ""
    problem: str = ""

    @property
    def lines(self) -> Tuple[str, ...]:
        """Errors first, without empty ones."""
        return tuple(line.strip() for line in lines(self.err + "\n" + self.out) if line.strip())


def _scratch() -> IO[bytes]:
    """A file, so that the program never waits for a reader."""
    try:
        return os.fdopen(os.memfd_create("preflight"), "w+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()


def _read(stream: IO[bytes]) -> str:
    with stream:
        stream.seek(0)
        return stream.read(MOST_BYTES).decode("utf-8", "replace")


class Command:
    """Started at once, in the C locale and a session of its own."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._name = " ".join(argv)
        self._out, self._err = _scratch(), _scratch()
        self._problem = ""
        self._process: Optional["subprocess.Popen[bytes]"] = None
        try:
            # run_command() waits for what it starts.
            self._process = subprocess.Popen(  # pylint: disable=ansible-bad-function
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._problem = f"{argv[0]} can't be started: {error.strerror}"

    def finish(self, seconds: float) -> Said:
        """Waits so long at most, then ends it. To be called once."""
        status: Optional[int] = None
        if self._process is not None:
            try:
                status = self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                self._problem = f"{self._name} gave no answer within {seconds:g} s"
        return Said(status, _read(self._out), _read(self._err), self._problem)
