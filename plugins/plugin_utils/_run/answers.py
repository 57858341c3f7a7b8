# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host answers, before anything is made of it on the controller. Pure.

A host that is broken, or in other hands, answers what it likes. It must neither name a place on the controller, nor
stop the look at the other hosts, nor leave a record that nobody can read afterwards.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Mapping, TypeVar

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import look, page, record, report, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Host, RecordError, Run

#: A run's name, which is a directory's as well: never that of the directory itself, or of the one above.
RUN_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,64}")
_DEEP = 32
_WRONG = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)

_Made = TypeVar("_Made")


class Unusable(Exception):
    """An answer that nothing can be made of. str(): what is wrong with it."""


def attempted(make: Callable[[], _Made]) -> _Made:
    """What is made of an answer, whatever the answer is. Raises Unusable."""
    try:
        return make()
    except _WRONG as error:
        raise Unusable(f"{type(error).__name__}: {printable(str(error))[:200]}") from error


def check_seen(name: str, told: Mapping[str, Any]) -> None:
    """What gpu_drain_info returned. Raises Unusable for what can't be shown, judged and recorded."""

    def make() -> None:
        _check_depth(told)
        row = told.get("drain") or {}
        for run_id in [row.get("run_id") or "", *(row.get("runs") or ())]:
            if run_id != "" and not (isinstance(run_id, str) and RUN_ID.fullmatch(run_id)):
                raise ValueError(f"{run_id!r} is no name of a run")
        words.clock(float(row.get("opened") or 0))
        look.status(name, told, "")
        look.recover(told, "")
        check_record(record.rebuilt(str(row.get("run_id") or "-"), name, told))

    attempted(make)


def check_record(host: Host) -> None:
    """It can be read again, and reported. Raises one of the errors of Python for what can't."""
    data = json.loads(json.dumps(record.host_to_json(host), allow_nan=False))
    if record.host_from_json(data).phase not in ("", *record.PHASES):
        raise ValueError(f"phase {host.phase!r}")
    run = Run(run_id=host.run_id, kind="drain", created=0.0, settings={}, fingerprint="", order=(host.host,))
    page.page(report.report(run, {host.host: host}, 0.0))


def recordable(name: str, make: Callable[[], Host]) -> Host:
    """What is made. Raises RecordError for what can't be, and what would make the record of the run unreadable."""

    def checked() -> Host:
        host = make()
        check_record(host)
        return host

    try:
        return attempted(checked)
    except Unusable as error:
        raise RecordError(
            f"{name}, its record",
            f"what the host returned can't be recorded ({error})",
            "With it, the record of the whole run could not be read any more.",
            "Look at that host: another release of the collection, or somebody else, answers there.",
        ) from error


def _check_depth(value: object, depth: int = 0) -> None:
    if depth > _DEEP:
        raise ValueError("it is nested too deep")
    if isinstance(value, Mapping):
        for one in value.values():
            _check_depth(one, depth + 1)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _check_depth(one, depth + 1)
