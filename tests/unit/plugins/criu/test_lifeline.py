# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stopped process whose registers and code somebody has changed, and died over it, goes on as if nothing had been."""

from __future__ import annotations

import os
import platform
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import (
    actions,
    lifeline,
    remote,
    saved,
    traps,
    wire,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity, task_state
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import tasks_of

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="registers of x86-64")

VICTIM = """
import sys, threading, time
def count(path):
    with open(path, "w") as out:
        while True:
            out.write("x"); out.flush(); time.sleep(0.001)
threads = [threading.Thread(target=count, args=(f"{sys.argv[1]}.{n}",)) for n in range(3)]
for thread in threads: thread.start()
"""


def until(met: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[tuple[Identity, list[Path]]]:
    """Stopped, with four threads of which three count."""
    counts = [tmp_path / f"count.{number}" for number in range(3)]
    null = subprocess.DEVNULL
    command = ["python3", "-c", VICTIM, str(tmp_path / "count")]
    with subprocess.Popen(command, stdin=null, stdout=null, stderr=null) as process:
        try:
            until(lambda: all(path.exists() and path.stat().st_size for path in counts))
            os.kill(process.pid, signal.SIGSTOP)
            until(lambda: all(task_state(process.pid, tid) == "T" for tid in tasks_of(process.pid)))
            identity = read_identity(process.pid)
            assert identity is not None
            yield identity, counts
        finally:
            process.kill()


def goes_on(identity: Identity, counts: list[Path]) -> None:
    before = [path.stat().st_size for path in counts]
    os.kill(identity.pid, signal.SIGCONT)
    until(lambda: all(path.stat().st_size > size for path, size in zip(counts, before, strict=True)))


def trap_action(pid: int) -> tuple[bool, bool]:
    """Is SIGTRAP ignored, has it a handler."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    bit = 1 << (signal.SIGTRAP - 1)
    return bool(int(status["SigIgn"], 16) & bit), bool(int(status["SigCgt"], 16) & bit)


def as_before(was: saved.Saved) -> None:
    now = lifeline.save(was.identity)
    assert replace(now, action=was.action) == was
    assert trap_action(was.identity.pid) == (False, False)
    assert all(task_state(was.identity.pid, thread.tid) == "T" for thread in was.threads)


def goes_wrong(thread: saved.Thread, at: int = 1) -> saved.Thread:
    """With an instruction pointer to nowhere, and all blocked, as CRIU has it."""
    values = list(struct.unpack(f"<{len(thread.general) // 8}Q", thread.general))
    values[16] = at
    return replace(thread, general=struct.pack(f"<{len(values)}Q", *values), mask=(1 << 64) - 1)


def hurt(was: saved.Saved) -> None:
    """What a criu leaves that is killed at work: other registers in each thread, a mapping, a descriptor, its own bytes
    in the code, and what could not be read made readable."""
    address, code = next(one for one in was.code if one[1])
    closed = next(one for one in was.regions if one.protection == "---p")
    for number, thread in enumerate(was.threads):
        with remote.Held(was.identity.pid, thread.tid) as held:
            if number == 0:
                held.call(thread, was.call, 32, (0,))  # dup
                held.call(thread, was.call, remote.MPROTECT, (closed.start, closed.end - closed.start, 1))
                held.call(thread, was.call, remote.MMAP, (was.room, 4096, 3, 0x100022, -1, 0))
                with open(f"/proc/{was.identity.pid}/mem", "r+b", buffering=0) as memory:
                    memory.seek(address)
                    memory.write(b"\x0f\x05\xcc" + code[3:])
            held.write(goes_wrong(thread))


def test_to_look_changes_nothing(victim: tuple[Identity, list[Path]]) -> None:
    identity, counts = victim
    was = lifeline.save(identity)
    assert len(was.threads) == 4 and was.call and was.room
    assert not lifeline.put_back(was)
    as_before(was)
    goes_on(identity, counts)


def test_to_prepare_changes_nothing_for_good(victim: tuple[Identity, list[Path]], tmp_path: Path) -> None:
    identity, counts = victim
    (was,) = lifeline.prepare(str(tmp_path), [identity])
    assert trap_action(identity.pid) == (False, True)
    assert not lifeline.put_back(was), "nothing of CRIU's was in it"
    as_before(was)
    goes_on(identity, counts)


def test_what_was_hurt_is_put_back(victim: tuple[Identity, list[Path]], tmp_path: Path) -> None:
    identity, counts = victim
    lifeline.prepare(str(tmp_path), [identity])
    assert (tmp_path / saved.FILE).stat().st_mode & 0o777 == 0o600
    (was,) = saved.load(str(tmp_path))
    hurt(was)
    assert lifeline.put_back(was)
    as_before(was)
    assert not lifeline.put_back(was)
    goes_on(identity, counts)


def test_a_thread_that_went_on_keeps_its_registers(victim: tuple[Identity, list[Path]], tmp_path: Path) -> None:
    """What it did since would be undone by half."""
    identity, counts = victim
    (was,) = lifeline.prepare(str(tmp_path), [identity])
    goes_on(identity, counts)
    os.kill(identity.pid, signal.SIGSTOP)
    until(lambda: all(task_state(identity.pid, tid) == "T" for tid in tasks_of(identity.pid)))
    now = lifeline.save(identity)
    lifeline.put_back(was)
    as_before(now)


def test_a_trap_that_waits_is_taken_and_nothing_else(victim: tuple[Identity, list[Path]], tmp_path: Path) -> None:
    identity, counts = victim
    (was,) = lifeline.prepare(str(tmp_path), [identity])
    for thread in was.threads:
        ptrace.signal_thread(identity.pid, thread.tid, signal.SIGTRAP)
    assert lifeline.put_back(was)
    as_before(was)
    goes_on(identity, counts)


TRACER = """
import os, signal, sys, time
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import remote, saved
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import ptrace
(was,) = saved.load(sys.argv[1])
for thread in was.threads:
    held = remote.Held(was.identity.pid, thread.tid)
    held.__enter__()
    ptrace.signal_thread(was.identity.pid, thread.tid, signal.SIGTRAP)
    ptrace.cont(thread.tid)
    held.wait()  # the stop that was due; the next one is the trap, which is not waited for
    ptrace.cont(thread.tid)
    while int(held.status("SigPnd"), 16):
        time.sleep(0.001)
time.sleep(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("armed", [True, False])
def test_a_tracer_that_dies_while_threads_stand_at_a_trap(
    victim: tuple[Identity, list[Path]], tmp_path: Path, armed: bool
) -> None:
    """Before it has been told of it: then the kernel delivers the SIGTRAP. Without the handler that is the end."""
    identity, counts = victim
    saved.store(str(tmp_path), [lifeline.save(identity)])
    (was,) = lifeline.prepare(str(tmp_path), [identity]) if armed else saved.load(str(tmp_path))
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", TRACER, str(tmp_path)], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    if not armed:
        until(lambda: task_state(identity.pid, identity.pid) == "Z")
        return
    until(lambda: all(task_state(identity.pid, tid) == "T" for tid in tasks_of(identity.pid)))
    assert lifeline.put_back(was)
    as_before(was)
    goes_on(identity, counts)


def test_a_little_is_found_too(victim: tuple[Identity, list[Path]], tmp_path: Path) -> None:
    identity, counts = victim
    (was,) = lifeline.prepare(str(tmp_path), [identity])
    with remote.Held(identity.pid, identity.pid):
        ptrace.set_mask(identity.pid, (1 << 64) - 1)
    assert lifeline.put_back(was)
    as_before(was)
    goes_on(identity, counts)


def test_without_it_the_process_dies(victim: tuple[Identity, list[Path]]) -> None:
    """So that the tests above can fail."""
    identity, _counts = victim
    hurt(lifeline.save(identity))
    os.kill(identity.pid, signal.SIGCONT)
    until(lambda: task_state(identity.pid, identity.pid) == "Z")


def test_another_process_is_never_touched(victim: tuple[Identity, list[Path]]) -> None:
    identity, counts = victim
    was = lifeline.save(identity)
    hurt_code = tuple((address, b"\0" * len(code)) for address, code in was.code)
    other = replace(was, identity=replace(identity, start_ticks=identity.start_ticks + 1), code=hurt_code)
    assert not lifeline.put_back(other)
    as_before(was)
    goes_on(identity, counts)


def test_registers_of_its_own_under_a_full_mask() -> None:
    """A thread that blocks everything by itself is astray only if it has other registers than it had."""
    own = saved.Region(0x1000, 0x2000, "r-xp", "/bin/x")
    full = replace(goes_wrong(saved.Thread(1, bytes(27 * 8), b"", 0), at=0x1010))
    assert not lifeline.is_astray(full, full, [own])
    assert lifeline.is_astray(full, goes_wrong(full, at=0x1020), [own])
    assert lifeline.is_astray(replace(full, mask=0), full, [own])
    assert not lifeline.is_astray(replace(full, mask=0), replace(full, mask=1), [own])
    assert lifeline.is_astray(replace(full, mask=0), replace(goes_wrong(full, at=0x2000), mask=0), [own])


def test_nothing_to_load(tmp_path: Path) -> None:
    assert saved.load(str(tmp_path)) == ()
    (tmp_path / saved.FILE).write_text("[{}]")
    assert saved.load(str(tmp_path)) == ()


@pytest.mark.parametrize("action", [(0, 0, 0, 0), (0x7FFF_FFFF_FFF8, 0xDC000004, 0x7F0123456789, (1 << 63) | 1)])
def test_an_image_has_what_the_process_does(tmp_path: Path, action: tuple[int, int, int, int]) -> None:
    """With the handler of the moment in it, in the middle of a file whose length can't change."""
    pid = 4194304
    ours = struct.unpack(traps.ACTION, traps.ours(pid))
    was = saved.Saved(Identity(pid, 1, "boot"), (), (), (), frozenset(), 1, 1, struct.pack(traps.ACTION, *action))
    core = tmp_path / f"core-{pid}.img"
    core.write_bytes(b"before" + entry(*ours) + b"behind")
    size = core.stat().st_size
    actions.put_right(str(tmp_path), [was])
    data = core.read_bytes()
    assert data.startswith(b"before") and data.endswith(b"behind") and len(data) == size
    fields = wire.parse(data[6:-6], "core")
    assert fields == {number: [value] for number, value in enumerate(action, 1)}
    with pytest.raises(wire.ImageError, match="PID 4194304"):
        actions.put_right(str(tmp_path), [was])


def entry(*values: int) -> bytes:
    """A sa_entry as CRIU writes it."""
    data = b""
    for number, value in enumerate(values, 1):
        data += bytes([number << 3])
        while value >= 0x80:
            data += bytes([value & 0x7F | 0x80])
            value >>= 7
        data += bytes([value])
    return data
