# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The spent mark: it is whole at any time, and tells who lives."""

import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fields import FieldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    RESTORING,
    SPENT,
    UNSPENT,
    Life,
    from_json,
    living,
    read_life,
    to_json,
    write_life,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from tests.unit.plugins.criu.images_made import BOOT

WHOLE = Life(
    SPENT, BOOT, "20261130T020145-7f3a9c", 1796000000.5, (Identity(4711, 100, BOOT), Identity(4712, 101, BOOT))
)


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    "life", [Life(), WHOLE, Life(RESTORING, BOOT, "r", 1.0), replace(WHOLE, init=Identity(9, 99, BOOT))]
)
def test_what_is_written_is_what_is_read(tmp_path: Path, life: Life) -> None:
    write_life(str(tmp_path), WHOLE)
    write_life(str(tmp_path), life)
    assert read_life(str(tmp_path)) == life
    assert os.listdir(tmp_path) == ["life.json"]
    assert os.stat(tmp_path / "life.json").st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "young"}, 'state is "young"; allowed: "unspent", "restoring", "spent"'),
        ({"state": None}, "state is null"),
        ({"at": "now"}, 'at is "now"'),
        ({"boot_id": "../x"}, 'boot_id is "../x"'),
        ({"run_id": "a\x1b"}, 'run_id is "a\\x1b"'),
        ({"members": 5}, "members is 5"),
        ({"members": [{"pid": 1}]}, "members[0].boot_id is missing"),
        ({"members": [{"pid": 0, "start_ticks": 1, "boot_id": ""}]}, "members[0].pid is 0"),
        ({"more": 1}, "more is there"),
        ({"init": None}, "init is null"),
        ({"init": {"pid": 1, "start_ticks": "1", "boot_id": BOOT}}, 'init.start_ticks is "1"'),
    ],
)
def test_what_was_never_written_is_refused_by_name(tmp_path: Path, change: dict[str, object], words: str) -> None:
    (tmp_path / "life.json").write_text(json.dumps({**json.loads(to_json(WHOLE)), **change}))
    with pytest.raises(FieldError) as field:
        from_json((tmp_path / "life.json").read_bytes())
    assert words in str(field.value)
    with pytest.raises(CriuError) as caught:
        read_life(str(tmp_path))
    assert words in caught.value.evidence and caught.value.subject == str(tmp_path / "life.json")
    assert "a second life could begin" in caught.value.reason and caught.value.remedy


def test_one_that_is_missing_is_not_taken_for_unspent(tmp_path: Path) -> None:
    with pytest.raises(CriuError, match="No such file"):
        read_life(str(tmp_path))


def test_killed_while_it_writes_it_leaves_the_one_or_the_other(tmp_path: Path) -> None:
    marks = [replace(WHOLE, run_id=str(number) * 200) for number in range(2)]
    write_life(str(tmp_path), marks[0])
    for delay in range(20):
        pid = os.fork()
        if not pid:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
            while True:
                for mark in marks:
                    write_life(str(tmp_path), mark)
        ctypes.CDLL(None).usleep(500 * (delay + 1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert read_life(str(tmp_path)) in marks


def test_who_lives(sleeper: "subprocess.Popen[bytes]") -> None:
    identity = read_identity(sleeper.pid)
    assert identity is not None
    others = (
        replace(identity, start_ticks=identity.start_ticks + 1),
        replace(identity, boot_id=BOOT),
    )
    life = replace(WHOLE, members=(others[0], identity, others[1]))
    assert living(life) == (identity,)
    assert living(Life(UNSPENT)) == ()
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert living(life) == (), "a zombie is not alive"
