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
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import lifeline
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


def hurt(saved: lifeline.Saved, code: bool = True) -> None:
    """What a criu leaves that is killed at work: other registers in each thread, and its own bytes in the code."""
    address, was = next(one for one in saved.code if one[1])
    for number, thread in enumerate(saved.threads):
        with lifeline._Held(thread.tid):
            if number == 0 and code:
                with open(f"/proc/{saved.identity.pid}/mem", "r+b", buffering=0) as memory:
                    memory.seek(address)
                    memory.write(b"\x0f\x05\xcc" + was[3:])
            values = list(struct.unpack(f"<{len(thread.general) // 8}Q", thread.general))
            values[16] = 1  # an instruction pointer to nowhere
            ptrace.set_registers(thread.tid, ptrace.GENERAL, struct.pack(f"<{len(values)}Q", *values))


def test_to_look_changes_nothing(victim: tuple[Identity, list[Path]]) -> None:
    identity, counts = victim
    saved = lifeline.save(identity)
    assert len(saved.threads) == 4
    assert not lifeline.is_hurt(saved)
    assert not lifeline.put_back(saved)
    goes_on(identity, counts)


def test_what_was_hurt_is_put_back(victim: tuple[Identity, list[Path]], tmp_path: Path) -> None:
    identity, counts = victim
    lifeline.store(str(tmp_path), [lifeline.save(identity)])
    assert (tmp_path / lifeline.FILE).stat().st_mode & 0o777 == 0o600
    (saved,) = lifeline.load(str(tmp_path))
    hurt(saved)
    assert lifeline.is_hurt(saved)
    assert lifeline.put_back(saved)
    assert not lifeline.is_hurt(saved)
    goes_on(identity, counts)


def test_a_breakpoint_that_waits_is_taken_and_nothing_else(victim: tuple[Identity, list[Path]]) -> None:
    identity, counts = victim
    saved = lifeline.save(identity)
    hurt(saved)
    for thread in saved.threads:
        ptrace.signal_thread(identity.pid, thread.tid, signal.SIGTRAP)
    assert lifeline.put_back(saved)
    assert all(task_state(identity.pid, thread.tid) == "T" for thread in saved.threads)
    goes_on(identity, counts)


@pytest.mark.parametrize("what", ["registers", "mask"])
def test_a_little_is_found_too(victim: tuple[Identity, list[Path]], what: str) -> None:
    identity, counts = victim
    saved = lifeline.save(identity)
    if what == "registers":
        hurt(saved, code=False)
    else:
        with lifeline._Held(identity.pid):
            ptrace.set_mask(identity.pid, (1 << 64) - 1)
    assert lifeline.put_back(saved)
    assert not lifeline.put_back(saved)
    goes_on(identity, counts)


def test_without_it_the_process_dies(victim: tuple[Identity, list[Path]]) -> None:
    """So that the test above can fail."""
    identity, _counts = victim
    hurt(lifeline.save(identity))
    os.kill(identity.pid, signal.SIGCONT)
    until(lambda: task_state(identity.pid, identity.pid) == "Z")


def test_another_process_is_never_touched(victim: tuple[Identity, list[Path]]) -> None:
    identity, counts = victim
    saved = lifeline.save(identity)
    hurt_code = tuple((address, b"\0" * len(was)) for address, was in saved.code)
    other = replace(saved, identity=replace(identity, start_ticks=identity.start_ticks + 1), code=hurt_code)
    assert not lifeline.put_back(other)
    goes_on(identity, counts)


def test_nothing_to_load(tmp_path: Path) -> None:
    assert lifeline.load(str(tmp_path)) == ()
    (tmp_path / lifeline.FILE).write_text("[{}]")
    assert lifeline.load(str(tmp_path)) == ()
