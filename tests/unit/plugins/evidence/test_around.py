# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lies around a process: the kernel's texts, and a process of this machine with known surroundings."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _around_parse as parse
from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around import Around, Ties, from_plain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around_read import look_around
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_host
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import list_processes
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._sockets import TcpSocket

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw
24 22 0:44 / /data\040sets rw - nfs4 server:/x rw,vers=4.2
25 22 0:45 / /run rw - tmpfs tmpfs rw
26 25 8:2 / /run rw - xfs /dev/sdb rw
broken
"""


def test_descriptors_flags_mount_and_locks() -> None:
    text = (
        "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t7\nlock:\t1: FLOCK  ADVISORY  WRITE 12 00:2c:7 0 EOF\n"
        "lock:\t1: -> POSIX  ADVISORY  READ 13 00:2c:7 0 EOF\n"
    )
    found = parse.parse_fdinfo(text)
    assert found.flags & os.O_ACCMODE == os.O_RDWR and found.mount == 24
    assert found.locks == ("FLOCK WRITE",), "who waits for a lock does not hold it"
    assert parse.parse_fdinfo("") == parse.FdInfo()


def test_mounts_by_id_and_by_the_longest_point_above() -> None:
    mounts = parse.parse_mounts(MOUNTS)
    assert mounts.by_id(24) == "nfs4" and mounts.by_id(99) == ""
    assert [mounts.by_path(path) for path in ("/data sets/a", "/data", "/dev/shm/x", "/dev/shmx", "/run/x")] == [
        "nfs4",
        "ext4",
        "tmpfs",
        "ext4",
        "xfs",
    ]


@pytest.mark.parametrize(
    ("kind", "network", "volatile"),
    [
        ("nfs", True, False),
        ("nfs4", True, False),
        ("fuse.sshfs", True, False),
        ("lustre", True, False),
        ("nfsd", False, False),
        ("fuse.lxcfs", False, False),
        ("fuseblk", False, False),
        ("tmpfs", False, True),
        ("ramfs", False, True),
        ("ext4", False, False),
        ("overlay", False, False),
        ("", False, False),
    ],
)
def test_kinds_of_file_systems(kind: str, network: bool, volatile: bool) -> None:
    assert parse.is_network(kind) is network and parse.is_volatile(kind) is volatile


@pytest.mark.parametrize(
    ("path", "before"),
    [
        ("/var/log/a.log.1", "/var/log/a.log"),
        ("/var/log/a.log-20261130", "/var/log/a.log"),
        ("/var/log/a.old", "/var/log/a"),
        ("/var/log/a.log", ""),
        ("/lib/libx.so.1", ""),
        ("/data/model-v2", ""),
        ("/data/x.12345", ""),
    ],
)
def test_names_of_rotated_logs(path: str, before: str) -> None:
    assert parse.rotated_from(path) == before


def test_the_tree_below_a_process() -> None:
    parents = {1: 0, 5: 1, 6: 5, 9: 6, 7: 5, 8: 1}
    assert parse.descendants(5, parents) == (5, 6, 7, 9)
    assert parse.descendants(4, parents) == ()
    assert parse.descendants(5, {5: 9, 9: 5}) == (5, 9)


def test_mapped_files_without_a_name() -> None:
    maps = (
        "7f0000000000-7f0000200000 r-xp 00000000 08:01 12   /usr/lib/libx.so.1 (deleted)\n"
        "7f0000200000-7f0000201000 rw-p 00200000 08:01 12   /usr/lib/libx.so.1 (deleted)\n"
        "7f0000300000-7f0000301000 rw-s 00000000 00:01 13   /dev/zero (deleted)\n"
        "7f0000400000-7f0000401000 rw-s 00000000 00:01 14   /memfd:x (deleted)\n"
        "7f0000500000-7f0000501000 r--p 00000000 08:01 15   /usr/lib/liby.so\n"
        "7f0000600000-7f0000601000 rw-s 00000000 00:16 16   /dev/shm/torch (deleted)\n"
    )
    assert parse.deleted_mappings(maps) == (("/dev/shm/torch", 0x1000), ("/usr/lib/libx.so.1", 0x201000))
    odd = "7f0000500000-7f0000501000 r--p 00000000 08:01 15   /tmp/x\x0b /y (deleted)\n"
    assert parse.deleted_mappings(odd) == (("/tmp/x\x0b /y", 0x1000),)


def test_connections_that_leave_the_tree() -> None:
    table = {
        1: TcpSocket(1, 1, ("127.0.0.1", 80), ("127.0.0.1", 4000)),
        2: TcpSocket(2, 1, ("127.0.0.1", 4000), ("127.0.0.1", 80)),
        3: TcpSocket(3, 10, ("0.0.0.0", 80), ("0.0.0.0", 0)),
        4: TcpSocket(4, 8, ("10.0.0.1", 80), ("10.0.0.2", 4000)),
    }
    assert parse.external_connections(table, [1, 2, 3]) == ()
    assert parse.external_connections(table, [1]) == ("127.0.0.1:80 to 127.0.0.1:4000 on this host",)
    assert parse.external_connections(table, [3, 4, 99]) == ("10.0.0.1:80 to 10.0.0.2:4000",)


def around(pid: int, action: str = "dump") -> Snapshot:
    return look_around(Snapshot(read_host(), (), list_processes([pid])), [pid], action)


def ties(pid: int) -> Ties:
    (found,) = around(pid).around or ()
    assert found.ties is not None and not found.ties.unseen
    return found.ties


CHILD = "import os, sys, time\nif os.fork() == 0: time.sleep(60)\nprint('ready', flush=True)\ntime.sleep(60)"


def test_a_process_with_known_surroundings(tmp_path: Path) -> None:
    locked, gone = tmp_path / "locked", tmp_path / "gone"
    with locked.open("wb") as lock, gone.open("wb+") as unlinked, socket.create_server(("127.0.0.1", 0)) as server:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlinked.write(b"x" * 5000)
        unlinked.flush()
        gone.unlink()
        ours, theirs = socket.socketpair()
        client = socket.create_connection(server.getsockname())
        kept = [one.fileno() for one in (lock, unlinked, server, theirs, client)]
        listens_and_connects = server.fileno(), client.fileno()
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", CHILD], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=kept
        )
        found = Ties(())
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            theirs.close()
            client.close()
            found = ties(child.pid)
        finally:
            for member in found.members[::-1]:
                os.kill(member.pid, 9)
            child.communicate()
            ours.close()
    assert len(found.members) == 2 and found.members[1].parent == child.pid
    files = {one.path: one for one in found.files if one.pid == child.pid}
    assert files[str(locked)].locks == ("FLOCK WRITE",) and files[str(locked)].writable
    assert files[str(gone)].deleted and files[str(gone)].size == 5000 and files[str(gone)].links == 0
    assert any(one.what == "working directory" for one in found.files)
    assert any(one.what == "program" for one in found.files)
    (pipe,) = found.pipes
    assert pipe.writes and pipe.descriptor == 1 and any(f"PID {os.getpid()} " in holder for holder in pipe.holders)
    assert len(found.unix_ends or ()) == 1
    assert len(found.connections) == 1 and found.connections[0].endswith("on this host")
    assert found.journal == () and found.io_uring == ()
    assert {(one.pid, one.protocol) for one in found.sockets or ()} == {(child.pid, "TCP")}
    assert sorted(one.descriptor for one in found.sockets or ()) == sorted(listens_and_connects)


KINDS = {
    "TCP": (socket.AF_INET, socket.SOCK_STREAM),
    "UDPv6": (socket.AF_INET6, socket.SOCK_DGRAM),
    "": (socket.AF_NETLINK, socket.SOCK_RAW),
}


@pytest.mark.parametrize("protocol", KINDS)
def test_a_socket_that_no_table_lists_is_seen(protocol: str) -> None:
    """Neither bound nor connected: the kernel has it in none of its files."""
    try:
        one = socket.socket(*KINDS[protocol])
    except OSError as error:
        pytest.skip(f"this host has no such socket: {error}")
    with one:
        seen = {(each.descriptor, each.protocol) for each in ties(os.getpid()).sockets or ()}
        assert ((one.fileno(), protocol) in seen) is bool(protocol)
        assert one.fileno() in {number for number, _protocol in seen} or not protocol


def test_only_what_an_action_needs_is_read_and_nothing_twice() -> None:
    pid = os.getpid()
    assert around(pid, "resume").around is None
    first = around(pid, "suspend")
    (seen,) = first.around or ()
    assert seen.ties is None and seen.parent is not None and seen.private_mounts is False
    assert look_around(first, [pid], "suspend").around == first.around
    (more,) = look_around(first, [pid], "dump").around or ()
    assert more.ties is not None and more.ties.members[0].pid == pid


def test_a_process_that_has_ended_is_left_out() -> None:
    child = subprocess.Popen(["sleep", "60"])
    snapshot = Snapshot(read_host(), (), list_processes([child.pid]))
    child.kill()
    child.wait()
    assert look_around(snapshot, [child.pid], "dump").around == ()


def test_it_survives_json() -> None:
    snapshot = around(os.getpid())
    data = json.loads(json.dumps(_snapshot.to_data(snapshot)))
    assert _snapshot.from_data(data) == snapshot
    (one,) = snapshot.around or ()
    assert from_plain(Around, json.loads(json.dumps(asdict(one)))) == one
