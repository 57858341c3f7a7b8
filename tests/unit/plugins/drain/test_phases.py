# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which phase comes after which, what is left to do, and what a maintenance may be declared to do."""

from itertools import pairwise

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import (
    ORDER,
    PHASES,
    Ask,
    DrainError,
    advance,
    check_declares,
    check_declares_late,
    todo,
)
from tests.unit.plugins.drain.made import drain

# From, to: everything that changes a phase. What is not here stays or is refused.
STEPS = {
    ("claimed", "suspending"),
    ("claimed", "undoing"),
    ("suspending", "suspended"),
    ("suspending", "restoring"),
    ("suspending", "undoing"),
    ("suspended", "maintenance"),
    ("suspended", "restoring"),
    ("maintenance", "restoring"),
    ("restoring", "restored"),
    ("restored", "released"),
    ("undoing", "undone"),
}


@pytest.mark.parametrize("wanted", PHASES)
@pytest.mark.parametrize("now", [phase for phase in PHASES if phase not in ("released", "undone")])
def test_every_pair_of_phases(now: str, wanted: str) -> None:
    if (now, wanted) in STEPS:
        assert advance(now, Ask(wanted)) is True
        return
    back = now in ORDER and wanted in ORDER and ORDER.index(wanted) <= ORDER.index(now)
    if back or now == wanted or (now, wanted) == ("undoing", "claimed"):
        assert advance(now, Ask(wanted)) is False
        return
    with pytest.raises(DrainError) as caught:
        advance(now, Ask(wanted))
    words = str(caught.value)
    if wanted in ("undoing", "undone") and now in ORDER[2:]:
        assert "a host is never released by itself then" in words
        assert "gpu_drain_maintenance_done" in words
    elif now == "undoing":
        assert "has begun to undo" in words
    else:
        assert f"it is at {now}, and {wanted} was asked for" in words


def test_a_new_row_is_at_whatever_began_it() -> None:
    assert advance("", Ask("claimed")) and advance("", Ask("suspending"))


def test_a_loss_that_is_accepted_lets_a_host_go() -> None:
    assert advance("restoring", Ask("released", accept_loss=True))
    for now in ("suspended", "maintenance", "suspending", "claimed"):
        with pytest.raises(DrainError):
            advance(now, Ask("released", accept_loss=True))


def test_check_mode_foresees_what_follows() -> None:
    for wanted in ORDER:
        assert advance("claimed", Ask(wanted, check=True)) is (wanted != "claimed")
    assert advance("suspending", Ask("undone", check=True))
    with pytest.raises(DrainError, match="never released by itself"):
        advance("suspended", Ask("undoing", check=True))


def test_what_is_left_to_do_only_gets_less() -> None:
    left = [todo(phase) for phase in ORDER]
    assert left[0] == ("scheduler", "before_suspend", "suspend", "maintenance", "restore", "after_restore", "release")
    for earlier, later in pairwise(left):
        assert earlier[len(earlier) - len(later) :] == later
    assert todo("released") == ()
    assert todo("maintenance")[0] == "maintenance"
    assert todo("undoing") == ("undo",)
    assert todo("undone") == todo("claimed")


def declared(declares: tuple[str, ...], mode: str, *pids: int) -> str:
    with pytest.raises(DrainError) as caught:
        check_declares(declares, mode, pids, Ask("suspending"))
    return str(caught.value)


def test_a_maintenance_that_would_lose_processes_is_refused_by_name() -> None:
    words = declared(("reboot",), "memory")
    assert "gpu_drain_declares: it has reboot, and gpu_drain_mode is memory" in words
    assert "Set gpu_drain_mode: disk" in words
    assert "An image needs exactly its driver" in declared(("driver_change",), "disk")
    words = declared(("driver_change",), "memory", 7, 8)
    assert "PID 7, PID 8 are selected" in words
    assert "End the processes before" in words


@pytest.mark.parametrize("phase", ["suspended", "maintenance"])
@pytest.mark.parametrize(
    ("mode", "declare", "told"),
    [
        ("memory", "reboot", "it has reboot, and run a has suspended PID 7 in memory"),
        ("memory", "driver_change", "it has driver_change, and run a has suspended PID 7 in memory"),
        ("disk", "driver_change", "it has driver_change, and run a has suspended PID 7 on disk"),
    ],
)
def test_what_is_suspended_already_is_kept_from_it(phase: str, mode: str, declare: str, told: str) -> None:
    row = drain(phase=phase, mode=mode, processes=({"identity": {"pid": 7}},))
    with pytest.raises(DrainError) as caught:
        check_declares_late((declare,), row, Ask("claimed", kind="suspend"))
    assert f"gpu_suspend_declares: {told}" in str(caught.value)
    assert "Finish this run without it" in str(caught.value)
    check_declares_late((), row, Ask("claimed"))
    check_declares_late((declare,), drain(phase=phase, mode=mode), Ask("claimed"))
    check_declares_late((declare,), drain(phase="restoring", mode=mode, processes=row.processes), Ask("claimed"))


def test_an_image_outlives_a_reboot_that_is_declared_late() -> None:
    row = drain(phase="suspended", mode="disk", processes=({"identity": {"pid": 7}},))
    check_declares_late(("reboot",), row, Ask("maintenance"))


def test_what_can_be_kept_is_let_through() -> None:
    for declares, mode, pids in (
        ((), "memory", (7,)),
        (("reboot", "gpu_reset"), "disk", (7,)),
        (("gpu_reset",), "memory", (7,)),
        (("driver_change",), "memory", ()),
    ):
        check_declares(declares, mode, pids, Ask("claimed"))
