# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel says about the host: memory, settings that decide whether a checkpoint fits, driver version.

Reading only. A value that could not be read is None, or "" for text, and is named in `HostSnapshot.unreadable`.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from typing import Dict, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, natural

KIB = 1024


@dataclass(frozen=True)
class HostSnapshot:
    """One reading of the host. Sizes are bytes.

    boot_id: of this boot (/proc/sys/kernel/random/boot_id); part of every identity.
    kernel, machine: as `uname -r` and `uname -m` print them.
    driver_version: of the NVIDIA kernel module, "" where none is loaded (/proc/driver/nvidia/version).
    memory_total, memory_available: MemTotal and MemAvailable; the latter counts what can be reclaimed.
    swap_free: SwapFree.
    overcommit_memory: vm.overcommit_memory (0 heuristic, 1 always, 2 strict).
    commit_limit, committed: CommitLimit and Committed_AS; they bind only where overcommit_memory is 2.
    thp: the chosen word of transparent_hugepage/enabled ("always", "madvise", "never"), "" where there is none.
    yama_ptrace_scope: kernel.yama.ptrace_scope, None where Yama is not there.
    socket_credentials: the kernel answers SO_PASSCRED of a TCP socket, as it did before Linux 6.16; None is unknown.
    effective_uid: of the reader.
    pid_namespace: of the reader, the number in /proc/self/ns/pid.
    """

    boot_id: str
    kernel: str
    machine: str
    driver_version: str
    memory_total: Optional[int]
    memory_available: Optional[int]
    swap_free: Optional[int]
    overcommit_memory: Optional[int]
    commit_limit: Optional[int]
    committed: Optional[int]
    thp: str
    yama_ptrace_scope: Optional[int]
    effective_uid: int
    pid_namespace: str
    unreadable: Tuple[str, ...] = ()
    socket_credentials: Optional[bool] = None

    @property
    def commit_headroom(self) -> Optional[int]:
        """Bytes of private memory that may still be promised; None where nothing limits them (or it is unknown)."""
        if self.overcommit_memory != 2 or self.commit_limit is None or self.committed is None:
            return None
        return max(0, self.commit_limit - self.committed)

    @property
    def driver_branch(self) -> int:
        """The number before the first dot of the driver's version, 0 where there is none."""
        first = self.driver_version.partition(".")[0]
        return natural(first) or 0


def parse_meminfo(text: str) -> Dict[str, int]:
    """Bytes by name, of the lines of /proc/meminfo that are counted in kB."""
    found = {}
    for line in kernel_lines(text):
        name, separator, rest = line.partition(":")
        parts = rest.split()
        count = natural(parts[0]) if separator and len(parts) == 2 and parts[1] == "kB" else None
        if count is not None:
            found[name.strip()] = count * KIB
    return found


def parse_driver_version(text: str) -> str:
    """The version out of /proc/driver/nvidia/version, of the proprietary and of the open kernel module; else ""."""
    for line in kernel_lines(text):
        if line.startswith("NVRM version:"):
            match = re.search(r"\s(\d+(?:\.\d+)+)\s", line + " ")
            return match.group(1) if match else ""
    return ""


def parse_choice(text: str) -> str:
    """The word in brackets of a kernel setting such as "always [madvise] never"."""
    match = re.search(r"\[(\w+)\]", text)
    return match.group(1) if match else ""


def read_boot_id() -> str:
    """Raises OSError where /proc is not mounted."""
    with open("/proc/sys/kernel/random/boot_id") as stream:
        return stream.read().strip()


def read_machine_id() -> str:
    """Of this installation (machine-id(5)): 32 hexadecimal digits, "" where there is none."""
    try:
        with open("/etc/machine-id") as stream:
            text = stream.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if re.fullmatch(r"[0-9a-f]{32}", text) else ""


def pid_namespace() -> str:
    """Of the caller: the number in the brackets of /proc/self/ns/pid, "" where it can't be read."""
    try:
        return os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]")
    except OSError:
        return ""


def socket_credentials() -> Optional[bool]:
    """Asks the kernel what CRIU asks of a TCP socket."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
            one.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED)
    except OSError as error:
        return False if error.errno == errno.EOPNOTSUPP else None
    return True


def read_host() -> HostSnapshot:
    """Raises OSError where not even the boot id can be read; all else that fails is in `unreadable`."""
    missing: List[str] = []

    def text(path: str, name: str, optional: bool = False) -> str:
        try:
            with open(path) as stream:
                return stream.read()
        except FileNotFoundError:
            if not optional:
                missing.append(name)
        except OSError:
            missing.append(name)
        return ""

    def number(path: str, name: str, optional: bool = False) -> Optional[int]:
        word = text(path, name, optional).strip()
        return int(word) if word.lstrip("-").isdigit() else None

    memory = parse_meminfo(text("/proc/meminfo", "meminfo"))
    uname = os.uname()
    return HostSnapshot(
        boot_id=read_boot_id(),
        kernel=uname.release,
        machine=uname.machine,
        driver_version=parse_driver_version(text("/proc/driver/nvidia/version", "driver_version", optional=True)),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        swap_free=memory.get("SwapFree"),
        overcommit_memory=number("/proc/sys/vm/overcommit_memory", "overcommit_memory"),
        commit_limit=memory.get("CommitLimit"),
        committed=memory.get("Committed_AS"),
        thp=parse_choice(text("/sys/kernel/mm/transparent_hugepage/enabled", "thp", optional=True)),
        yama_ptrace_scope=number("/proc/sys/kernel/yama/ptrace_scope", "yama_ptrace_scope", optional=True),
        effective_uid=os.geteuid(),
        pid_namespace=pid_namespace(),
        unreadable=tuple(missing),
        socket_credentials=socket_credentials(),
    )
