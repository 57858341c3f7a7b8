# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Saves a tree from a criu that is killed while it dumps.

CRIU lets each process execute code of CRIU's own, with other registers than its own, to be told of what only the
process can see, and puts everything back before it leaves. Killed before that, it leaves a thread

- in front of CRIU's system call, or of the trap behind it, which CRIU has written over the process's own code;
- in CRIU's code, in a mapping, on a stack and with descriptors of CRIU's, every signal blocked;
- with its own registers already, and every signal blocked still;
- as it was, with CRIU's mapping left behind, or one of its own that could not be read before, or a breakpoint in the
  processor's registers;
- at one of CRIU's traps, of which CRIU has not been told yet. Then the kernel delivers that SIGTRAP: see `traps`.

The trees that are dumped here stand still all the time, and the kernel stops them anew when CRIU is gone. So all that
has to be put back can be read before. A thread that is found with registers of its own keeps them.
"""

from __future__ import annotations

import os
import platform
import signal
from contextlib import ExitStack
from typing import Any, FrozenSet, List, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import remote, traps
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.remote import Held
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.saved import Region, Saved, Thread, store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity, task_state
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import addresses
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_text, tasks_of
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines

#: How much of the beginning of a mapping with code is kept. CRIU's system call and what is behind it are shorter.
CODE = 64
_SYSCALL = b"\x0f\x05"
_SEARCHED = 16 << 20
#: What CRIU's mappings and their descriptors are of.
_MEMFD = "/memfd:CRIUMFD"
_SHARED = "/dev/zero"
#: Every signal that CRIU blocks while a thread has registers of CRIU's: all that can be blocked, but SIGTRAP.
_BLOCKED = remote.EVERY_SIGNAL & ~sum(1 << (one - 1) for one in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTRAP))
_ROOM = 64 << 10
_PROTECTION = {"r": 1, "w": 2, "x": 4}


def prepare(directory: str, identities: Sequence[Identity]) -> Tuple[Saved, ...]:
    """Before CRIU comes: what they are, durable in `directory` before anything is done to them, and what keeps them
    alive at a trap. Their threads are stopped before and after. Raises OSError: one is traced, or gone; then all are
    as they were."""
    saved = tuple(save(one) for one in identities)
    store(directory, saved)
    try:
        saved = tuple(traps.read(one) if traps.can_arm(one) else one for one in saved)
        store(directory, saved)
        for one in saved:
            if one.action:
                traps.arm(one)
    except OSError:
        put_back_all(saved)
        raise
    return saved


def save(identity: Identity) -> Saved:
    """Of a process whose threads are all stopped. Raises OSError: it is traced, or gone."""
    pid = identity.pid
    threads = []
    for tid in tasks_of(pid):
        if _lives(pid, tid):
            with Held(pid, tid) as held:
                threads.append(held.read())
    regions = read_regions(pid)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        code = tuple((one.start, _peek(memory, one.start, CODE)) for one in regions if one.code and _is_real(one))
        call = _find_call(regions, memory) if _can_call(threads) else 0
    return Saved(identity, tuple(threads), regions, code, descriptors(pid), call, _find_room(regions))


def _can_call(threads: Sequence[Thread]) -> bool:
    return platform.machine() == "x86_64" and all(len(one.general) == remote.GENERAL_BYTES for one in threads)


def _is_real(region: Region) -> bool:
    return region.name not in ("[vsyscall]", "[vvar]")


def _peek(memory: Any, address: int, size: int) -> bytes:
    try:
        memory.seek(address)
        return bytes(memory.read(size))
    except OSError:
        return b""


def _find_call(regions: Sequence[Region], memory: Any) -> int:
    """The kernel's own part of the process has one. Not at the beginning of a mapping: CRIU writes there."""
    for region in sorted((one for one in regions if one.code and _is_real(one)), key=lambda one: one.name != "[vdso]"):
        at = _peek(memory, region.start, min(region.end - region.start, _SEARCHED)).find(_SYSCALL, CODE)
        if at >= 0:
            return region.start + at
    return 0


def _find_room(regions: Sequence[Region]) -> int:
    """Far from everything, so that it does not become one with a neighbour."""
    for one, following in zip(regions, regions[1:]):
        if following.start - one.end >= 2 * _ROOM and following.name != "[stack]" and one.name != "[heap]":
            return one.end + _ROOM
    return 0


def read_regions(pid: int) -> Tuple[Region, ...]:
    found = []
    for line in kernel_lines(read_text(f"/proc/{pid}/maps")):
        parts = line.split(None, 5)
        start, end = addresses(parts[0])
        found.append(Region(start, end, parts[1], parts[5] if len(parts) > 5 else ""))
    return tuple(found)


def descriptors(pid: int) -> FrozenSet[int]:
    return frozenset(int(name) for name in os.listdir(f"/proc/{pid}/fd"))


# Afterwards


def put_back_all(saved: Sequence[Saved]) -> Tuple[Tuple[Saved, ...], Tuple[str, ...]]:
    """Those in which CRIU had left something, and words about those that could not be put back."""
    hurt, problems = [], []
    for one in saved:
        try:
            if put_back(one):
                hurt.append(one)
        except OSError as error:
            problems.append(f"PID {one.identity.pid}: what CRIU has left in it can't be taken out: {error.strerror}")
    return tuple(hurt), tuple(problems)


def put_back(saved: Saved) -> bool:
    """True: CRIU had left something in it, and it is as it was. Its threads are stopped before and after. SIGTRAP does
    again what the process wants. Raises OSError."""
    pid = saved.identity.pid
    if read_identity(pid) != saved.identity:
        return False
    with ExitStack() as stack:
        threads = [
            _Found(stack.enter_context(Held(pid, one.tid)), one) for one in saved.threads if _lives(pid, one.tid)
        ]
        regions = read_regions(pid)
        hurt = _write_code(saved)
        for thread in threads:
            hurt = thread.look(saved.regions) or hurt
        # Where all have their own registers, CRIU's code has closed all but what the kernel would not let it.
        opened = _opened(saved, any(thread.is_astray for thread in threads))
        added = _added(saved, regions)
        closed = _readable(saved, regions)
        for thread in threads:
            thread.settle()
        if threads and saved.call:
            _take_out(saved, threads[0], opened, added, closed)
            traps.disarm(saved, threads[0].held, threads[0].own)
        return bool(hurt or opened or added or closed)


def _lives(pid: int, tid: int) -> bool:
    return task_state(pid, tid) not in ("Z", "X", "")


class _Found:
    """A thread as CRIU has left it. own: what it has to be."""

    def __init__(self, held: Held, before: Thread) -> None:
        self.held = held
        self.own = self._now = held.read()
        self.is_astray = False
        self._before = before
        self._has_trap = bool(int(held.status("SigPnd") or "0", 16) >> (signal.SIGTRAP - 1) & 1)

    def look(self, regions: Sequence[Region]) -> bool:
        """True: CRIU has left something in it. regions: the process's own."""
        self.is_astray = is_astray(self._before, self._now, regions)
        if self.is_astray:
            self.own = self._before
        return self.is_astray or self._has_trap

    def settle(self) -> None:
        if platform.machine() == "x86_64":
            ptrace.no_breakpoints(self.held.tid)
        if self._has_trap:
            self._swallow_trap()
        if self.is_astray or self._has_trap:
            self.held.write(self.own)

    def _swallow_trap(self) -> None:
        """From one stop inside the kernel to the next: the signal is taken, and no instruction is executed, since there
        is always a stop that is due."""
        ptrace.set_mask(self.held.tid, _BLOCKED)
        ptrace.cont(self.held.tid)
        status = self.held.wait()
        while status.event != 0 or status.signal != signal.SIGTRAP:
            ptrace.cont(self.held.tid)
            status = self.held.wait()
        while status.event != ptrace.EVENT_STOP:
            ptrace.interrupt(self.held.tid)
            ptrace.cont(self.held.tid)
            status = self.held.wait()


def is_astray(before: Thread, now: Thread, regions: Sequence[Region]) -> bool:
    """Has it registers of CRIU's? CRIU blocks all signals before it sets them, and puts the mask back after them.
    regions: the process's own."""
    if now.mask & _BLOCKED == _BLOCKED:
        return now.mask != before.mask or now.general != before.general
    if len(now.general) != remote.GENERAL_BYTES:
        return False
    at = remote.instruction(now)
    return not any(one.code and one.start <= at < one.end for one in regions)


def _write_code(saved: Saved) -> bool:
    changed = False
    with open(f"/proc/{saved.identity.pid}/mem", "r+b", buffering=0) as memory:
        for address, was in saved.code:
            if was and _peek(memory, address, CODE) != was:
                memory.seek(address)
                memory.write(was)
                changed = True
    return changed


def _opened(saved: Saved, astray: bool) -> List[int]:
    pid = saved.identity.pid
    new = sorted(descriptors(pid) - saved.descriptors)
    return [number for number in new if astray or _link(pid, number).startswith(_MEMFD)]


def _link(pid: int, number: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""


def _added(saved: Saved, regions: Sequence[Region]) -> List[Region]:
    """CRIU's, and what was mapped for a system call of ours. Not what a thread may have mapped itself since."""
    before = {(one.start, one.end) for one in saved.regions}
    return [
        one
        for one in regions
        if (one.start, one.end) not in before
        and (one.name.startswith((_MEMFD, _SHARED)) or (saved.room and one.start == saved.room))
    ]


def _readable(saved: Saved, regions: Sequence[Region]) -> List[Region]:
    """The process's own mappings that can't be read, but can be now: CRIU wants to read everything."""
    readable = [one for one in regions if "r" in one.protection]
    return [
        own
        for own in saved.regions
        if "r" not in own.protection and any(one.start < own.end and own.start < one.end for one in readable)
    ]


def _take_out(
    saved: Saved, thread: _Found, opened: Sequence[int], added: Sequence[Region], closed: Sequence[Region]
) -> None:
    for number in opened:
        thread.held.call(thread.own, saved.call, remote.CLOSE, (number,))
    for region in added:
        thread.held.call(thread.own, saved.call, remote.MUNMAP, (region.start, region.end - region.start))
    for region in closed:
        bits = sum(bit for letter, bit in _PROTECTION.items() if letter in region.protection)
        thread.held.call(thread.own, saved.call, remote.MPROTECT, (region.start, region.end - region.start, bits))
    if opened or added or closed:
        thread.held.write(thread.own)
