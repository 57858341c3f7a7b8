# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process of one test: runs it, cleans up behind it, and leaves its record in a file all the time."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Dict, Optional

from conform import workload
from conform.onecase import become_subreaper, end_with

from . import registry
from .plays import NoAnswerError
from .spec import spec_from
from .trial import MARK, NotApplicableError, Stop, Trial


class OutOfTime(BaseException):
    """Raised by the runner's SIGTERM."""


def _stop(_number: int, _frame: Optional[FrameType]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise OutOfTime


def run(given: Dict[str, Any]) -> None:
    spec = spec_from(given["spec"])
    one = {test.name: test for test in registry.load()}[given["test"]]
    work = Path(given["work"])
    work.mkdir(parents=True)
    t = Trial(one.name, spec, work, Path(given["result"]), os.environ[MARK])
    t.record["about"] = one.about
    status, reason = "ok", ""
    try:
        t.save()
        one.body(t)
    except NotApplicableError as error:
        status, reason = "not applicable", str(error)
    except OutOfTime:
        status, reason = "out of time", "its budget was used up"
    except Stop as error:
        status, reason = "failed", str(error)
    except NoAnswerError as error:
        status, reason = "failed", str(error)
    except workload.NotReady as error:
        status, reason = "error", str(error)
    except Exception as error:  # a test that breaks must not break the others
        status, reason = "error", f"{type(error).__name__}: {error}"
        t.record["traceback"] = traceback.format_exc()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if status == "ok" and t.failures:
        status, reason = "failed", f"{len(t.failures)} expectations did not hold"
    if status != "ok":
        t.record["stderr"] = {one.name: one.stderr() for one in t.subjects if one.stderr()}
        t.record["left"] = {one.name: {"end": one.death(), **one.look().short()} for one in t.subjects}
    t.record.update(status=status, reason=reason)
    t.save(now=True)
    t.record["left_behind"] = t.close()
    t.save(now=True)


def main() -> int:
    given = json.loads(Path(sys.argv[1]).read_text())
    os.umask(0o022)
    become_subreaper()
    signal.signal(signal.SIGTERM, _stop)
    end_with(given["runner"])
    run(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
