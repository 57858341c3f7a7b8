# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names, words and numbers of CUresults."""

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import results
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.advice import CALLS, advise


@pytest.mark.parametrize(
    "code,name,text",
    [
        (0, "SUCCESS", "no error"),
        (1, "INVALID_VALUE", "invalid argument"),
        (2, "OUT_OF_MEMORY", "out of memory"),
        (3, "NOT_INITIALIZED", "initialization error"),
        (304, "OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"),
        (401, "ILLEGAL_STATE", "the operation cannot be performed in the present state"),
        (600, "NOT_READY", "device not ready"),
        (801, "NOT_SUPPORTED", "operation not supported"),
        (999, "UNKNOWN", "unknown error"),
        (12345, "CUresult 12345", "unrecognized error code"),
    ],
)
def test_names_and_texts(code: int, name: str, text: str) -> None:
    assert results.name(code) == name
    assert results.text(code) == text


def test_every_name_has_words_that_lead_back_to_it() -> None:
    for code in results.NAMES:
        assert results.code_of(f" {results.text(code)}\n") == code


def test_words_of_nobody() -> None:
    assert results.code_of("unrecognized error code") is None
    assert results.code_of("") is None


@pytest.mark.parametrize(
    "call,code,mapped,reason,lost",
    [
        ("lock", 600, False, "did not end within the lock's timeout", False),
        ("lock", 801, False, "client of MPS", False),
        ("lock", 3, False, "no CUDA context", False),
        ("lock", 304, False, "neither its owner nor root", False),
        ("unlock", 401, False, "somebody else drives it", False),
        ("checkpoint", 801, False, "every checkpoint of this process is refused", False),
        ("checkpoint", 2, False, "RLIMIT_DATA", False),
        ("checkpoint", 304, False, "the process ended meanwhile", False),
        ("checkpoint", 999, False, "an earlier checkpoint of it was refused", False),
        ("restore", 2, False, "did not have the room", True),
        ("restore", 1, False, "CUDA IPC", True),
        ("restore", 1, True, "every GPU of the host", False),
        ("restore", 801, False, "NCCL", True),
        ("restore", 304, False, "an earlier restore of it failed", True),
        ("restore", 401, True, "somebody else drives it", False),
    ],
)
def test_what_a_refusal_means(call: str, code: int, mapped: bool, reason: str, lost: bool) -> None:
    advice = advise(call, code, mapped)
    assert advice is not None
    assert reason in advice.reason
    assert advice.lost is lost
    assert advice.remedy


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    assert advise("lock", None) is None
    assert all(advise(call, 719) is None and advise(call, 0) is None for call in CALLS)
