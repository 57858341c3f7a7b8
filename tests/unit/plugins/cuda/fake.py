# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cuda-checkpoint that plays a script, and refuses whatever the script does not expect at that point."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

# Runs as the fake: plays the next line of the script beside it. What it refuses is written to `refused`.
_SOURCE = """\
import fcntl, json, os, sys, time
folder = {folder!r}
with open(folder + "/turn", "r+") as turn:
    fcntl.flock(turn, fcntl.LOCK_EX)
    number = int(turn.read() or 0)
    turn.seek(0)
    turn.write(str(number + 1))
with open(folder + "/script") as stream:
    script = json.load(stream)
expected = script[number] if number < len(script) else None
wrong = []
if expected is None:
    wrong.append("no further call is expected")
elif sys.argv[1:] != expected["argv"]:
    wrong.append("expected {{0}}".format(expected["argv"]))
if os.environ.get("LC_ALL") != "C" or "LANGUAGE" in os.environ:
    wrong.append("not the C locale")
if os.readlink("/proc/self/fd/0") != os.devnull:
    wrong.append("stdin is {{0}}".format(os.readlink("/proc/self/fd/0")))
if os.getsid(0) != os.getpid():
    wrong.append("not in a session of its own")
if os.getcwd() != "/":
    wrong.append("works in {{0}}".format(os.getcwd()))
if wrong:
    with open(folder + "/refused", "a") as stream:
        stream.write("{{0}}: {{1}}\\n".format(sys.argv[1:], "; ".join(wrong)))
    sys.exit(97)
with open(folder + "/pids", "a") as stream:
    stream.write("{{0}}\\n".format(os.getpid()))
while expected["waits_for"] and not os.path.exists(expected["waits_for"]):
    time.sleep(0.01)
os.write(1, expected["out"].encode())
os.write(2, expected["err"].encode())
if expected["status"] < 0:
    os.kill(os.getpid(), -expected["status"])
os._exit(expected["status"])
"""


@dataclass(frozen=True)
class Exchange:
    """One call that is expected, and what the fake does then. status: negative for a signal. waits_for: it ends only
    when this file is there."""

    argv: list[str]
    status: int = 0
    out: str = ""
    err: str = ""
    waits_for: str = ""


class FakeTool:
    def __init__(self, folder: Path, script: list[Exchange]) -> None:
        self.folder = folder
        self.script = script
        (folder / "turn").write_text("")
        (folder / "script").write_text(json.dumps([asdict(exchange) for exchange in script]))
        self.path = folder / "cuda-checkpoint"
        self.path.write_text(f"#!{sys.executable} -IS\n" + _SOURCE.format(folder=str(folder)))
        self.path.chmod(0o755)

    def check(self) -> None:
        """Every call of the script was made, and no other."""
        refused = self.folder / "refused"
        assert not refused.exists(), refused.read_text()
        assert int((self.folder / "turn").read_text() or 0) == len(self.script)

    def pids(self) -> list[int]:
        """Of the calls that began, in their order."""
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []
