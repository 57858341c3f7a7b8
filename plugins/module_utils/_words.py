# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and texts from outside, as they can stand in a message."""

from __future__ import annotations

import errno
import os
from typing import Dict, Iterable, List, Optional, Tuple

#: Digits of the largest number that the kernel writes. More of them cost time, and Python refuses thousands.
_DIGITS = 20


def lines(text: str) -> List[str]:
    """Of a text of the kernel or of a program. Only a line feed ends a line: str.splitlines() takes ten more characters
    for an end, and whoever names a file, a thread or a socket can put them into the name."""
    found = text.split("\n")
    return found if found[-1] else found[:-1]


def natural(text: str) -> Optional[int]:
    """A number as the kernel writes it; None for anything else, such as other digits than 0 to 9, for which
    str.isdigit() is true as well, or more of them than int() takes."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def kernel_lines(text: str) -> List[str]:
    """Of a file of the kernel, without empty lines."""
    return [line for line in lines(text) if line]


def decoded(name: str) -> str:
    """A name of a file, as the system calls of Python return it, as text that can be sent and stored: what is no UTF-8
    in it is replaced."""
    return os.fsencode(name).decode(errors="replace")


def printable(text: str) -> str:
    """Control characters, line ends, and what could not be decoded, escaped as Python writes them."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "backslashreplace").decode("ascii") for one in text
    )


def refused_by_host(error: OSError) -> str:
    """For a module that the host gives no process, descriptor or memory, in the words of an error."""
    short = error.errno in (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    remedy = (
        "The module takes some processes and descriptors of its own, and for each process that it works on: raise the "
        "limits of its user and session (ulimit -n and -u, TasksMax, pids.max)"
        if short
        else "Look at that, and at the state of the processes with cuda_checkpoint_info"
    )
    return (
        f"this host: {error}. The module could not go on; what its workers have begun they end. {remedy}, and run the "
        "task again."
    )


def grouped(notes: Iterable[Tuple[str, str]]) -> List[str]:
    """Pairs of a name and what is to be told of it: each text once, behind all that it is true of."""
    names: Dict[str, List[str]] = {}
    for name, note in notes:
        names.setdefault(note, []).append(name)
    return [f"{', '.join(who)}: {note}" for note, who in names.items()]
