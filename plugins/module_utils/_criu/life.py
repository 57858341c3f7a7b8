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
#: On the way to another host: a copy that waits for its source to give it up, one that was given up, and a copy that
#: was given back. None of them may be restored.
HELD, MOVED, RETURNED = "held", "moved", "returned"
STATES = (UNSPENT, RESTORING, SPENT, HELD, MOVED, RETURNED)
#: Of the file, in bytes.
MOST = 4 << 20
_PIDS = 1 << 22
_BOOT = re.compile(r"[0-9a-f-]{0,64}")
_TOKEN = re.compile(r"(?:[0-9a-f]{32})?")
_SECRET = re.compile(r"(?:[0-9a-f]{64})?")
_A_TOKEN, _A_SECRET = "32 digits, 0-9a-f, or nothing", "64 digits, 0-9a-f, or nothing"
SOURCE, TARGET, SHARED = "source", "target", "shared"


@dataclass(frozen=True)
class Handoff:
    """That an image goes from one host to another. id: of this one. side: whose mark this is, of the "source", of the
    copy at the "target", or of the one image that both hosts see, "shared". peer: machine id of the other host, of
    "shared" the one that may take it. peer_name: what people call it. key: what this side gives away when it gives the
    image up. lock: SHA-256 of the key of the other side, "" while that is not known.
    """

    id: str
    side: str
    peer: str = ""
    peer_name: str = ""
    key: str = ""
    lock: str = ""


#: They are in the file only where they are not empty, so that the mark of an image that never moves is as it was.
_OPTIONAL = ("init", "handoff", "host")


@dataclass(frozen=True)
class Life:
    """state: "unspent", "restoring" (somebody brings it back, or died at it), "spent", or one of a move. boot_id,
    run_id: of the boot and the run in which that was written, "" for unspent. at: seconds since the epoch. members: who
    came out of it, the root first; empty where that is not known yet, or nobody is left. init: the first process of
    the PID namespace that they are in, None for that of the host. handoff: the last move, None for none. host: machine
    id of the only host that may restore it, "" for any.
    """

    state: str = UNSPENT
    boot_id: str = ""
    run_id: str = ""
    at: float = 0.0
    members: Tuple[Identity, ...] = ()
    init: Optional[Identity] = None
    handoff: Optional[Handoff] = None
    host: str = ""


def to_json(life: Life) -> bytes:
    values = {name: value for name, value in asdict(life).items() if name not in _OPTIONAL or value}
    return (json.dumps(values) + "\n").encode("ascii")


def from_json(data: bytes) -> Life:
    """Raises FieldError."""
    read = parse(data)
    there = [name for name in _OPTIONAL if isinstance(read, dict) and name in read]
    fields = Fields(read, "", [name for name in Life.__dataclass_fields__ if name not in _OPTIONAL or name in there])
    members = [_identity(value, name) for name, value in fields.items("members", 1 << 16)]
    return Life(
        state=fields.choice("state", STATES),
        boot_id=fields.text("boot_id", _BOOT, "a boot id"),
        run_id=fields.line("run_id"),
        at=fields.real("at", 0.0, 1e12),
        members=tuple(members),
        init=_identity(fields.raw("init"), "init") if "init" in there else None,
        handoff=_handoff(fields.raw("handoff")) if "handoff" in there else None,
        host=fields.text("host", _TOKEN, _A_TOKEN) if "host" in there else "",
    )


def _handoff(value: object) -> Handoff:
    one = Fields(value, "handoff", Handoff.__dataclass_fields__)
    return Handoff(
        id=one.text("id", _TOKEN, _A_TOKEN),
        side=one.choice("side", (SOURCE, TARGET, SHARED)),
        peer=one.text("peer", _TOKEN, _A_TOKEN),
        peer_name=one.line("peer_name"),
        key=one.text("key", _SECRET, _A_SECRET),
        lock=one.text("lock", _SECRET, _A_SECRET),
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
