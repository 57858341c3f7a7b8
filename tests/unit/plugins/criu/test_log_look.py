# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log leaves open is looked up in /proc: real processes where they serve, else a tree of files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log import Decoded, decode
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_kinds import BY_ID
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.log_look import look, refused

THREAD = """import threading, time
one = threading.Thread(target=time.sleep, args=(60,), daemon=True)
one.start()
print(one.native_id, flush=True)
time.sleep(60)
"""
ZOMBIE = """import os, sys, time
child = os.fork()
if not child: os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(child, flush=True)
time.sleep(60)
"""
LEFT = """import os, time
leader = os.fork()
if not leader:
    os.setsid()
    if not os.fork():
        print(os.getsid(0), flush=True)
        time.sleep(60)
    os._exit(0)
os.waitpid(leader, 0)
time.sleep(60)
"""


@pytest.fixture
def start() -> Iterator[Callable[[str], tuple[int, int]]]:
    """Starts a program; its PID, and the number that it says. Its session and what it has left end with the test."""
    begun = []

    def one(code: str) -> tuple[int, int]:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        begun.append(process)
        assert process.stdout
        return process.pid, int(process.stdout.readline())

    yield one
    for process in begun:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def found(kind: str, pid: int | None, descriptor: int | None = None, **more: str) -> Decoded:
    known = BY_ID[kind]
    return Decoded(kind, "", known.reason, known.remedy, lines=("said",), pid=pid, descriptor=descriptor, **more)


def test_a_descriptor_is_named_by_its_file(tmp_path: Path) -> None:
    with (tmp_path / "nvidia0").open("w") as stream:
        number = stream.fileno()
        seen = look(found("device_file", os.getpid(), number))
    assert seen.lines == ("said", f"descriptor {number} is {tmp_path}/nvidia0")
    assert seen.path == f"{tmp_path}/nvidia0"


def test_an_io_uring_is_looked_for_among_the_descriptors(tmp_path: Path) -> None:
    place = tmp_path / "12/fd"
    place.mkdir(parents=True)
    for number, target in (("0", "/dev/null"), ("10", "anon_inode:[io_uring]"), ("9", "anon_inode:[eventfd]")):
        (place / number).symlink_to(target)
    assert look(found("io_uring", 12), str(tmp_path)).lines == ("said", "descriptor 10 is anon_inode:[io_uring]")


def test_who_has_a_pid(start: Callable[[str], tuple[int, int]]) -> None:
    pid, thread = start(THREAD)
    assert f"PID {pid} is python" in look(found("pid_in_use", pid)).lines[-1]
    assert f"{thread} is a thread (python" in look(found("pid_in_use", thread)).lines[-1]
    assert f"of PID {pid} (python" in look(found("pid_in_use", thread)).lines[-1]


def test_a_zombie_has_a_pid_and_a_parent(start: Callable[[str], tuple[int, int]]) -> None:
    parent, zombie = start(ZOMBIE)
    said = look(found("pid_in_use", zombie)).lines[-1]
    assert f"PID {zombie} is a zombie" in said and f"its parent, PID {parent}, has not reaped" in said
    assert "it is a zombie" in look(found("cannot_trace", zombie)).lines[-1]


def test_a_session_without_its_leader_has_a_pid(start: Callable[[str], tuple[int, int]]) -> None:
    _parent, session = start(LEFT)
    end = time.monotonic() + 10
    while os.path.exists(f"/proc/{session}"):
        assert time.monotonic() < end
        time.sleep(0.01)
    said = look(found("pid_in_use", session)).lines[-1]
    try:
        assert said.startswith(f"a process group or session goes by {session}: PID ") and "(python" in said
    finally:
        os.killpg(session, 9)


def test_nobody_has_it_any_more(tmp_path: Path) -> None:
    assert look(found("pid_in_use", 12), str(tmp_path)).lines == ("said", "nobody has 12 now")


def test_who_traces_it(tmp_path: Path) -> None:
    for pid, text in ((12, "Name:\ttrainer\nState:\tS (sleeping)\nTracerPid:\t13\n"), (13, "Name:\tgdb\n")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(text)
    assert look(found("cannot_trace", 12), str(tmp_path)).lines == ("said", "PID 13 (gdb) traces it")


def test_where_a_thread_waits(tmp_path: Path) -> None:
    for thread, state in ((12, "S (sleeping)"), (14, "D (disk sleep)"), (13, "D (disk sleep)")):
        place = tmp_path / f"12/task/{thread}"
        place.mkdir(parents=True)
        (place / "status").write_text(f"State:\t{state}\n")
        (place / "wchan").write_text("kernel_clone" if thread == 13 else "0")
    assert look(found("timeout", 12), str(tmp_path)).lines == (
        "said",
        "thread 13 waits in the kernel (kernel_clone)",
        "thread 14 waits in the kernel",
    )


def test_what_cannot_be_seen_is_left_out() -> None:
    for kind in BY_ID:
        one = found(kind, None)
        assert look(one) == one
    assert look(found("device_file", 2**22 + 5, 3)).lines == ("said",)


def test_names_from_outside_can_stand_in_a_message(tmp_path: Path) -> None:
    place = tmp_path / "12/fd"
    place.mkdir(parents=True)
    (place / "3").symlink_to("/dev/\x1b[31m\n")
    assert all(line.isprintable() for line in look(found("device_file", 12, 3), str(tmp_path)).lines)


def test_a_refusal_is_one_text_for_the_operator(tmp_path: Path) -> None:
    log = "(00.1)   12: Error (criu/files-reg.c:2175): File data/a has bad size 1 (expect 2)\n"
    error = refused(log, "restore", "job 7", 1, proc=str(tmp_path))
    assert str(error).startswith("/data/a: File data/a has bad size 1 (expect 2). A file that the tree has open")
    assert (error.subject, error.option) == ("/data/a", "")
    kind = BY_ID[decode(log, "restore").kind]
    assert (error.reason, error.remedy) == (kind.reason, kind.remedy)


@pytest.mark.parametrize(("blocks", "nodes", "full"), [(0, 9, True), (255, 9, True), (256, 9, False), (9999, 0, True)])
def test_a_log_that_stops_on_a_full_disk_says_so(
    monkeypatch: pytest.MonkeyPatch, blocks: int, nodes: int, full: bool
) -> None:
    room = os.statvfs_result((4096, 4096, 10**6, blocks, blocks, 99, nodes, nodes, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _place: room)
    log = "(00.1) Dumping task (pid: 12 comm: trainer)\n(00.2) Dumping pages"
    error = refused(log, "dump", "job 7", 1, "/images")
    assert (error.reason == BY_ID["no_space"].reason) is full
    assert ("/images has no room left" in error.evidence) is full and "Dumping pages" in error.evidence
    known = refused(log + "\n(00.3) Error (criu/a.c:1): The moon is full\n", "dump", "job 7", 1, "/images")
    assert known.evidence == "The moon is full"


@pytest.mark.parametrize(("status", "words"), [(None, "it has not ended"), (1, "it ended with status 1")])
def test_without_a_log_the_status_is_told(status: int | None, words: str) -> None:
    assert f"job 7: criu dump: {words}." in str(refused("", "dump", "job 7", status))
