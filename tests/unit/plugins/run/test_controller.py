# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which process is at work, and whether it still is."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import controller, hooks, notify
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.state import Refused


def test_a_process_is_alive_until_it_ends_and_its_pid_alone_is_not_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        one = controller.of_parent(child.pid)
        assert controller.alive(one) is True
        assert controller.alive(replace(one, start_ticks=one.start_ticks + 1)) is False
        assert controller.alive(replace(one, boot_id="another")) is False
        assert controller.alive(replace(one, host="another")) is None
        child.kill()
        # A zombie, until it is waited for.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert controller.alive(one) is False
    assert controller.alive(one) is False


def test_its_text_is_read_back() -> None:
    one = controller.of_parent(os.getpid())
    assert controller.parsed(controller.text(one)) == one
    for other in ("", "a b", "a b c", "a b x:1:boot"):
        assert controller.parsed(other) is None


def test_a_terminal_is_one() -> None:
    leader, follower = pty.openpty()
    try:
        for stream, expected in ((follower, True), (subprocess.DEVNULL, False), (subprocess.PIPE, False)):
            with subprocess.Popen(["sleep", "60"], stdin=stream) as child:
                try:
                    assert controller.has_terminal(child.pid) is expected
                finally:
                    child.kill()
    finally:
        os.close(leader)
        os.close(follower)


def test_hooks_are_found_from_the_working_directory_and_missed_before_anything_is_touched(tmp_path: Path) -> None:
    (tmp_path / "reboot.yml").touch()
    found = {"a": {"hooks": {"maintenance": "reboot.yml", "health": ""}}}
    assert hooks.resolve(found, str(tmp_path)) == {"reboot.yml": str(tmp_path / "reboot.yml")}
    absolute = str(tmp_path / "reboot.yml")
    assert hooks.resolve({"a": {"hooks": {"maintenance": absolute}}}, "/") == {absolute: absolute}
    with pytest.raises(Refused, match=f"gpu_drain_health_tasks: {tmp_path}/none.yml, meant for a, is no file"):
        hooks.resolve({"a": {"hooks": {"health": "none.yml"}}}, str(tmp_path))


def test_a_command_gets_the_event_and_its_failure_is_told(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    assert notify.notify(["sh", "-c", f"cat >{heard}"], {"event": "begin"}) == ""
    assert heard.read_text() == '{"event": "begin"}'
    assert notify.notify([], {}) == ""
    assert "status 3: no mail" in notify.notify(["sh", "-c", "echo no mail >&2; exit 3"], {})
    assert "can't be run" in notify.notify(["/no/such/command"], {})


def test_a_command_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "SECONDS", 0.2)
    assert "did not end within 0.2 s" in notify.notify(["sleep", "60"], {})
