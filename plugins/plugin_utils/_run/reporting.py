# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the report of a run, and counts for whoever is notified."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Mapping, Optional

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import controller, page, record, report
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import directory as directories
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.directory import Directory
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Attempt, Host, Run

#: A host tells something more often than anybody reads a page.
EVERY = 5.0


def write(place: Directory, now: float, fence: Optional[Attempt] = None) -> str:
    """The path of the page; "" where there is no record of a run."""
    run = place.run()
    if run is None:
        return ""
    lives = {controller.alive(attempt.controller) for attempt in run.current()}
    data = report.report(run, place.hosts(), now, True if True in lives else None if None in lives else False)
    return place.write_report(data, page.page(data), fence)


def write_sometimes(place: Directory, now: float, fence: Attempt) -> None:
    path = os.path.join(place.path, directories.REPORT_HTML)
    try:
        age = time.time() - os.stat(path).st_mtime
    except OSError:
        age = EVERY
    if age >= EVERY or age < 0:
        write(place, now, fence)


def counts(run: Run, hosts: Mapping[str, Host]) -> Dict[str, int]:
    told = dict.fromkeys(record.OUTCOMES, 0)
    for name in run.order:
        told[hosts[name].outcome if name in hosts else record.UNTOUCHED] += 1
    return told


def event(what: str, run: Run, hosts: Mapping[str, Host], page_path: str) -> Dict[str, Any]:
    """What gpu_drain_notify_command reads."""
    return {"event": what, "run_id": run.run_id, "counts": counts(run, hosts), "report": page_path}
