# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sockets: names of unix sockets, ends of TCP connections, and which unix sockets are connected to which.

Tables belong to a network namespace; each is read once. The kernel tells names and peers of unix sockets through
sock_diag only of the reader's own network namespace. There the text of /proc/net/unix is not used: whoever names a
socket can put a line feed into the name, and behind it a line about a socket of somebody else.
"""

from __future__ import annotations

import binascii
import errno
import os
import re
import socket
import struct
from typing import Dict, Iterable, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, natural

ESTABLISHED, LISTEN = 1, 10
End = Tuple[str, int]

#: Pointer, four numbers, type, state, inode, name.
_UNIX = re.compile(
    r"[0-9A-Fa-f]{1,16}: [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{4} [0-9A-F]{2} +([0-9]{1,20})(?: (.*))?",
    re.DOTALL,
)
_END = re.compile(r"(?:[0-9A-F]{8}|[0-9A-F]{32}):[0-9A-F]{4}")
_STATE = re.compile(r"[0-9A-F]{2}")

_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_SHOW_NAME, _SHOW_PEER = 1, 4
_ATTRIBUTE_NAME, _ATTRIBUTE_PEER = 0, 2


@dataclass(frozen=True)
class TcpSocket:
    """One line of /proc/PID/net/tcp or tcp6. state: 1 established, 10 listening. Ends: (address, port)."""

    inode: int
    state: int
    local: End
    remote: End


def parse_unix(text: str) -> Optional[Dict[int, str]]:
    """Inode -> name it is bound to, "" for none; "@" starts an abstract name, trailing NULs (shown as "@") dropped.

    None: two names for one socket, so one of the lines is a part of another socket's name, and no line can be believed.
    A socket that is bound while the text is read can be there twice, without a name and with it."""
    found: Dict[int, str] = {}
    for line in kernel_lines(text)[1:]:
        parts = _UNIX.fullmatch(line)
        if parts is None:
            continue
        inode, name = int(parts.group(1)), parts.group(2) or ""
        name = name.rstrip("@") if name.startswith("@") else name
        before = found.get(inode, "")
        if before and name and before != name:
            return None
        found[inode] = name or before
    return found


def parse_end(text: str) -> End:
    """ "0100007F:1F90" -> ("127.0.0.1", 8080); a mapped IPv4 address is given as IPv4. ("?", 0) for what no kernel
    writes, which is nobody's end."""
    if _END.fullmatch(text) is None:
        return "?", 0
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
        inode = natural(parts[9]) if len(parts) >= 10 else None
        if inode is not None:
            state = int(parts[3], 16) if _STATE.fullmatch(parts[3]) else ESTABLISHED
            found.append(TcpSocket(inode, state, parse_end(parts[1]), parse_end(parts[2])))
    return found


@dataclass(frozen=True)
class UnixSockets:
    """names: as parse_unix(). peers: inode -> inode of the connected peer."""

    names: Dict[int, str]
    peers: Dict[int, int]


def parse_unix_messages(data: bytes, into: UnixSockets) -> bool:
    """Messages of sock_diag, added to `into`; whether this was the end. Raises OSError."""
    position = 0
    while position + 16 <= len(data):
        length, kind, _flags, _sequence, _port = struct.unpack_from("=IHHII", data, position)
        if kind == _DONE:
            return True
        if length < (20 if kind == _ERROR else 32) or position + length > len(data):
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        if kind == _ERROR:
            number = -struct.unpack_from("=i", data, position + 16)[0]
            raise OSError(number, os.strerror(number))
        _parse_unix_message(data[position : position + length], into)
        position += (length + 3) & ~3
    return False


def _parse_unix_message(data: bytes, into: UnixSockets) -> None:
    inode = struct.unpack_from("=I", data, 20)[0]
    into.names[inode] = ""
    at = 32
    while at + 4 <= len(data):
        size, attribute = struct.unpack_from("=HH", data, at)
        if size < 4:
            break
        value = data[at + 4 : at + size]
        if attribute == _ATTRIBUTE_PEER and len(value) >= 4:
            into.peers[inode] = struct.unpack_from("=I", value)[0]
        elif attribute == _ATTRIBUTE_NAME:
            into.names[inode] = _name(value)
        at += (size + 3) & ~3


def _name(address: bytes) -> str:
    """As in the text, with the zero bytes of an abstract name as "@"."""
    shown = address.rstrip(b"\0").replace(b"\0", b"@") if address[:1] == b"\0" else address.partition(b"\0")[0]
    return shown.decode(errors="replace")


def read_unix_sockets() -> Optional[UnixSockets]:
    """Of the reader's network namespace; None where the kernel does not tell."""
    found = UnixSockets({}, {})
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as link:
            link.settimeout(5)
            shown = _SHOW_NAME | _SHOW_PEER
            body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, shown, 0, 0)
            link.send(struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
            while not parse_unix_messages(link.recv(1 << 18), found):
                pass
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
            # A table out of a text may have lines that somebody made up; see the top.
            sure = table.unix_peers is not None
            self._tcp_wanted = self._tcp_wanted or any(not sure or inode not in table.unix for inode in inodes)
        if self._tcp_wanted:
            for other in tuple(self._without_tcp):
                self._read_tcp(other)
        return table

    def _read(self, directory: str, namespace: str) -> Optional[Table]:
        told = read_unix_sockets() if namespace == self._own else None
        text = _text(f"{directory}/net/unix") if told is None else ""
        names = told.names if told is not None else None if text is None else parse_unix(text)
        if names is None:
            return None
        self._without_tcp[namespace] = directory
        return Table(namespace, names, {}, None if told is None else told.peers)

    def _read_tcp(self, namespace: str) -> None:
        """Left for the next process of that namespace where this one has ended."""
        table, directory = self._known[namespace], self._without_tcp[namespace]
        texts = [_text(f"{directory}/net/{name}") for name in ("tcp", "tcp6")]
        if table is None or (None in texts and not os.path.exists(directory)):
            return
        for text in texts:
            table.tcp.update((one.inode, one) for one in parse_tcp(text or ""))
        del self._without_tcp[namespace]
