# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo fails when a process does not come back, and leaves nothing behind however it ends."""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUSPENDED = "Look at the workloads while they are suspended]"
KILLS = [
    {
        "name": "Kill them while they are suspended",
        "ansible.builtin.command": {"argv": ["pkill", "-9", "gpusim-workload"]},
    }
]


def leftovers(directory: Path) -> list[str]:
    """Mounts, namespaces, cgroups and processes of the demo in this directory."""
    fleet = hashlib.sha256(str(directory / "fleet").encode()).hexdigest()[:8]
    marks = (f"gpufleet-{fleet}", str(directory))
    found = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if any(mark in line for mark in marks)
    ]
    found += [str(path) for path in Path("/run/netns").glob("*") if fleet in path.name]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob("**/gpufleet-*") if fleet in path.name]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if int(process.name) != os.getpid() and any(mark.encode() in text for mark in marks):
            found.append(f"{process.name} {text[:200]!r}")
    return found


def holds_within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def start(directory: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(ROOT / "tests/demo/run"), *arguments],
            env={**os.environ, "DEMO_DIR": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def test_a_process_that_does_not_come_back_fails_it(directory: Path) -> None:
    tasks = directory / "kills.yml"
    tasks.write_text(json.dumps(KILLS))
    process, log = start(directory, "--limit", "h3", "--extra-vars", f"gpu_drain_maintenance_tasks={tasks}")
    status = process.wait(240)
    assert status not in (0, 130, 143), log.read_text()
    assert "Kill them while they are suspended]" in log.read_text()
    assert "lost is PID" in log.read_text()
    assert leftovers(directory) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_it_is_ended_half_way(number: signal.Signals, directory: Path) -> None:
    process, log = start(directory)
    try:
        assert holds_within(180, lambda: SUSPENDED in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        assert leftovers(directory)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does on Ctrl-C
        else:
            process.send_signal(number)
        assert process.wait(120) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number], (
            log.read_text()
        )
        holds_within(60, lambda: not leftovers(directory))
        assert leftovers(directory) == []
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(120)
