# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sockets: names of unix sockets, ends of TCP connections, and which unix sockets are connected to which.

Tables belong to a network namespace; each is read once. The kernel tells the peers of unix sockets (sock_diag) only of
the reader's own network namespace.
"""

from __future__ import annotations

import binascii
import os
import socket
import struct
from typing import Dict, Iterable, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import is_number, kernel_lines

ESTABLISHED, LISTEN = 1, 10
End = Tuple[str, int]

_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_SHOW_PEER, _ATTRIBUTE_PEER = 4, 2


@dataclass(frozen=True)
class TcpSocket:
    """One line of /proc/PID/net/tcp or tcp6. state: 1 established, 10 listening. Ends: (address, port)."""

    inode: int
    state: int
    local: End
    remote: End


def parse_unix(text: str) -> Dict[int, str]:
    """Inode -> name it is bound to, "" for none; "@" starts an abstract name, trailing NULs (shown as "@") dropped."""
    found = {}
    for line in kernel_lines(text)[1:]:
        parts = line.split(None, 7)
        if len(parts) >= 7 and is_number(parts[6]):
            name = parts[7] if len(parts) > 7 else ""
            found[int(parts[6])] = name.rstrip("@") if name.startswith("@") else name
    return found


def parse_end(text: str) -> End:
    """ "0100007F:1F90" -> ("127.0.0.1", 8080); a mapped IPv4 address is given as IPv4."""
    address, _separator, port = text.partition(":")
    data = binascii.unhexlify(address)
    words = struct.unpack(f"<{len(data) // 4}I", data)
    data = struct.pack(f">{len(words)}I", *words)
    if len(data) == 16 and data[:12] == b"\0" * 10 + b"\xff\xff":
        data = data[12:]
    family = socket.AF_INET if len(data) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, data), int(port, 16)


def parse_tcp(text: str) -> List[TcpSocket]:
    """/proc/PID/net/tcp or tcp6."""
    found = []
    for line in kernel_lines(text)[1:]:
        parts = line.split()
        if len(parts) >= 10 and is_number(parts[9]):
            found.append(TcpSocket(int(parts[9]), int(parts[3], 16), parse_end(parts[1]), parse_end(parts[2])))
    return found


def parse_unix_peers(data: bytes) -> Tuple[Dict[int, int], bool]:
    """Messages of sock_diag: inode -> inode of its peer, and whether this was the end. Raises OSError."""
    found: Dict[int, int] = {}
    position = 0
    while position + 16 <= len(data):
        length, kind, _flags, _sequence, _port = struct.unpack_from("=IHHII", data, position)
        if length < 16:
            break
        if kind == _DONE:
            return found, True
        if kind == _ERROR:
            number = -struct.unpack_from("=i", data, position + 16)[0]
            raise OSError(number, os.strerror(number))
        inode = struct.unpack_from("=I", data, position + 20)[0]
        at = position + 32
        while at + 4 <= position + length:
            size, name = struct.unpack_from("=HH", data, at)
            if size < 4:
                break
            if name == _ATTRIBUTE_PEER:
                found[inode] = struct.unpack_from("=I", data, at + 4)[0]
            at += (size + 3) & ~3
        position += (length + 3) & ~3
    return found, False


def read_unix_peers() -> Optional[Dict[int, int]]:
    """Inode -> inode of the connected peer, in the reader's network namespace; None where the kernel does not tell."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as link:
            link.settimeout(5)
            body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_PEER, 0, 0)
            link.send(struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
            found: Dict[int, int] = {}
            done = False
            while not done:
                some, done = parse_unix_peers(link.recv(1 << 18))
                found.update(some)
            return found
    except OSError:
        return None


@dataclass(frozen=True)
class Table:
    """Of one network namespace. unix_peers: None is unknown. tcp: see `SocketTables`."""

    namespace: str
    unix: Dict[int, str]
    tcp: Dict[int, TcpSocket]
    unix_peers: Optional[Dict[int, int]]


def _text(path: str) -> Optional[str]:
    try:
        with open(path, errors="replace") as stream:
            return stream.read()
    except OSError:
        return None


def namespace_of(directory: str) -> str:
    """The number of the network namespace of /proc/PID, "" where it may not be read."""
    try:
        return os.readlink(f"{directory}/ns/net").partition("[")[2].rstrip("]")
    except OSError:
        return ""


def _mark_of(directory: str) -> str:
    """Stands for a network namespace that may not be named: its tables are files of its own, with numbers of their
    own."""
    try:
        return f"tables {os.stat(directory + '/net/unix').st_ino}"
    except OSError:
        return directory


class SocketTables:
    """The tables of the processes that are asked for; each network namespace is read once.

    For a list of TCP connections the kernel walks a table that grows with the host's memory, so it is asked only once
    there is a process with a socket that is no unix socket: then for every namespace, as an end may be in any of them.
    """

    def __init__(self) -> None:
        self._own = namespace_of("/proc/self")
        self._known: Dict[str, Optional[Table]] = {}
        self._without_tcp: Dict[str, str] = {}
        self._tcp_wanted = False

    def of(self, directory: str, inodes: Iterable[int]) -> Optional[Table]:
        """directory: /proc/PID, or that of one of its threads. inodes: of its sockets. None: it may not be read, or the
        process is gone."""
        namespace = namespace_of(directory) or _mark_of(directory)
        if namespace not in self._known:
            self._known[namespace] = self._read(directory, namespace)
        table = self._known[namespace]
        if table is not None:
            if namespace in self._without_tcp:
                self._without_tcp[namespace] = directory  # the one before may have ended
            self._tcp_wanted = self._tcp_wanted or any(inode not in table.unix for inode in inodes)
        if self._tcp_wanted:
            for other in tuple(self._without_tcp):
                self._read_tcp(other)
        return table

    def _read(self, directory: str, namespace: str) -> Optional[Table]:
        unix = _text(f"{directory}/net/unix")
        if unix is None:
            return None
        self._without_tcp[namespace] = directory
        return Table(namespace, parse_unix(unix), {}, read_unix_peers() if namespace == self._own else None)

    def _read_tcp(self, namespace: str) -> None:
        """Left for the next process of that namespace where this one has ended."""
        table, directory = self._known[namespace], self._without_tcp[namespace]
        texts = [_text(f"{directory}/net/{name}") for name in ("tcp", "tcp6")]
        if table is None or (None in texts and not os.path.exists(directory)):
            return
        for text in texts:
            table.tcp.update((one.inode, one) for one in parse_tcp(text or ""))
        del self._without_tcp[namespace]
