# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real CRIU on a process tree, its log reduced to the decisive word."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from .normalize import criu_reason


@dataclass(frozen=True)
class CriuResult:
    rc: Optional[int]
    reason: str
    log: str

    @property
    def text(self) -> str:
        if self.rc is None:
            return "no answer"
        return "rc 0" if self.rc == 0 else f"rc {self.rc}: {self.reason}"


class Criu:
    def __init__(self, path: str, scratch: Path) -> None:
        self.path = path
        self.scratch = scratch
        self.no_plugins = scratch / "no-plugins"
        self.no_plugins.mkdir(exist_ok=True)

    def _start(self, action: List[str], images: Path, log: Path) -> subprocess.Popen[bytes]:
        argv = [self.path, *action, "-D", str(images), "-o", str(log), "-v4", "--shell-job"]
        argv += ["--libdir", str(self.no_plugins)]
        with open(str(log) + ".output", "wb") as output:
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
            )

    @staticmethod
    def _read(log: Path) -> str:
        try:
            return log.read_text(errors="replace")
        except OSError:
            try:
                return Path(str(log) + ".output").read_text(errors="replace")
            except OSError:
                return ""

    def _finish(self, process: subprocess.Popen[bytes], log: Path, seconds: float) -> CriuResult:
        try:
            code: Optional[int] = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        text = self._read(log)
        return CriuResult(code, "" if code == 0 else criu_reason(text), text)

    def dump(self, pid: int, images: Path, seconds: float, extra: Optional[List[str]] = None) -> CriuResult:
        images.mkdir(parents=True, exist_ok=True)
        log = self.scratch / f"dump-{images.name}-{time.monotonic_ns()}.log"
        return self._finish(self._start(["dump", "-t", str(pid), *(extra or [])], images, log), log, seconds)

    def dump_killed(self, pid: int, images: Path, seconds: float) -> bool:
        """SIGKILL once it has begun to write memory; True when it was still at work then."""
        images.mkdir(parents=True, exist_ok=True)
        log = self.scratch / f"dump-{images.name}-{time.monotonic_ns()}.log"
        process = self._start(["dump", "-t", str(pid)], images, log)
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end:
            if any(pages.stat().st_size for pages in images.glob("pages-*.img")):
                break
            time.sleep(0.001)
        alive = process.poll() is None
        if alive:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return alive

    def restore(self, images: Path, seconds: float, extra: Optional[List[str]] = None) -> CriuResult:
        log = self.scratch / f"restore-{images.name}-{time.monotonic_ns()}.log"
        return self._finish(self._start(["restore", "--restore-detached", *(extra or [])], images, log), log, seconds)


def version(path: str) -> str:
    """ "" where there is none that runs."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    for line in done.stdout.decode(errors="replace").splitlines():
        if line.lower().startswith("version:"):
            return line.split(":", 1)[1].strip()
    return ""
