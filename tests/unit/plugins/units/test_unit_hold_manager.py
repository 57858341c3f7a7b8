# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes to systemd, and what comes from it: real sockets and files, recorded words of systemctl."""

from __future__ import annotations

import array
import os
import socket
import struct
import threading
from pathlib import Path
from typing import List, Sequence, Tuple

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Said
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_manager import Manager
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import DROP_IN

Heard = List[Tuple[bytes, int]]


class Listener(threading.Thread):
    """Reads two messages as systemd does: who sent them; descriptors are closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.heard: Heard = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(path))
        self.start()

    def run(self) -> None:
        with self._socket:
            for _message in range(2):
                text, ancillary, _flags, _address = self._socket.recvmsg(4096, 4096)
                pid = 0
                for level, kind, data in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        for handle in array.array("i", data):
                            os.close(handle)
                    else:
                        pid = struct.unpack("3i", data[:12])[0]
                self.heard.append((text, pid))


def manager(directory: Path, *answers: Said) -> Tuple[Manager, List[List[str]]]:
    asked: List[List[str]] = []
    left = list(answers)

    def ask(argv: Sequence[str], limit: float) -> Said:
        asked.append(list(argv))
        return left.pop(0)

    return Manager(
        ask, units=str(directory / "units"), notify=str(directory / "notify"), lock=str(directory / "run" / "lock")
    ), asked


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may speak for another process")
def test_a_notification_is_in_the_name_of_the_service_and_has_been_read(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "notify")
    one, _asked = manager(tmp_path)
    assert one.tell(os.getppid(), "WATCHDOG=1", "WATCHDOG_USEC=7") == ""
    listener.join(10)
    assert [text for text, _pid in listener.heard] == [b"WATCHDOG=1\nWATCHDOG_USEC=7", b"BARRIER=1"]
    assert listener.heard[0][1] == os.getppid()


def test_without_a_socket_the_reason_is_told(tmp_path: Path) -> None:
    one, _asked = manager(tmp_path)
    assert one.tell(os.getpid(), "WATCHDOG=1") == f"{tmp_path}/notify: No such file or directory"


def test_units_are_asked_for_in_one_call(tmp_path: Path) -> None:
    answer = "Id=a.service\nLoadState=loaded\nMainPID=7\nWatchdogUSec=2s\n\nId=b.service\nLoadState=loaded\nMainPID=0\n"
    one, asked = manager(tmp_path, Said(0, answer))
    seen = one.services(["b.service", "a.service", "b.service"])
    assert (seen["a.service"].main_pid, seen["a.service"].watchdog_usec, seen["b.service"].main_pid) == (7, 2000000, 0)
    assert asked[0][:3] == ["systemctl", "show", "--no-pager"] and asked[0][-3:] == ["--", "a.service", "b.service"]
    assert one.services([]) == {} and len(asked) == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Said(None, problem="systemctl can't be started: No such file"), "can't be started"),
        (Said(1, err="Failed to connect to bus\n"), "Failed to connect to bus"),
        (Said(0, "Id=a.service\n"), "Id=a.service"),
        (Said(0), "systemctl says nothing"),
    ],
)
def test_what_systemctl_does_not_tell_is_unknown(tmp_path: Path, said: Said, words: str) -> None:
    one, _asked = manager(tmp_path, said)
    assert all(words in seen.problem for seen in one.services(["a.service", "b.service"]).values())


def test_a_reload_tells_why_it_failed(tmp_path: Path) -> None:
    one, asked = manager(tmp_path, Said(0), Said(1, err="Access denied\n"), Said(None, problem="no answer"), Said(4))
    assert [one.reload() for _time in range(4)] == [
        "",
        "systemctl daemon-reload: Access denied",
        "systemctl daemon-reload: no answer",
        "systemctl daemon-reload: exit status 4",
    ]
    assert asked[0] == ["systemctl", "daemon-reload"]


def test_a_drop_in_is_whole_and_goes_without_a_trace(tmp_path: Path) -> None:
    one, _asked = manager(tmp_path)
    name = "a@b\\x2dc.service"
    path = tmp_path / "units" / f"{name}.d" / DROP_IN
    before = os.umask(0o077)
    try:
        one.write(name, "[Service]\nRestart=no\n")
    finally:
        os.umask(before)
    assert one.drop_in(name) == path.read_text() == "[Service]\nRestart=no\n"
    assert path.stat().st_mode & 0o777 == 0o644 and list(path.parent.iterdir()) == [path]
    one.write(name, "")
    one.write(name, "")
    assert not path.parent.exists() and one.drop_in(name) == ""


def test_what_others_have_put_beside_it_stays(tmp_path: Path) -> None:
    one, _asked = manager(tmp_path)
    one.write("a.service", "x")
    theirs = tmp_path / "units" / "a.service.d" / "50-theirs.conf"
    theirs.write_text("y")
    one.write("a.service", "")
    assert list(theirs.parent.iterdir()) == [theirs]


@pytest.mark.parametrize("name", ["../a.service", "a/b.service", "a.socket", ""])
def test_what_is_no_service_is_not_written(tmp_path: Path, name: str) -> None:
    one, _asked = manager(tmp_path)
    with pytest.raises(ValueError, match="is no service"):
        one.write(name, "x")


def test_one_at_a_time(tmp_path: Path) -> None:
    one, _asked = manager(tmp_path)
    seen: List[str] = []

    def second() -> None:
        with one.alone():
            seen.append("second")

    with one.alone():
        other = threading.Thread(target=second)
        other.start()
        other.join(0.2)
        seen.append("first")
    other.join(10)
    assert seen == ["first", "second"]
