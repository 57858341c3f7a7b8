# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a driver call came to: names and texts of CUresults, names of states.

Numbers, names and texts are those of the CUDA driver API (cuda.h, cuGetErrorString).
"""

from __future__ import annotations

from typing import Dict, Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

NAMES: Dict[int, str] = {
    0: "SUCCESS",
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    3: "NOT_INITIALIZED",
    4: "DEINITIALIZED",
    36: "CALL_REQUIRES_NEWER_DRIVER",
    46: "DEVICE_UNAVAILABLE",
    100: "NO_DEVICE",
    101: "INVALID_DEVICE",
    201: "INVALID_CONTEXT",
    214: "ECC_UNCORRECTABLE",
    217: "PEER_ACCESS_UNSUPPORTED",
    304: "OPERATING_SYSTEM",
    400: "INVALID_HANDLE",
    401: "ILLEGAL_STATE",
    500: "NOT_FOUND",
    600: "NOT_READY",
    700: "ILLEGAL_ADDRESS",
    702: "LAUNCH_TIMEOUT",
    719: "LAUNCH_FAILED",
    800: "NOT_PERMITTED",
    801: "NOT_SUPPORTED",
    802: "SYSTEM_NOT_READY",
    803: "SYSTEM_DRIVER_MISMATCH",
    999: "UNKNOWN",
}

_TEXTS: Dict[int, str] = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    4: "driver shutting down",
    36: "API call is not supported in the installed CUDA driver",
    46: "CUDA-capable device(s) is/are busy or unavailable",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    201: "invalid device context",
    214: "uncorrectable ECC error encountered",
    217: "peer access is not supported between these two devices",
    304: "OS call failed or operation not supported on this OS",
    400: "invalid resource handle",
    401: "the operation cannot be performed in the present state",
    500: "named symbol not found",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    719: "unspecified launch failure",
    800: "operation not permitted",
    801: "operation not supported",
    802: "system not yet initialized",
    803: "system has unsupported display driver / cuda driver combination",
    999: "unknown error",
}

_CODES: Dict[str, int] = {words: code for code, words in _TEXTS.items()}

# CUprocessState. 4 and 5 came with CUDA 13.4.
STATES: Dict[int, str] = {
    0: "running",
    1: "locked",
    2: "checkpointed",
    3: "failed",
    4: "checkpointing",
    5: "restoring",
}


def name(code: int) -> str:
    """ILLEGAL_STATE for 401; the number itself for a code that this table lacks."""
    return NAMES.get(code, f"CUresult {code}")


def text(code: int) -> str:
    """The driver's own words for a CUresult."""
    return _TEXTS.get(code, "unrecognized error code")


def code_of(words: str) -> Optional[int]:
    """The CUresult whose words these are; None for words that the driver does not use."""
    return _CODES.get(words.strip())


@dataclass(frozen=True)
class Reply:
    """The answer to one call.

    ok: the driver, or the tool, says that it was done. After a call that changes a state, re-read the state: a tool's
    word is not proof. code: CUresult; None where nothing told it. text: why not, in the words of whoever refused.
    seconds: from the start of the call. state: a name out of STATES, from a state query only. tid: from a query for the
    restore thread only.
    """

    ok: bool
    code: Optional[int]
    text: str
    seconds: float
    state: Optional[str] = None
    tid: Optional[int] = None
