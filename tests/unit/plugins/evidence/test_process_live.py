# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real processes of this machine, without a GPU."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from typing import Callable, Iterator, List

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _process, _process_read
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import parse_stat

#: The main thread ends, another one lives on: what pthread_exit leaves.
ENDED_MAIN_THREAD = """
    import ctypes, threading, time
    threading.Thread(target=time.sleep, args=(60,), name="other").start()
    print("up", flush=True)
    ctypes.CDLL(None).syscall({number}, 0)
"""
SYS_EXIT = {"x86_64": 60, "aarch64": 93}


def until(reached: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "not reached in time"
        time.sleep(0.01)


@pytest.fixture
def processes() -> Iterator[List[subprocess.Popen[bytes]]]:
    started: List[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        one.kill()
        one.wait()


def python(started: List[subprocess.Popen[bytes]], code: str, **how: object) -> subprocess.Popen[bytes]:
    """Started, and past its first line of output."""
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    one = subprocess.Popen(argv, stdout=subprocess.PIPE, **how)  # type: ignore[call-overload]
    started.append(one)
    assert one.stdout.readline() == b"up\n"
    return one  # type: ignore[no-any-return]


def test_itself() -> None:
    seen = _process.read_process(os.getpid())
    assert seen is not None
    assert seen.identity == _process.read_identity(os.getpid())
    assert (seen.parent, seen.group, seen.session) == (os.getppid(), os.getpgrp(), os.getsid(0))
    assert (seen.uid, seen.gid) == (os.getuid(), os.getgid())
    assert seen.pids_in_namespaces[0] == os.getpid()
    assert os.path.realpath(sys.executable) == seen.executable
    assert seen.rss_anon_bytes > 1 << 20 and seen.virtual_bytes >= seen.data_bytes > 0
    assert not seen.is_thread and not seen.is_zombie and seen.frozen is not True
    assert (seen.may_be_cuda, seen.has_devices, seen.looks_suspended) == (False, False, False)
    assert seen.unreadable == ()
    assert any(thread.tid == os.getpid() for thread in seen.threads)


def test_identity_ends_with_the_process(processes: List[subprocess.Popen[bytes]]) -> None:
    one = subprocess.Popen(["sleep", "60"])
    processes.append(one)
    identity = _process.read_identity(one.pid)
    assert identity is not None and _process.is_alive(identity)
    later = _process.Identity(one.pid, identity.start_ticks + 1, identity.boot_id)
    assert not _process.is_alive(later), "a reused PID is another process"
    other_boot = _process.Identity(one.pid, identity.start_ticks, "0" * 36)
    assert not _process.is_alive(other_boot)
    one.kill()
    until(lambda: _process.task_state(one.pid, one.pid) == "Z")
    assert _process.read_identity(one.pid) == identity, "a zombie still has its identity"
    assert not _process.is_alive(identity)
    zombie = _process.read_process(one.pid)
    assert zombie is not None and zombie.is_zombie and zombie.device_files == () and zombie.unreadable == ()
    one.wait()
    assert _process.read_identity(one.pid) is None
    assert _process.read_process(one.pid) is None
    assert _process.task_state(one.pid, one.pid) == ""
    assert _process.thread_group(one.pid) is None


@pytest.mark.parametrize("pid", [0, -1])
def test_numbers_that_are_no_process(pid: int) -> None:
    assert _process.read_identity(pid) is None
    assert not _process.is_alive(_process.Identity(pid, 0, ""))


def test_a_thread_is_told_from_a_process(processes: List[subprocess.Popen[bytes]]) -> None:
    code = """
        import threading, time
        threading.Thread(target=time.sleep, args=(60,)).start()
        print("up", flush=True)
    """
    one = python(processes, code)
    until(lambda: len(os.listdir(f"/proc/{one.pid}/task")) == 2)
    tid = next(int(name) for name in os.listdir(f"/proc/{one.pid}/task") if int(name) != one.pid)
    assert _process.thread_group(tid) == one.pid
    assert _process.thread_group(one.pid) == one.pid
    seen = _process.read_process(tid)
    assert seen is not None and seen.is_thread and seen.thread_group == one.pid
    assert [found.is_thread for found in _process.list_processes([tid]) if found.pid == tid] == [True]
    assert _process.restore_thread_id(one.pid, tid) == tid
    assert _process.restore_thread_id(one.pid, os.getpid()) is None


@pytest.mark.parametrize(
    "tid, expected",
    [
        (502, 502),  # the reader's own number
        (2, 502),  # the number in the namespace
        (500, 500),  # the reader's number of one thread, inside that of another: the one that CUDA named
        (9, None),
    ],
)
def test_the_restore_thread_of_a_process_in_a_pid_namespace(
    monkeypatch: pytest.MonkeyPatch, tid: int, expected: object
) -> None:
    inside = {499: 500, 500: 1, 501: 7, 502: 2}
    names = {499: "python3", 500: "cuda00001400006", 501: "python3", 502: "cuda-EvtHandlr"}

    def text(path: str) -> str:
        task = int(path.split("/")[-2])
        return f"NSpid:\t{task}\t{inside[task]}\n"

    def stat(path: str) -> object:
        task = int(path.split("/")[-2])
        return parse_stat(f"{task} ({names[task]}) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 4 0 7 0")

    monkeypatch.setattr(_process, "tasks_of", lambda _pid: tuple(inside))
    monkeypatch.setattr(_process, "read_text", text)
    monkeypatch.setattr(_process, "read_stat", stat)
    assert _process.restore_thread_id(499, tid) == expected


@pytest.mark.skipif(os.uname().machine not in SYS_EXIT, reason="the number of the system call is not known here")
def test_a_process_whose_main_thread_has_ended_is_no_zombie(processes: List[subprocess.Popen[bytes]]) -> None:
    one = python(processes, ENDED_MAIN_THREAD.format(number=SYS_EXIT[os.uname().machine]))
    until(lambda: _process.task_state(one.pid, one.pid) == "Z")
    identity = _process.read_identity(one.pid)
    assert identity is not None and _process.is_alive(identity)
    seen = _process.read_process(one.pid)
    assert seen is not None and not seen.is_zombie
    assert seen.state in "RS" and seen.executable and seen.command[1] == "-c"
    assert seen.device_files == () and seen.unreadable == ()
    assert [found.pid for found in _process.list_processes([one.pid]) if found.pid == one.pid] == [one.pid]


def test_a_pid_that_is_used_again_while_it_is_read_is_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _process_read.read_stat

    def another(path: str) -> object:
        stat = real(path)
        return None if stat is None else replace(stat, start_ticks=stat.start_ticks + 1)

    monkeypatch.setattr(_process_read, "read_stat", another)
    assert _process.read_process(os.getpid()) is None


def test_stopped_and_pending_signals(processes: List[subprocess.Popen[bytes]]) -> None:
    one = python(processes, "import time; print('up', flush=True); time.sleep(60)")
    os.kill(one.pid, signal.SIGSTOP)
    until(lambda: _process.task_state(one.pid, one.pid) == "T")
    os.kill(one.pid, signal.SIGTERM)
    seen = _process.read_process(one.pid)
    assert seen is not None and seen.state == "T"
    assert seen.pending_signals == 1 << (signal.SIGTERM - 1)


def test_limits_and_environment(processes: List[subprocess.Popen[bytes]]) -> None:
    code = """
        import resource, time
        resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
        print("up", flush=True); time.sleep(60)
    """
    one = python(processes, code, env={"PATH": "/usr/bin:/bin", "WORLD_SIZE": "2", "PASSWORD": "secret"})
    seen = _process.read_process(one.pid)
    assert seen is not None
    assert seen.data_limit_bytes == 1 << 30
    assert seen.environment == {"WORLD_SIZE": "2"}
    assert "secret" not in repr(seen)


CONNECTS = """
    import socket, sys, time
    sockets = [socket.create_connection(("127.0.0.1", {port})), socket.socket(socket.AF_UNIX)]
    sockets[1].connect("\\0" + "{name}")
    print("up", flush=True); time.sleep(60)
"""


def test_who_is_connected_to_whom(processes: List[subprocess.Popen[bytes]]) -> None:
    name = f"gpufleet-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + name)
        unix.listen()
        one = python(processes, CONNECTS.format(port=tcp.getsockname()[1], name=name))
        accepted = [tcp.accept()[0], unix.accept()[0]]
        seen = {found.pid: found for found in _process.list_processes([one.pid, os.getpid()])}
        for end in accepted:
            end.close()
    client, server = seen[one.pid], seen[os.getpid()]
    assert client.tcp_peers == (os.getpid(),) and one.pid in (server.tcp_peers or ())
    assert client.tcp_remote == (), "the other end is on this host"
    assert server.unix_names is not None and f"@{name}" in server.unix_names
    if client.unix_peers is not None:  # the kernel's unix_diag may be missing
        assert os.getpid() in {pid for pid, _name in client.unix_peers}
        assert client.unix_peer_names == (f"@{name}",)


def test_only_what_may_be_cuda_is_looked_into(
    monkeypatch: pytest.MonkeyPatch, processes: List[subprocess.Popen[bytes]]
) -> None:
    """With hundreds of processes, reading every descriptor would take seconds."""
    one = subprocess.Popen(["sleep", "60"])
    processes.append(one)
    real, asked = os.listdir, []

    def listdir(path: str) -> List[str]:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    found = _process.list_processes([one.pid])
    assert [seen.pid for seen in found if seen.pid == one.pid] == [one.pid]
    assert f"/proc/{one.pid}/fd" in asked
    looked_into = {path for path in asked if path.endswith("/fd")}
    everybody = {path for path in real("/proc") if path.isdigit()}
    assert len(looked_into) < len(everybody)
    assert f"/proc/{os.getpid()}/fd" not in looked_into


def test_what_may_not_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an ordinary user and somebody else's process."""
    real_open, real_list, real_link = os.open, os.listdir, os.readlink
    hidden = tuple(f"/proc/{os.getpid()}/{name}" for name in ("maps", "environ", "fd", "exe", "ns/net"))

    def refuse(path: object) -> None:
        if str(path).startswith(hidden):
            raise PermissionError(13, "Permission denied", str(path))

    def opened(path: str, flags: int) -> int:
        refuse(path)
        return real_open(path, flags)

    def listed(path: str) -> List[str]:
        refuse(path)
        return real_list(path)

    def linked(path: str) -> str:
        refuse(path)
        return real_link(path)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "listdir", listed)
    monkeypatch.setattr(os, "readlink", linked)
    seen = _process.read_process(os.getpid())
    assert seen is not None
    assert set(seen.unreadable) == {"executable", "environment", "mappings", "descriptors"}
    assert seen.device_files is None and seen.device_mappings is None and seen.libraries is None
    assert seen.unix_names is None and seen.tcp_peers is None and seen.environment is None
    assert seen.has_devices is None, "nobody may take what can't be seen for nothing"
    assert seen.may_be_cuda is None
    assert seen.uvm_socket is False, "CUDA's socket carries the PID, so that everybody can see it"
