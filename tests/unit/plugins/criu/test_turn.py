# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One after the other, and nobody waits for ever."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import List

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.turn import in_turn


def test_never_two_at_once(tmp_path: Path) -> None:
    inside: List[int] = []
    most: List[int] = []

    def work() -> None:
        with in_turn(str(tmp_path / "lock")) as mine:
            assert mine
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _number in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert most == [1] * 6


def test_who_hangs_is_not_waited_for_and_who_dies_lets_go(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with in_turn(path):
            os.write(tell, b"x")
            time.sleep(60)
        os._exit(0)
    os.read(told, 1)
    with in_turn(path, 0.1) as mine:
        assert not mine
    os.kill(child, 9)
    os.waitpid(child, 0)
    with in_turn(path, 5) as mine:
        assert mine
    assert os.stat(path).st_mode & 0o777 == 0o600
    os.close(told)
    os.close(tell)
