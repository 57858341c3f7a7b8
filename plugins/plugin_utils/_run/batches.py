# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The batches that Ansible makes of hosts and `serial`. Pure."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple


def entries(serial: Any) -> Tuple[Any, ...]:
    """`serial` as a list; it may be one number, one percentage, or a list of them. Nothing stands for all hosts."""
    if serial is None or serial == "" or serial == []:
        return ("100%",)
    return tuple(serial) if isinstance(serial, (list, tuple)) else (serial,)


def size(entry: Any, hosts: int) -> int:
    """How many of `hosts` one entry of serial takes. A percentage is rounded down, but is at least one host; what is
    less than one host takes all. Raises ValueError for what is neither a number nor a percentage."""
    text = str(entry).strip()
    count = (int(int(text[:-1]) / 100.0 * hosts) or 1) if text.endswith("%") else int(text)
    return count if count > 0 else hosts


def batches(hosts: Sequence[str], serial: Any) -> Tuple[Tuple[str, ...], ...]:
    """The last entry holds for all batches that follow. Percentages are of all hosts, not of those that are left.
    Raises ValueError as `size` does."""
    left, wanted = list(hosts), list(entries(serial))
    made: List[Tuple[str, ...]] = []
    while left:
        count = size(wanted[min(len(made), len(wanted) - 1)], len(hosts))
        made.append(tuple(left[:count]))
        left = left[count:]
    return tuple(made)
