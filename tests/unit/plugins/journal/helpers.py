# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many processes over one journal: forked, waited for, killed."""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._huge_pages import Knob
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity

PR_SET_PDEATHSIG = 1
BOOT = "6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11"


def identity(pid: int, start_ticks: int = 4711, boot_id: str = BOOT) -> Identity:
    return Identity(pid, start_ticks, boot_id)


def me() -> Identity:
    found = read_identity(os.getpid())
    assert found is not None
    return found


def begin(
    journal: Journal,
    pid: int = 12,
    run_id: str = "run",
    step: str = "lock",
    boot_id: str = BOOT,
    after: Optional[int] = None,
) -> Operation:
    return journal.begin(
        run_id=run_id,
        identity=identity(pid, boot_id=boot_id),
        executable="/usr/bin/python3",
        uid=1000,
        goal="checkpointed",
        state_before="running",
        step=step,
        worker=identity(99, boot_id=boot_id),
        park=True,
        guard="holder",
        backend="libcuda",
        device_bytes={"GPU-a": 5, "GPU-b": 7},
        after=after,
    )


def fork(work: Callable[[], object]) -> int:
    """A child that does the work and exits with 0, or with 1 and a traceback. It ends with its parent at the latest."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(pid: int) -> int:
    """Its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert wait(pid) in (0, -signal.SIGKILL)


class Words(Knob):
    """The kernel's file, as a file: a word that is written comes back in brackets."""

    ALL = ("always", "madvise", "never")

    def __init__(self, path: Path, value: str = "madvise") -> None:
        super().__init__(str(path))
        self.refuses = ""
        if not path.exists():
            self.write(value)

    def write(self, value: str) -> str:
        if self.refuses:
            return self.refuses
        text = " ".join(f"[{word}]" if word == value else word for word in self.ALL)
        Path(self.path + ".new").write_text(text)
        os.replace(self.path + ".new", self.path)
        return ""
