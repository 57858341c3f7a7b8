# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of the kernel around a process, parsed. Pure."""

from __future__ import annotations

import os
import re
from typing import Dict, Iterable, List, Mapping, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._peers import is_loopback
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import addresses
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._sockets import LISTEN, TcpSocket
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, natural

#: File systems of other hosts, or of programs: one that is away keeps whoever asks it for ever.
_NETWORK = re.compile(
    r"^(nfs4?|cifs|smb3|smbfs|ceph|lustre|gpfs|beegfs|beegfs_ctl|glusterfs|9p|afs|orangefs|pvfs2|panfs|wekafs|fuse\..+|fuse)$"
)
_VOLATILE = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_ROTATED = re.compile(r"^(?P<name>.+?)(?:\.\d{1,3}|\.old|-\d{8}(?:-\d{2,10}|\d{2,6})?)$")
_OCTAL = re.compile("[0-7]{1,12}")
_DELETED = " (deleted)"
_CLOSE = 7


@dataclass(frozen=True)
class FdInfo:
    """/proc/PID/fdinfo/N. flags: as open() takes them. mount: its id in mountinfo, 0 where unknown."""

    flags: int = 0
    mount: int = 0
    locks: Tuple[str, ...] = ()


def parse_fdinfo(text: str) -> FdInfo:
    flags = mount = 0
    locks: List[str] = []
    for line in kernel_lines(text):
        name, _separator, value = line.partition(":")
        words = value.split()
        if name == "flags" and words:
            # What no kernel writes may be written to.
            flags = int(words[0], 8) if _OCTAL.fullmatch(words[0]) else os.O_RDWR
        elif name == "mnt_id" and words:
            mount = natural(words[0]) or 0
        elif name == "lock" and len(words) >= 4 and "->" not in words:
            locks.append(f"{words[1]} {words[3]}")
    return FdInfo(flags, mount, tuple(locks))


@dataclass(frozen=True)
class Mounts:
    """types: of each mount id. points: (mount point, type), in the order in which they were mounted."""

    types: Mapping[int, str]
    points: Tuple[Tuple[str, str], ...]

    def by_id(self, mount: int) -> str:
        """ "" where the mount is not of this namespace, or gone."""
        return self.types.get(mount, "")

    def by_path(self, path: str) -> str:
        """Of the longest mount point above it, the last one that was mounted there."""
        best, found = "", ""
        for point, kind in self.points:
            above = point.rstrip("/")
            if (path == above or path.startswith(above + "/")) and len(point) >= len(best):
                best, found = point, kind
        return found


def parse_mounts(text: str) -> Mounts:
    """/proc/PID/mountinfo, in which the kernel escapes spaces, and no other characters that Python takes for them."""
    types: Dict[int, str] = {}
    points = []
    for line in kernel_lines(text):
        left, separator, right = line.partition(" - ")
        first, last = left.split(" "), right.split(" ")
        number = natural(first[0])
        if separator and len(first) >= 5 and last[0] and number is not None:
            types[number] = last[0]
            points.append((re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), first[4]), last[0]))
    return Mounts(types, tuple(points))


def is_network(filesystem: str) -> bool:
    return bool(_NETWORK.match(filesystem)) and filesystem not in ("fuse.lxcfs", "fuse.fuse-overlayfs")


def is_volatile(filesystem: str) -> bool:
    """Lives in memory only."""
    return filesystem in _VOLATILE


def strip_deleted(target: str) -> str:
    return target[: -len(_DELETED)] if target.endswith(_DELETED) else target


def rotated_from(path: str) -> str:
    """ "/var/log/a.log" of "/var/log/a.log.1" and "/var/log/a.log-20261130"; "" for a name that was not rotated."""
    match = _ROTATED.match(path)
    return match.group("name") if match and not match.group("name").endswith((".so", "/")) else ""


def children_of(parents: Mapping[int, int]) -> Dict[int, List[int]]:
    """parents: PID -> its parent's."""
    children: Dict[int, List[int]] = {}
    for pid in sorted(parents):
        children.setdefault(parents[pid], []).append(pid)
    return children


def below(root: int, children: Mapping[int, Sequence[int]]) -> Tuple[int, ...]:
    """The process and everything below it, parents before children. children: of `children_of`."""
    found, seen = [root], {root}
    for pid in found:
        # Parents that were read one after another may make a ring, where a number was used again meanwhile.
        more = [one for one in children.get(pid, ()) if one not in seen]
        seen.update(more)
        found.extend(more)
    return tuple(found)


def descendants(root: int, parents: Mapping[int, int]) -> Tuple[int, ...]:
    """The process and everything below it, parents before children; () where it is gone."""
    return below(root, children_of(parents)) if root in parents else ()


def deleted_mappings(maps: str) -> Tuple[Tuple[str, int], ...]:
    """(path, bytes) of mapped files without a name, out of /proc/PID/maps. Anonymous memory that the kernel shows like
    one is left out."""
    found: Dict[str, int] = {}
    for line in kernel_lines(maps):
        at = line.find(" /")
        if at < 0 or not line.endswith(_DELETED):
            continue
        path = strip_deleted(line[at + 1 :])
        if path.startswith(
            ("/memfd:", "/dev/zero", "/SYSV", "/[aio]", "/anon_hugepage", "/dev/nvidia", "/dev/infiniband")
        ):
            continue
        start, end = addresses(line.partition(" ")[0])
        found[path] = found.get(path, 0) + end - start
    return tuple(sorted(found.items()))


def external_connections(table: Mapping[int, TcpSocket], own: Iterable[int]) -> Tuple[str, ...]:
    """TCP connections of the sockets in `own` whose other end is not one of them."""
    mine = [table[inode] for inode in own if inode in table]
    ends = {(one.local, one.remote) for one in mine}
    found = []
    for one in mine:
        if one.state in (LISTEN, _CLOSE) or (one.remote, one.local) in ends:
            continue
        place = " on this host" if is_loopback(one.remote[0]) else ""
        found.append(f"{one.local[0]}:{one.local[1]} to {one.remote[0]}:{one.remote[1]}{place}")
    return tuple(sorted(found))
