# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A forked child that answers one JSON value, so that whoever asks can give up without being stuck itself."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from typing import Any, Callable, Optional


class Child:
    """Runs `work` in a fork. Never killed but on request: a driver call must not be cut by accident."""

    def __init__(self, work: Callable[[], Any], uid: Optional[int] = None) -> None:
        self.started = time.monotonic()
        self.value: Any = None
        self.status: Optional[int] = None
        self._data = b""
        self._pipe, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._in_child(work, write, uid)
        os.close(write)

    def _in_child(self, work: Callable[[], Any], write: int, uid: Optional[int]) -> None:
        code = 70
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.close(self._pipe)
            if uid is not None:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            os.write(write, json.dumps({"value": work()}).encode())
            code = 0
        except BaseException:  # the fork must never return into the caller's code
            os.write(write, json.dumps({"error": traceback.format_exc()}).encode())
        finally:
            os._exit(code)

    def wait(self, seconds: float) -> bool:
        """True once it has ended; then `value` or `died` tell how."""
        end = time.monotonic() + seconds
        while self.status is None:
            left = end - time.monotonic()
            ready = select.select([self._pipe], [], [], max(0.0, left))[0]
            if not ready:
                return False
            piece = os.read(self._pipe, 65536)
            if piece:
                self._data += piece
                continue
            self.status = os.waitpid(self.pid, 0)[1]
            os.close(self._pipe)
            self._decode()
        return True

    def _decode(self) -> None:
        if not self._data:
            return
        answer = json.loads(self._data.decode())
        if "error" in answer:
            raise RuntimeError("the child that made the call failed:\n" + answer["error"])
        self.value = answer["value"]

    @property
    def died(self) -> str:
        """ "" for an orderly end, else how it died."""
        if self.status is None or os.WIFEXITED(self.status):
            return ""
        return f"signal {os.WTERMSIG(self.status)}"

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            _dummy, self.status = os.waitpid(self.pid, 0)
            os.close(self._pipe)


def ask(work: Callable[[], Any], seconds: float) -> Any:
    """The value of `work`, or None when there is none within the time; for readings only, so it may be killed."""
    child = Child(work)
    if not child.wait(seconds):
        child.kill()
        return None
    return child.value
