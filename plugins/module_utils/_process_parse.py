# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of /proc/PID, parsed. Pure."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Optional, Set, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, natural

#: The only names of a process's environment that are kept; the rest may hold secrets.
ENVIRONMENT = (
    "CUDA_INJECTION64_PATH",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
    "JOURNAL_STREAM",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_JOB_END_TIME",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "WATCHDOG_USEC",
    "WORLD_SIZE",
)

_LIBRARY = re.compile(
    r"^(libcuda|libnccl|libnvidia-ml|libcuinj64|libToolsInjection64|libInterceptorInjectionTarget|libcuda-injection)"
    r"\.so(\.|$)"
)
_UVM_SOCKET = re.compile(r"@cuda-uvmfd-[0-9]{1,20}-([0-9]{1,20})\Z")
_RANGE = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})")
_KERNEL_THREAD = 0x00200000


@dataclass(frozen=True)
class Stat:
    """/proc/PID/stat, as far as it is used."""

    name: str
    state: str
    parent: int
    group: int
    session: int
    tty: int
    terminal_group: int
    kernel_thread: bool
    thread_count: int
    start_ticks: int


def parse_stat(text: str) -> Optional[Stat]:
    """None for a text that is cut short, or that no kernel writes."""
    head, separator, tail = text.rpartition(")")
    parts = tail.split()
    if not separator or len(parts) < 20:
        return None
    try:
        numbers = [int(part) for part in parts[1:20]]
    except ValueError:
        return None
    return Stat(
        name=head.partition("(")[2],
        state=parts[0],
        parent=numbers[0],
        group=numbers[1],
        session=numbers[2],
        tty=numbers[3],
        terminal_group=numbers[4],
        kernel_thread=bool(numbers[5] & _KERNEL_THREAD),
        thread_count=numbers[16],
        start_ticks=numbers[18],
    )


def parse_status(text: str) -> Dict[str, str]:
    """/proc/PID/status by name."""
    found = {}
    for line in kernel_lines(text):
        name, separator, value = line.partition(":")
        if separator:
            found[name] = value.strip()
    return found


def parse_limits(text: str) -> Dict[str, Optional[int]]:
    """Soft limits of /proc/PID/limits by their words there ("Max data size"); None is unlimited, 0 also what
    no kernel writes."""
    found: Dict[str, Optional[int]] = {}
    for line in kernel_lines(text)[1:]:
        name, parts = line[:26].strip(), line[26:].split()
        if parts:
            found[name] = None if parts[0] == "unlimited" else natural(parts[0]) or 0
    return found


@dataclass(frozen=True)
class Maps:
    """What of /proc/PID/maps matters. devices: (path, start, bytes)."""

    devices: Tuple[Tuple[str, int, int], ...]
    libraries: Tuple[str, ...]
    shm_files: Tuple[str, ...]


def addresses(text: str) -> Tuple[int, int]:
    """Begin and end of a mapping, "7f00-7f20"; zeros for what no kernel writes, so that the mapping is not lost."""
    found = _RANGE.fullmatch(text)
    return (int(found.group(1), 16), int(found.group(2), 16)) if found else (0, 0)


def parse_maps(text: str) -> Maps:
    """Devices in the order of their addresses."""
    devices: List[Tuple[str, int, int]] = []
    libraries: Set[str] = set()
    shm: Set[str] = set()
    for line in kernel_lines(text):
        # Memory can be given a name with a slash in it, as in "[anon:/dev/nvidia0]".
        parts = line.split(None, 5)
        path = parts[5] if len(parts) == 6 else ""
        if path.startswith("/dev/nvidia"):
            start, end = addresses(parts[0])
            devices.append((path, start, end - start))
        elif path.startswith("/dev/shm/"):
            shm.add(path)
        else:
            name = path.rpartition("/")[2]
            if _LIBRARY.match(name):
                libraries.add(name.partition(" ")[0])
    return Maps(tuple(devices), tuple(sorted(libraries)), tuple(sorted(shm)))


def waits_in_freezer(state: str, wchan: str) -> Optional[bool]:
    """By the state letter and /proc/PID/wchan: "do_freezer_trap" is version 2, "__refrigerator" version 1, whose tasks
    show as D. None: the kernel does not tell."""
    if "freezer" in wchan or "refrigerator" in wchan:
        return True
    if state == "R" or (state == "S" and wchan.strip() not in ("", "0")):
        return False
    return None


def may_matter(maps: bytes) -> bool:
    """Could the process with this /proc/PID/maps have anything to do with CUDA, MPS's daemons included? libcuda is only
    ever loaded as a shared library, and stays mapped while the process is suspended."""
    return b"libcuda.so" in maps or b"/dev/nvidia" in maps or b"nvidia-cuda-mps" in maps


def parse_environment(data: bytes) -> Dict[str, str]:
    """The names in ENVIRONMENT out of /proc/PID/environ."""
    found = {}
    for entry in data.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and name.decode(errors="replace") in ENVIRONMENT:
            found[name.decode()] = value.decode(errors="replace")
    return found


def owns_uvm_socket(names: Iterable[str], pids: Iterable[int]) -> bool:
    """Is there a socket @cuda-uvmfd-NAMESPACE-PID with one of the PIDs that the process has in its namespaces? The
    namespace's number is not compared: it changes when CRIU restores the process."""
    own = set(pids)
    for name in names:
        match = _UVM_SOCKET.match(name)
        if match and int(match.group(1)) in own:
            return True
    return False


@dataclass(frozen=True)
class Descriptors:
    """What of /proc/PID/fd matters. inodes: of sockets. lone_pipes: pipes of which one end only is there."""

    devices: Tuple[str, ...]
    inodes: Tuple[int, ...]
    anonymous: Tuple[str, ...]
    shm_files: Tuple[str, ...]
    lone_pipes: int


def sort_descriptors(targets: Iterable[str]) -> Descriptors:
    """What /proc/PID/fd/* point to."""
    devices, inodes, anonymous, shm = [], [], [], set()
    pipes: Dict[str, int] = {}
    for target in targets:
        if target.startswith("socket:["):
            # One that can't be is in no table, and is looked for in all of them.
            inode = natural(target[8:-1])
            inodes.append(-1 if inode is None else inode)
        elif target.startswith("/dev/nvidia"):
            devices.append(target)
        elif target.startswith("anon_inode:"):
            anonymous.append(target[11:])
        elif target.startswith("/dev/shm/"):
            shm.add(target)
        elif target.startswith("pipe:["):
            pipes[target] = pipes.get(target, 0) + 1
    lone = sum(1 for count in pipes.values() if count == 1)
    return Descriptors(tuple(sorted(devices)), tuple(inodes), tuple(sorted(anonymous)), tuple(sorted(shm)), lone)
