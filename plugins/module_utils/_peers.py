# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes are connected to which. Pure."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._sockets import ESTABLISHED, End, Table


@dataclass(frozen=True)
class Holder:
    """A process and the inodes of the sockets that it has open."""

    pid: int
    name: str
    inodes: Tuple[int, ...]
    table: Optional[Table]


@dataclass(frozen=True)
class Peers:
    """None is unknown. tcp: PIDs. remote: "local-port address:port", connections to other hosts. unix: (PID, name) of
    who is at the other end of a unix socket. unix_names: what those other ends are bound to."""

    tcp: Optional[Tuple[int, ...]]
    remote: Optional[Tuple[str, ...]]
    unix: Optional[Tuple[Tuple[int, str], ...]]
    unix_names: Optional[Tuple[str, ...]]


UNKNOWN = Peers(None, None, None, None)


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _scope(namespace: str, end: End) -> str:
    """Where an address means the same: loopback is each network namespace's own."""
    return namespace if is_loopback(end[0]) else ""


def find_peers(holders: Iterable[Holder]) -> Dict[int, Peers]:
    """By PID. Only processes among `holders` are found at the other end."""
    everyone = list(holders)
    owners: Dict[int, List[Holder]] = {}
    for holder in everyone:
        for inode in holder.inodes:
            owners.setdefault(inode, []).append(holder)
    ends: Dict[Tuple[str, End, End], int] = {}
    for table in {id(holder.table): holder.table for holder in everyone}.values():
        for tcp in table.tcp.values() if table else ():
            if table and tcp.state == ESTABLISHED:
                ends[(_scope(table.namespace, tcp.local), tcp.local, tcp.remote)] = tcp.inode
    return {holder.pid: _of(holder, owners, ends) for holder in everyone}


def _of(holder: Holder, owners: Dict[int, List[Holder]], ends: Dict[Tuple[str, End, End], int]) -> Peers:
    table = holder.table
    if table is None:
        return UNKNOWN
    peers: Set[int] = set()
    remote: Set[str] = set()
    for inode in holder.inodes:
        tcp = table.tcp.get(inode)
        if tcp is None or tcp.state != ESTABLISHED:
            continue
        other = ends.get((_scope(table.namespace, tcp.local), tcp.remote, tcp.local))
        if other is not None:
            peers.update(one.pid for one in owners.get(other, ()) if one.pid != holder.pid)
        elif tcp.local[0] != tcp.remote[0] and not is_loopback(tcp.remote[0]):
            remote.add(f"{tcp.local[1]} {tcp.remote[0]}:{tcp.remote[1]}")
    tcp_peers, tcp_remote = tuple(sorted(peers)), tuple(sorted(remote))
    if table.unix_peers is None:
        return Peers(tcp_peers, tcp_remote, None, None)
    connected = {table.unix_peers[inode] for inode in holder.inodes if inode in table.unix_peers}
    found = {(one.pid, one.name) for inode in connected for one in owners.get(inode, ()) if one.pid != holder.pid}
    names = {table.unix[inode] for inode in connected if table.unix.get(inode)}
    return Peers(tcp_peers, tcp_remote, tuple(sorted(found)), tuple(sorted(names)))
