# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an image has been restored, and what became of it: one process must not live twice.

It lies in the image, so that it goes where the image goes, and is on the disk before anything that it tells begins.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from typing import Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import LIFE
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import write_file
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import (
    FieldError,
    Fields,
    parse,
    read_limited,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import is_alive
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity

UNSPENT, RESTORING, SPENT = "unspent", "restoring", "spent"
#: Of the file, in bytes.
MOST = 4 << 20
_PIDS = 1 << 22
_BOOT = re.compile(r"[0-9a-f-]{0,64}")


@dataclass(frozen=True)
class Life:
    """state: "unspent", "restoring" (somebody brings it back, or died at it) or "spent". boot_id, run_id: of the boot
    and the run in which that was written, "" for unspent. at: seconds since the epoch. members: who came out of it, the
    root first; empty where that is not known yet, or nobody is left. init: the first process of the PID namespace that
    they are in, None for that of the host.
    """

    state: str = UNSPENT
    boot_id: str = ""
    run_id: str = ""
    at: float = 0.0
    members: Tuple[Identity, ...] = ()
    init: Optional[Identity] = None


def to_json(life: Life) -> bytes:
    values = {name: value for name, value in asdict(life).items() if name != "init" or value is not None}
    return (json.dumps(values) + "\n").encode("ascii")


def from_json(data: bytes) -> Life:
    """Raises FieldError."""
    read = parse(data)
    has_init = isinstance(read, dict) and "init" in read
    fields = Fields(read, "", [name for name in Life.__dataclass_fields__ if name != "init" or has_init])
    members = [_identity(value, name) for name, value in fields.items("members", 1 << 16)]
    return Life(
        state=fields.choice("state", (UNSPENT, RESTORING, SPENT)),
        boot_id=fields.text("boot_id", _BOOT, "a boot id"),
        run_id=fields.line("run_id"),
        at=fields.real("at", 0.0, 1e12),
        members=tuple(members),
        init=_identity(fields.raw("init"), "init") if has_init else None,
    )


def _identity(value: object, name: str) -> Identity:
    one = Fields(value, name, Identity.__dataclass_fields__)
    return Identity(
        one.number("pid", 1, _PIDS - 1),
        one.number("start_ticks", 0, (1 << 63) - 1),
        one.text("boot_id", _BOOT, "a boot id"),
    )


def read_life(directory: str) -> Life:
    """Of the image in this directory. Raises CriuError; without it nobody knows whether a second life would begin."""
    path = os.path.join(directory, LIFE)
    reason = "It says whether the image was restored already; without it a second life could begin."
    remedy = "Find out whether the process lives; if it does not, bring the image from its origin again."
    try:
        return from_json(read_limited(path, MOST))
    except FieldError as error:
        raise CriuError(path, str(error), reason, remedy) from None
    except OSError as error:
        raise CriuError(path, str(error.strerror), reason, remedy) from None


def write_life(directory: str, life: Life) -> None:
    """Durable, whole or not at all. Raises OSError."""
    write_file(directory, LIFE, to_json(life))


def living(life: Life) -> Tuple[Identity, ...]:
    """Those of its members that are alive on this host now."""
    return tuple(member for member in life.members if is_alive(member))
