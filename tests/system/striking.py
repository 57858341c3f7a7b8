# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Something goes wrong on a test host when the code under test has journalled a step: tests/system/inside/faults.py."""

from __future__ import annotations

import json

from tests.system.lab import INSIDE, Lab

PLAN, DONE, ACTED, GO = (f"/run/faults.{name}" for name in ("json", "done", "acted", "go"))
FILLER = "/var/lib/filler"
#: What ends whom.
KILLS = {
    "worker": "kill -9 $WORKER",
    "module": "kill -9 $MODULE",
    "session": "kill -9 $SESSION",
    "target": "kill -9 $OURS",
    "criu": "pkill -9 -x criu; true",
}
_PLACE = "/usr/local/lib/python3.13/dist-packages"
# What is taken last are its smallest pieces.
_FILL = """
import os
filler, keep = os.open({filler!r}, os.O_WRONLY | os.O_CREAT, 0o600), {keep}
at, piece = 0, 1 << 40
while piece >= 4096:
    room = os.fstatvfs(filler)
    piece = min(piece, room.f_bfree * room.f_frsize - keep)
    try:
        os.posix_fallocate(filler, at, max(piece, 1))
        at += piece
    except OSError:
        piece //= 2
"""


def prepare(lab: Lab) -> None:
    lab.host.put(f"{_PLACE}/gpufleet_faults.py", (INSIDE / "faults.py").read_text())
    lab.host.put(f"{_PLACE}/gpufleet_faults.pth", "import gpufleet_faults\n")


def python(text: str) -> str:
    """In a script. What it leaves running keeps no connection open."""
    return f"/usr/bin/python3 -S - <<'EOF' >/dev/null 2>&1\n{text}\nEOF"


def fill(keep: int) -> str:
    """A script that takes all that there is on /var, but for so many bytes."""
    return python(_FILL.format(filler=FILLER, keep=keep))


def strike(lab: Lab, point: str, script: str = "", delay: float = 0.0, hold: bool = False, clock: float = 0.0) -> None:
    """At the next such step, once. See tests/system/inside/faults.py."""
    plan = {"point": point, "script": script, "delay": delay, "hold": hold, "clock": clock}
    lab.host.put(PLAN, json.dumps(plan))


def has_struck(lab: Lab) -> bool:
    """A file that is not there is the answer, too."""
    return bool(lab.host.sh(f"cat {DONE} 2>/dev/null || true"))


def forget(lab: Lab) -> None:
    lab.host.run("rm", "-f", PLAN, DONE, ACTED, GO, FILLER)
