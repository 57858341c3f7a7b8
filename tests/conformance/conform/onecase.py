# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process of one case on one backend: runs it, cleans up, leaves its observations in a file."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Dict, Optional

from . import backend, host, registry
from .context import MARK, Context, NotApplicable
from .options import Options

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class OutOfTime(BaseException):
    """Raised by the runner's SIGTERM."""


def _stop(_number: int, _frame: Optional[FrameType]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise OutOfTime


def become_subreaper() -> None:
    """Orphans of the case, restored processes among them, become our children, so that their end can be read."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(runner: int) -> None:
    """A runner that is killed takes its cases along: each is told to stop, and cleans up."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != runner:
        os.kill(os.getpid(), signal.SIGTERM)


def run(spec: Dict[str, Any]) -> Dict[str, Any]:
    options = Options.from_json(spec["options"])
    one = {case.name: case for case in registry.load()}[spec["case"]]
    driver = backend.make(spec["backend"], options.libcuda, options.cli)
    work = Path(spec["work"])
    work.mkdir(parents=True)
    context = Context(one.name, driver, options, host.from_json(spec["host"]), work, os.environ[MARK])
    started = time.monotonic()
    answer: Dict[str, Any] = {"status": "ok"}
    try:
        one.body(context)
    except NotApplicable as reason:
        answer = {"status": "not applicable", "reason": str(reason)}
    except OutOfTime:
        answer = {"status": "error", "reason": f"out of time at step {context.step!r}"}
    except Exception as error:  # a case that breaks must not break the others
        answer = {
            "status": "error",
            "reason": f"at step {context.step!r}: {type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
        }
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if answer["status"] == "error":
        answer["stderr"] = {p.name: p.stderr() for p in context.processes if hasattr(p, "stderr")}
    answer["seconds"] = round(time.monotonic() - started, 2)
    answer["observations"] = context.observations
    answer["left_behind"] = context.close()
    answer["raw"] = context.raw
    return answer


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    os.umask(0o022)
    become_subreaper()
    signal.signal(signal.SIGTERM, _stop)
    end_with(spec["runner"])
    answer = run(spec)
    result = Path(spec["result"])
    partial = result.with_name(result.name + ".partial")
    partial.write_text(json.dumps(answer))
    partial.rename(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
