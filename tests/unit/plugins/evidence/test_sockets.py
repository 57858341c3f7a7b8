# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of sockets, and who is connected to whom."""

from __future__ import annotations

import errno
import os
import socket
import struct

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _peers, _sockets
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._sockets import TcpSocket

UNIX = """\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 29709 @cuda-uvmfd-4026531836-590@
0000000000000000: 00000003 00000000 00000000 0001 03 29710 /run/my dir/control
0000000000000000: 00000003 00000000 00000000 0005 03 29711
"""
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:9C40 0200000A:C350 01 00000000:00000000 00:00000000 00000000     0        0 777
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 778
"""
TCP6 = """\
  sl  local_address                         remote_address                        st ...
   0: 0000000000000000FFFF00000100000A:1F90 0000000000000000FFFF00000200000A:C351 01 0:0 0:0 0 0 0 779
"""


def test_unix_names() -> None:
    assert _sockets.parse_unix(UNIX) == {29709: "@cuda-uvmfd-4026531836-590", 29710: "/run/my dir/control", 29711: ""}


@pytest.mark.parametrize(
    "name", ["@x\na b c d e f \xb2 g", "@\x0ba b c d e f 29709 forged", "@\u2028a b c d e f 29709 forged"]
)
def test_a_socket_may_have_any_name(name: str) -> None:
    """An abstract name has whatever bytes its owner likes, and anybody may own one."""
    line = f"0000000000000000: 00000002 00000000 00010000 0001 01 29712 {name}\n"
    found = _sockets.parse_unix(UNIX + line)
    assert found is not None and found[29709] == "@cuda-uvmfd-4026531836-590"


def test_tcp() -> None:
    first, second = _sockets.parse_tcp(TCP)
    assert first == TcpSocket(777, _sockets.ESTABLISHED, ("127.0.0.1", 40000), ("10.0.0.2", 50000))
    assert second == TcpSocket(778, _sockets.LISTEN, ("0.0.0.0", 22), ("0.0.0.0", 0))


def test_tcp6_gives_mapped_addresses_as_ipv4() -> None:
    (found,) = _sockets.parse_tcp(TCP6)
    assert found.local == ("10.0.0.1", 8080) and found.remote == ("10.0.0.2", 50001)
    assert _sockets.parse_end("B80D0120000000000000000001000000:0016") == ("2001:db8::1", 22)


def message(inode: int, peer: int, name: bytes = b"") -> bytes:
    body = struct.pack("=BBBBIII", socket.AF_UNIX, 1, 1, 0, inode, 0, 0) + struct.pack("=HHI", 8, 2, peer)
    if name:
        body += struct.pack("=HH", 4 + len(name), 0) + name + b"\0" * (-len(name) % 4)
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


def test_names_and_peers_out_of_the_kernels_messages() -> None:
    done = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)
    found = _sockets.UnixSockets({}, {})
    assert not _sockets.parse_unix_messages(message(5, 6, b"\0cuda-uvmfd-1-2\0\0") + message(6, 5), found)
    assert _sockets.parse_unix_messages(message(7, 8, b"/run/my\ndir\0") + done, found)
    assert found.names == {5: "@cuda-uvmfd-1-2", 6: "", 7: "/run/my\ndir"}
    assert found.peers == {5: 6, 6: 5, 7: 8}


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -errno.ENOENT), errno.ENOENT),
        (message(5, 6)[:-4], errno.EBADMSG),
        (struct.pack("=IHHII", 16, 20, 0, 1, 0), errno.EBADMSG),
    ],
)
def test_messages_that_tell_nothing(data: bytes, number: int) -> None:
    with pytest.raises(OSError) as caught:
        _sockets.parse_unix_messages(data, _sockets.UnixSockets({}, {}))
    assert caught.value.errno == number


def test_sockets_of_this_machine() -> None:
    if _sockets.read_unix_sockets() is None:
        pytest.skip("this kernel does not tell unix sockets through sock_diag")
    one, other = socket.socketpair()
    with one, other, socket.socket(socket.AF_UNIX) as named:
        name = f"gpufleet-test-{os.getpid()}"
        named.bind("\0" + name)
        found = _sockets.read_unix_sockets()
        assert found is not None
        inodes = [os.fstat(end.fileno()).st_ino for end in (one, other)]
        assert found.peers[inodes[0]] == inodes[1] and found.peers[inodes[1]] == inodes[0]
        assert found.names[inodes[0]] == "" and found.names[os.fstat(named.fileno()).st_ino] == f"@{name}"


def table(namespace: str, *sockets: TcpSocket, peers: "dict[int, int] | None" = None) -> _sockets.Table:
    return _sockets.Table(namespace, {1: "", 2: "/run/mps/control"}, {one.inode: one for one in sockets}, peers)


def link(inode: int, local: _sockets.End, remote: _sockets.End, state: int = _sockets.ESTABLISHED) -> TcpSocket:
    return TcpSocket(inode, state, local, remote)


A, B = ("127.0.0.1", 40001), ("127.0.0.1", 40002)


def test_loopback_is_each_network_namespaces_own() -> None:
    here = table("1", link(10, A, B), link(11, B, A))
    there = table("2", link(20, A, B))
    found = _peers.find_peers(
        [
            _peers.Holder(100, "a", (10,), here),
            _peers.Holder(101, "b", (11,), here),
            _peers.Holder(102, "c", (20,), there),
        ]
    )
    assert found[100].tcp == (101,) and found[101].tcp == (100,)
    assert found[102].tcp == () and found[102].remote == ()


def test_other_namespace_by_its_address_and_other_host() -> None:
    one, other, far = ("10.1.0.1", 41000), ("10.1.0.2", 42000), ("10.9.9.9", 43000)
    found = _peers.find_peers(
        [
            _peers.Holder(100, "a", (10, 12, 13), table("1", link(10, one, other), link(12, one, far))),
            _peers.Holder(101, "b", (20,), table("2", link(20, other, one))),
        ]
    )
    assert found[100].tcp == (101,) and found[101].tcp == (100,)
    assert found[100].remote == ("41000 10.9.9.9:43000",) and found[101].remote == ()


def test_connected_to_itself_and_listening_is_nobody() -> None:
    own = table("1", link(10, A, B), link(11, B, A), link(12, A, ("0.0.0.0", 0), _sockets.LISTEN))
    found = _peers.find_peers([_peers.Holder(100, "a", (10, 11, 12), own)])
    assert found[100].tcp == () and found[100].remote == ()


def test_unix_peers_and_their_names() -> None:
    shared = table("1", peers={1: 2, 2: 1})
    found = _peers.find_peers([_peers.Holder(100, "client", (1,), shared), _peers.Holder(101, "mps", (2,), shared)])
    assert found[100].unix == ((101, "mps"),) and found[100].unix_names == ("/run/mps/control",)
    assert found[101].unix == ((100, "client"),) and found[101].unix_names == ()
    unknown = _peers.find_peers([_peers.Holder(100, "client", (1,), table("1"))])
    assert unknown[100].unix is None and unknown[100].unix_names is None
    assert _peers.find_peers([_peers.Holder(100, "client", (1,), None)])[100] == _peers.UNKNOWN


def test_a_namespace_that_may_not_be_named_is_read_once_for_all_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an ordinary user meets it for every process of somebody else."""
    reads: list[str] = []
    read = _sockets._text

    def counted(path: str) -> str | None:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(_sockets, "namespace_of", lambda directory: "")
    monkeypatch.setattr(_sockets, "_text", counted)
    tables = _sockets.SocketTables()
    first, second = tables.of(f"/proc/{os.getpid()}", [1]), tables.of(f"/proc/{os.getppid()}", [1])
    assert first is second is not None
    assert len(reads) == len(set(reads)) == 3
    assert tables.of("/proc/self/nothing", ()) is None


class Namespaces:
    """/proc with processes in network namespaces: PID to namespace, and what their tables say. own: the reader's, of
    which the kernel tells the unix sockets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **namespaces: str) -> None:
        self.of = {f"/proc/{pid[1:]}": namespace for pid, namespace in namespaces.items()}
        self.reads: list[str] = []
        monkeypatch.setattr(_sockets, "namespace_of", lambda directory: self.of.get(directory, "own"))
        monkeypatch.setattr(_sockets, "_text", self.text)
        told = _sockets.UnixSockets({7: "@cuda-uvmfd-1-2"}, {})
        monkeypatch.setattr(_sockets, "read_unix_sockets", lambda: told)
        monkeypatch.setattr(os.path, "exists", lambda directory: directory in self.of)

    def text(self, path: str) -> str | None:
        self.reads.append(path)
        directory, _separator, name = path.partition("/net/")
        if directory not in self.of:
            return None
        if name == "unix":
            return "Num\n0000: 00000002 00000000 00010000 0001 01 7 @cuda-uvmfd-1-2\n"
        inode = {"own": 8, "b": 9}[self.of[directory]]
        line = "   0: 0100007F:1F90 0100007F:1F91 01 00000000:00000000 00:00000000 00000000     0        0"
        return f"  sl\n{line} {inode} 1\n" if name == "tcp" else "  sl\n"

    @property
    def tcp_reads(self) -> list[str]:
        return [path for path in self.reads if not path.endswith("unix")]


def test_connections_are_not_asked_for_where_nobody_can_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    proc = Namespaces(monkeypatch, p10="own", p11="own", p20="b")
    tables = _sockets.SocketTables()
    for directory, inodes in (("/proc/10", [7]), ("/proc/11", []), ("/proc/20", [])):
        table = tables.of(directory, inodes)
        assert table is not None and table.unix == {7: "@cuda-uvmfd-1-2"} and table.tcp == {}
    assert proc.tcp_reads == []


def test_one_process_with_another_socket_asks_for_every_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    proc = Namespaces(monkeypatch, p10="own", p11="own", p20="b")
    tables = _sockets.SocketTables()
    first = tables.of("/proc/10", [7])
    second = tables.of("/proc/20", [7, 9])
    assert first is not None and list(first.tcp) == [8]
    assert second is not None and list(second.tcp) == [9]
    assert tables.of("/proc/11", [8]) is first
    assert proc.tcp_reads == [f"/proc/{pid}/net/{name}" for pid in (10, 20) for name in ("tcp", "tcp6")]


def test_connections_are_read_of_another_process_where_the_first_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    proc = Namespaces(monkeypatch, p10="own", p11="own", p20="b")
    tables = _sockets.SocketTables()
    table = tables.of("/proc/10", [7])
    del proc.of["/proc/10"]
    tables.of("/proc/20", [9])
    assert table is not None and table.tcp == {}
    assert tables.of("/proc/11", [7]) is table
    assert list(table.tcp) == [8]
