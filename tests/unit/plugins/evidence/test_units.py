# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of systemd, in its own words."""

from __future__ import annotations

from typing import List, Sequence

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Said
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._units import Unit, parse_span, read_units

# systemd 257: `systemctl show -p Id,LoadState,... -- a.service b.service system.slice`
SHOWN = """MainPID=12
Restart=on-failure
WatchdogUSec=1min 30s
StandardOutput=journal
StandardError=inherit
ManagedOOMSwap=auto
ManagedOOMMemoryPressure=auto
RuntimeMaxUSec=2h
ActiveEnterTimestampMonotonic=40955148424
Id=a.service
LoadState=loaded

Restart=no
Id=b.service
LoadState=not-found

ManagedOOMSwap=kill
ManagedOOMMemoryPressure=kill
RuntimeMaxUSec=infinity
ActiveEnterTimestampMonotonic=1148424
Id=system.slice
LoadState=loaded
"""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("infinity", 0), ("", 0), ("10s", 10), ("1min 30s", 90), ("500ms", 0.5), ("2h", 7200), ("1d 1s", 86401)],
)
def test_spans(text: str, seconds: float) -> None:
    assert parse_span(text) == pytest.approx(seconds)


def test_all_units_are_asked_for_in_one_call() -> None:
    calls: List[Sequence[str]] = []

    def ask(argv: Sequence[str]) -> Said:
        calls.append(argv)
        return Said(0, SHOWN)

    found = read_units(["system.slice", "b.service", "a.service", "a.service"], ask, booted=True, clock=lambda: 41000.0)
    (argv,) = calls
    assert argv[:2] == ["systemctl", "show"] and argv[-4:] == ["--", "a.service", "b.service", "system.slice"]
    assert found == (
        Unit(
            "a.service",
            watchdog=90,
            restart="on-failure",
            output="journal",
            error="inherit",
            main_pid=12,
            runtime=7200,
            runtime_left=7155.148,
        ),
        Unit("b.service", "systemd does not know it"),
        Unit("system.slice", oomd=("swap", "memory pressure")),
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Said(None, problem="systemctl can't be started: No such file"), "can't be started"),
        (Said(1, err="Failed to connect to bus: No such file or directory\n"), "Failed to connect to bus"),
        (Said(0), "systemctl says nothing"),
    ],
)
def test_what_systemctl_does_not_tell_is_unknown(said: Said, words: str) -> None:
    (found,) = read_units(["a.service"], lambda argv: said, booted=True)
    assert words in found.problem


def test_without_systemd_and_without_units_nobody_is_asked() -> None:
    def ask(argv: Sequence[str]) -> Said:
        raise AssertionError(argv)

    assert read_units([], ask, booted=True) == ()
    (found,) = read_units(["a.service"], ask, booted=False)
    assert found.problem == "systemd can't be reached from here"


def test_an_answer_that_is_cut_short_leaves_the_rest_unknown() -> None:
    found = read_units(["a.service", "c.service"], lambda argv: Said(0, SHOWN.partition("\n\n")[0]), booted=True)
    assert found[0].watchdog == 90 and found[1].problem == "systemctl does not tell it"
