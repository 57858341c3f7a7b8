# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs to judge and to report."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import batches, record
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Attempt, Controller, Host, Run

RUN_ID = "20261130T080000-7f3a9c"
BEGAN = 1796025600.0  # 2026-11-30 08:00:00Z
CONTROLLER = Controller("ops1", "mira", 4711, 880000, "5a0c6a52-7f0e-4c58-8b1a-1f4d7ce0a001")


def attempt_of(hosts: tuple[str, ...], number: int = 1, batch: int = 1, slice: int = 1, **more: Any) -> Attempt:
    return Attempt(number, slice, CONTROLLER, BEGAN + 1000 * (number - 1), hosts, batch, **more)


def run_of(*attempts: Attempt, order: tuple[str, ...] | None = None, **settings: Any) -> Run:
    told = {"mode": "memory", "serial": [1, "10%"], "failures_allowed": 0, "scheduler": "none", **settings}
    hosts = attempts[0].hosts if order is None else order
    return Run(RUN_ID, "drain", BEGAN, told, "f00d", hosts, tuple(attempts))


def in_batches(attempt: Attempt, serial: Any = (1, 2)) -> dict[str, Host]:
    """Each host of the attempt, marked as its batch began, up to the one that it is at."""
    made: dict[str, Host] = {}
    for number, names in enumerate(batches.batches(attempt.hosts, serial), 1):
        if number <= attempt.batch:
            turn = Attempt(attempt.attempt, attempt.slice, CONTROLLER, attempt.began, attempt.hosts, number)
            made.update((name, record.marked(Host(RUN_ID, name), turn)) for name in names)
    return made
