# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has /dev/nvidia* open or mapped: what keeps a GPU from being reset, and its driver from being unloaded."""

from __future__ import annotations

import os
import pwd
from typing import Any, Collection, Dict, List, Optional, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_bytes
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, printable

_DEVICE = "/dev/nvidia"


@dataclass(frozen=True)
class DeviceHolder:
    """files: the devices, sorted. executable: "[name]" where its path is not known."""

    pid: int
    executable: str
    user: str
    files: Tuple[str, ...]

    @property
    def name(self) -> str:
        return f"PID {self.pid} ({self.executable})"

    def as_dict(self) -> Dict[str, Any]:
        return {"pid": self.pid, "executable": self.executable, "user": self.user, "files": list(self.files)}


def read_holders(but: Collection[int] = ()) -> Tuple[DeviceHolder, ...]:
    """By PID; of every process of the host. but: PIDs that are left out, as is this process."""
    found: List[DeviceHolder] = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid in but or pid == os.getpid():
            continue
        files = _open(pid) | _mapped(pid)
        if files:
            holder = _holder(pid, files)
            if holder is not None:
                found.append(holder)
    return tuple(found)


def _open(pid: int) -> Set[str]:
    found: Set[str] = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found  # it has ended
    for name in names:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if path.startswith(_DEVICE):
            found.add(printable(path))
    return found


def _mapped(pid: int) -> Set[str]:
    try:
        maps = read_bytes(f"/proc/{pid}/maps")
    except OSError:
        return set()
    if _DEVICE.encode() not in maps:
        return set()
    fields = (line.split(None, 5) for line in kernel_lines(maps.decode(errors="replace")))
    return {printable(one[5]) for one in fields if len(one) == 6 and one[5].startswith(_DEVICE)}


def _holder(pid: int, files: Set[str]) -> Optional[DeviceHolder]:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        try:
            executable = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            executable = f"[{read_bytes(f'/proc/{pid}/comm').decode(errors='replace').strip()}]"
    except OSError:
        return None
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return DeviceHolder(pid, printable(executable), user, tuple(sorted(files)))
