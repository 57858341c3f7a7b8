# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What docs/hold-and-park.md tells an operator to do without the collection."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.unit.plugins.hold.helpers import RESTORE_TID, Target, held, states, suspend, until

PAGE = Path(__file__).resolve().parents[4] / "docs" / "hold-and-park.md"


@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")
def test_gdb_in_the_place_of_the_holder() -> None:
    page = PAGE.read_text()
    settings = re.findall(r"`(set scheduler-locking on|handle SIGSTOP [a-z ]+)`", page)
    assert len(settings) == 2
    with Target(6) as target:
        held(lambda: suspend(target))
        target.assert_parked()
        tid = target.slot(RESTORE_TID)
        choose = f"python [one.switch() for one in gdb.selected_inferior().threads() if one.ptid[1] == {tid}]"
        with subprocess.Popen(
            ["gdb", "-q", "-nx", "-p", str(target.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as gdb:
            assert gdb.stdin is not None
            gdb.stdin.write("\n".join(["set confirm off", *settings, choose, "continue", ""]).encode())
            gdb.stdin.flush()
            until(lambda: states(target.pid).get(tid) == "S", "only the restore thread runs", 30)
            before = target.counters()
            reply = target.call("r")().wait(10)
            assert reply is not None and reply.state == "locked"
            assert target.counters() == before
            os.kill(gdb.pid, signal.SIGINT)
            until(lambda: set(states(target.pid).values()) == {"t"}, "gdb has it again")
            gdb.stdin.write(b"detach\nquit\n")
            gdb.stdin.close()
            gdb.wait(20)
        target.assert_parked()
        os.kill(target.pid, signal.SIGCONT)
        target.unlock()
        target.assert_runs()
