# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors, masks and other text."""

from __future__ import annotations

import os
import signal

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import masks, process
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import (
    HoldError,
    ProcessEndedError,
    describe_end,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.hold import Hold
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
from tests.unit.plugins.hold.helpers import Target, until


def test_an_error_is_one_text_of_its_parts() -> None:
    error = HoldError("PID 12 (python3)", "thread 13 is traced by PID 14 (gdb)", "One tracer only", "Let it detach.")
    assert str(error) == "PID 12 (python3): thread 13 is traced by PID 14 (gdb). One tracer only. Let it detach."
    assert (error.subject, error.evidence) == ("PID 12 (python3)", "thread 13 is traced by PID 14 (gdb)")
    assert (error.reason, error.remedy) == ("One tracer only", "Let it detach.")


@pytest.mark.parametrize(
    ("status", "words"), [(9, "killed by signal 9"), (3 << 8, "exit status 3"), (None, "how is not known")]
)
def test_the_end_of_a_process_in_words(status: int, words: str) -> None:
    assert describe_end(status) == words
    error = ProcessEndedError("PID 12", status, "checkpoint")
    assert f"PID 12: it ended while it was held (checkpoint): {words}." in str(error)
    assert error.status == status


def test_masks_as_text_and_back() -> None:
    given = {20: 0, 3: masks.ALONE, 7: 1 << 63}
    text = masks.to_text(given)
    assert text == "3=ffffffff3ffbfa27,7=8000000000000000,20=0000000000000000".replace(
        "ffffffff3ffbfa27", f"{masks.ALONE:016x}"
    )
    assert masks.from_text(text) == given
    assert masks.from_text("") == {}
    for wrong in ("x", "3", "3=", "3=zz", "a=0", "3=0;4=0"):
        with pytest.raises(ValueError):
            masks.from_text(wrong)


def bit(number: int) -> int:
    return 1 << (number - 1)


def test_which_signals_are_blocked() -> None:
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT, signal.SIGTSTP, signal.SIGUSR1, 33, 64):
        assert masks.ALONE & bit(number)
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGKILL, 19):
        assert not masks.ALONE & bit(number)
    # Nothing comes before SIGSTOP.
    assert all(masks.STOPPING & bit(number) for number in range(1, 32) if number not in (signal.SIGKILL, 19))
    assert len({masks.ALONE, masks.STOPPING, masks.IN_TRANSIT}) == 3


def test_which_signals_wait_even_if_they_come_through() -> None:
    assert all(masks.must_wait(number) for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGUSR1, 34))
    assert not any(masks.must_wait(number) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGSTOP))


def test_what_is_pending_has_names() -> None:
    with Target(0) as target:
        os.kill(target.pid, signal.SIGSTOP)
        until(target.all_stopped, "stopped")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD + 20):
            os.kill(target.pid, number)
        assert process.pending(target.pid) == ("SIGHUP", "SIGTERM", "signal 37")


def test_a_text_that_is_no_mask_changes_nothing() -> None:
    identity = read_identity(os.getpid())
    assert identity is not None
    Hold(identity).mend_masks("nonsense")
