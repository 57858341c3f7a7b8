# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Saves a tree from a criu that is killed while it dumps.

CRIU lets each process execute code of CRIU's own, with other registers than its own, to be told of what only the
process can see. It puts everything back before it leaves. Killed before that (measured: a SIGKILL 50 ms after it has
begun), it leaves a process that dies of the next instruction it executes. The trees that are dumped here stand still
all the time, so what has to be put back can be read before: registers, signal masks, and the first bytes of each
mapping with code, where CRIU places its system calls. Then CRIU's memory and descriptors are taken out again, and a
breakpoint of it that waits to be told.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import struct
import time
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.durable import write_file
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity, task_state
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import parse_status
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_text, tasks_of

FILE = ".lifeline"
#: How much of the beginning of a mapping with code is kept. CRIU's system call and the trap behind it are shorter.
CODE = 64
SECONDS = 10.0
_PAUSE = 0.0005
# struct user_regs_struct of x86-64, by their places.
_RAX, _RIP, _ORIG_RAX = 10, 16, 15
_ARGUMENTS = (14, 13, 12, 7, 9, 8)
_CLOSE, _MUNMAP = 3, 11
_SYSCALL = b"\x0f\x05"
_NO_SYSCALL = (1 << 64) - 1
#: More than a program blocks by itself: all but SIGKILL, SIGSTOP, and those that threads need for themselves.
_ALL_BLOCKED = 60


@dataclass(frozen=True)
class Region:
    """A mapping. end: the first address behind it. code: it can be executed. name: of its file, "" for none."""

    start: int
    end: int
    code: bool
    name: str


@dataclass(frozen=True)
class Thread:
    tid: int
    general: bytes
    extended: bytes
    mask: int


@dataclass(frozen=True)
class Saved:
    """A process that stands still. code: address to the bytes there. descriptors: their numbers."""

    identity: Identity
    threads: Tuple[Thread, ...]
    regions: Tuple[Region, ...]
    code: Tuple[Tuple[int, bytes], ...]
    descriptors: FrozenSet[int]


def save(identity: Identity) -> Saved:
    """Of a process whose threads are all stopped. Raises OSError: it is traced, or gone."""
    threads = []
    for tid in tasks_of(identity.pid):
        if task_state(identity.pid, tid) in ("Z", "X", ""):
            continue
        with _Held(tid):
            threads.append(_read(tid))
    regions = read_regions(identity.pid)
    with open(f"/proc/{identity.pid}/mem", "rb", buffering=0) as memory:
        code = tuple((one.start, _peek(memory, one.start)) for one in regions if one.code and _is_real(one))
    return Saved(identity, tuple(threads), regions, code, descriptors(identity.pid))


def _is_real(region: Region) -> bool:
    return region.name not in ("[vsyscall]", "[vvar]")


def _peek(memory: Any, address: int) -> bytes:
    try:
        memory.seek(address)
        return bytes(memory.read(CODE))
    except OSError:
        return b""


def _read(tid: int) -> Thread:
    try:
        extended = ptrace.get_registers(tid, ptrace.EXTENDED)
    except OSError:
        extended = b""
    return Thread(tid, ptrace.get_registers(tid, ptrace.GENERAL), extended, ptrace.get_mask(tid))


class _Held:
    """One thread of a stopped process, held as long as this lasts. It stays stopped."""

    def __init__(self, tid: int) -> None:
        self._tid = tid

    def __enter__(self) -> None:
        ptrace.seize(self._tid)
        ptrace.interrupt(self._tid)
        wait_stop(self._tid)

    def __exit__(self, *_error: object) -> None:
        ptrace.detach(self._tid)
        # The kernel stops it anew by itself, a moment later.
        end = time.monotonic() + SECONDS
        while task_state(self._tid, self._tid) not in ("T", "Z", "X", "") and time.monotonic() < end:
            time.sleep(_PAUSE)


def wait_stop(tid: int) -> ptrace.Status:
    end = time.monotonic() + SECONDS
    while True:
        status = ptrace.wait(tid)
        if status is not None:
            if status.ended:
                raise ProcessLookupError(3, f"thread {tid} has ended")
            return status
        if time.monotonic() > end:
            raise TimeoutError(110, f"thread {tid} does not stop")
        time.sleep(_PAUSE)


def read_regions(pid: int) -> Tuple[Region, ...]:
    found = []
    for line in read_text(f"/proc/{pid}/maps").splitlines():
        parts = line.split(None, 5)
        start, _dash, end = parts[0].partition("-")
        found.append(Region(int(start, 16), int(end, 16), "x" in parts[1], parts[5] if len(parts) > 5 else ""))
    return tuple(found)


def descriptors(pid: int) -> FrozenSet[int]:
    return frozenset(int(name) for name in os.listdir(f"/proc/{pid}/fd"))


# Afterwards


def is_hurt(saved: Saved) -> bool:
    """Something of CRIU is in it still, so that it has not executed an instruction of its own since: it would be dead.
    Raises OSError."""
    pid = saved.identity.pid
    if read_identity(pid) != saved.identity:
        return False
    if _added(saved):
        return True
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        if any(_peek(memory, address) != was for address, was in saved.code if was):
            return True
    regions = read_regions(pid)
    return any(_is_astray(thread, regions) for thread in saved.threads if _lives(pid, thread.tid))


def _lives(pid: int, tid: int) -> bool:
    return task_state(pid, tid) not in ("Z", "X", "")


def _is_astray(saved: Thread, regions: Sequence[Region]) -> bool:
    """Its next instruction is nowhere, as after CRIU has unmapped its code and before it has put the registers back; or
    it is left with every signal blocked."""
    with _Held(saved.tid):
        now = _read(saved.tid)
    (at,) = struct.unpack_from("<Q", now.general, 8 * _RIP)
    if not any(one.code and one.start <= at < one.end for one in regions):
        return True
    return now.mask != saved.mask and bin(now.mask).count("1") >= _ALL_BLOCKED


def _added(saved: Saved) -> List[Region]:
    """Mappings that have come since, and can be executed: CRIU's. A process that stands still makes none."""
    before = {(one.start, one.end) for one in saved.regions}
    return [one for one in read_regions(saved.identity.pid) if one.code and (one.start, one.end) not in before]


def put_back(saved: Saved) -> bool:
    """True: it was hurt, and is as it was. Its threads are stopped before and after. Raises OSError."""
    if not is_hurt(saved):
        return False
    pid = saved.identity.pid
    first = True
    for thread in saved.threads:
        if not _lives(pid, thread.tid):
            continue
        with _Held(thread.tid):
            if first:
                _clean(saved, thread)
                first = False
            _write(thread)
            if _has_trap(pid, thread.tid):
                _swallow_trap(pid, thread.tid)
                _write(thread)
    return True


def _write(thread: Thread) -> None:
    if thread.extended:
        ptrace.set_registers(thread.tid, ptrace.EXTENDED, thread.extended)
    ptrace.set_registers(thread.tid, ptrace.GENERAL, thread.general)
    ptrace.set_mask(thread.tid, thread.mask)


def _has_trap(pid: int, tid: int) -> bool:
    """CRIU's code ends in a breakpoint. Where nobody was left to take it, it waits, and would kill."""
    status = parse_status(read_text(f"/proc/{pid}/task/{tid}/status"))
    return bool(int(status.get("SigPnd", "0"), 16) >> (signal.SIGTRAP - 1) & 1)


def _swallow_trap(pid: int, tid: int) -> None:
    """From one stop inside the kernel to the next: the signal is taken, and no instruction is executed."""
    while _has_trap(pid, tid):
        ptrace.cont(tid)
        status = wait_stop(tid)
        while status.event != ptrace.EVENT_STOP:
            ptrace.interrupt(tid)
            ptrace.cont(tid, 0 if status.signal == signal.SIGTRAP else status.signal)
            status = wait_stop(tid)


def _system_call(saved: Saved, memory: Any) -> Optional[int]:
    """The address of a system call instruction in the kernel's own part of the process."""
    for region in saved.regions:
        if region.name == "[vdso]":
            memory.seek(region.start)
            at = bytes(memory.read(region.end - region.start)).find(_SYSCALL)
            return None if at < 0 else region.start + at
    return None


def _clean(saved: Saved, thread: Thread) -> None:
    """The code as it was; then take out what CRIU has mapped and opened."""
    with open(f"/proc/{saved.identity.pid}/mem", "r+b", buffering=0) as memory:
        for address, was in saved.code:
            if was and _peek(memory, address) != was:
                memory.seek(address)
                memory.write(was)
        place = _system_call(saved, memory)
    if place is None:
        return
    ptrace.set_mask(thread.tid, _NO_SYSCALL)
    for number in sorted(descriptors(saved.identity.pid) - saved.descriptors):
        _call(thread, place, _CLOSE, (number,))
    for region in _added(saved):
        _call(thread, place, _MUNMAP, (region.start, region.end - region.start))


def _call(thread: Thread, place: int, number: int, arguments: Sequence[int]) -> None:
    """One system call by that thread. What it returns does not matter: what is left is seen, not told."""
    values = list(struct.unpack(f"<{len(thread.general) // 8}Q", thread.general))
    values[_RAX], values[_ORIG_RAX], values[_RIP] = number, _NO_SYSCALL, place
    for register, argument in zip(_ARGUMENTS, arguments):
        values[register] = argument
    ptrace.set_registers(thread.tid, ptrace.GENERAL, struct.pack(f"<{len(values)}Q", *values))
    ptrace.step(thread.tid)
    wait_stop(thread.tid)


# On the disk, for when everybody who knew is dead


def store(directory: str, saved: Sequence[Saved]) -> None:
    """Durable. Raises OSError. The registers of a process are secrets, as its image is."""
    write_file(directory, FILE, json.dumps([_to_data(one) for one in saved]).encode())


def forget(directory: str) -> None:
    """CRIU is done."""
    try:
        os.unlink(os.path.join(directory, FILE))
    except FileNotFoundError:
        pass


def load(directory: str) -> Tuple[Saved, ...]:
    """Empty where there is none, or none that can be read."""
    try:
        with open(os.path.join(directory, FILE), "rb") as stream:
            return tuple(_from_data(one) for one in json.loads(stream.read().decode()))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _to_data(saved: Saved) -> Dict[str, Any]:
    return {
        "identity": [saved.identity.pid, saved.identity.start_ticks, saved.identity.boot_id],
        "threads": [[one.tid, _text(one.general), _text(one.extended), one.mask] for one in saved.threads],
        "regions": [[one.start, one.end, one.code, one.name] for one in saved.regions],
        "code": [[address, _text(data)] for address, data in saved.code],
        "descriptors": sorted(saved.descriptors),
    }


def _from_data(data: Dict[str, Any]) -> Saved:
    return Saved(
        Identity(*data["identity"]),
        tuple(
            Thread(tid, base64.b64decode(general), base64.b64decode(extended), mask)
            for tid, general, extended, mask in data["threads"]
        ),
        tuple(Region(*one) for one in data["regions"]),
        tuple((address, base64.b64decode(text)) for address, text in data["code"]),
        frozenset(data["descriptors"]),
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
