# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What other users of a node, and workloads with names that were chosen to mislead, can do to a run by root."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.lab import Lab, labs
from tests.system.playing import cuda, info
from tests.system.test_criu_image import STORE, image

JOURNAL = "/var/lib/gpufleet"

#: Names a file, a thread and sockets so that a careless reader takes parts of them for lines of the kernel.
LIAR = r"""
import ctypes, mmap, os, socket, sys
victim, inode = int(sys.argv[1]), sys.argv[2]
place = "/tmp/liar/a\x0b/dev"
os.makedirs(place, exist_ok=True)
with open(place + "/nvidia0", "wb+") as stream:
    stream.truncate(4096)
    mapped = mmap.mmap(stream.fileno(), 4096)
ctypes.CDLL(None).prctl(15, b"x\x0bVmSize:q", 0, 0, 0)
row = "0000000000000000: 00000002 00000000 00010000 0001 01"
sockets = []
for name in (f"\0x\n{row} {inode} @liar", f"\0y\n{row} 7 @cuda-uvmfd-1-{os.getpid()}"):
    sockets.append(socket.socket(socket.AF_UNIX))
    sockets[-1].bind(name)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def host(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--vram", "1024") as (one,):
        one.host.sh("id trainer >/dev/null 2>&1 || useradd -m -s /bin/sh trainer")
        yield one


@pytest.fixture
def lab(host: Lab) -> Iterator[Lab]:
    host.host.sh(f"rm -rf {STORE}")
    with host.watched():
        yield host


def as_trainer(lab: Lab, script: str) -> str:
    """What it says, also where it fails, as most of it has to."""
    return lab.host.sh(f"su trainer -c {shlex.quote(script)} 2>&1 || true")


def test_another_user_reads_and_writes_nothing_of_a_run(lab: Lab) -> None:
    job = lab.one()
    (made,) = lab.play(image("present", pid=job.pid, path=f"{STORE}/one", leave_running=True))
    made.ok(changed=True)
    places = f"{STORE} {JOURNAL} /run/gpufleet"
    assert lab.host.sh(f"find {places} -type f | wc -l") != "0"
    assert as_trainer(lab, f"find {places} -type f -print 2>/dev/null") == ""
    assert as_trainer(lab, f"cat {STORE}/one/* {JOURNAL}/* 2>/dev/null | wc -c") == "0"
    for place in (STORE, f"{STORE}/one", JOURNAL, "/run/gpufleet"):
        assert "Permission denied" in as_trainer(lab, f"echo x >{place}/x")
    # Not even behind closed directories is there a file that others could read.
    assert lab.host.sh(f"find {places} -perm /0077 ! -type l -print") == ""


@contextmanager
def liar(lab: Lab, pid: int) -> Iterator[int]:
    """As the other user. Its second socket is called like that of CUDA, its first one forges a line about a socket of
    the job's."""
    inode = lab.host.sh(f"ls -l /proc/{pid}/fd | sed -n 's/.*socket:.\\([0-9]*\\).*/\\1/p' | head -n 1") or "5"
    lab.host.run("sh", "-c", "cat >/tmp/liar.py", stdin=LIAR)
    told = lab.background("su", "trainer", "-c", f"tail -f /dev/null | python3 /tmp/liar.py {pid} {inode}")
    assert told == "ready"
    found = lab.host.sh("pgrep -u trainer -f '^python3 /tmp/liar.py' | head -n 1")
    try:
        yield int(found)
    finally:
        lab.host.sh("pkill -9 -u trainer; while pgrep -u trainer >/dev/null; do sleep 0.02; done; rm -rf /tmp/liar*")


def test_no_name_that_another_user_chooses_hides_or_stops_anything(lab: Lab) -> None:
    job = lab.one()
    before = lab.play(info())[0].ok().processes[job.pid]
    with liar(lab, job.pid) as pid:
        looked, made, seen, back = lab.play(info(), cuda("checkpointed", [job.pid]), info(), cuda("running", [job.pid]))
        assert pid not in looked.ok().processes
        assert looked.processes[job.pid]["state"] == before["state"] == "running"
        made.ok(changed=True)
        assert seen.ok().processes[job.pid]["state"] == "checkpointed"
        back.ok(changed=True)


def test_a_job_with_names_that_mislead_is_suspended_dumped_and_comes_back(lab: Lab) -> None:
    called = """name=$(printf '/var/lib/lab/\\vTracerPid:\\t9'); ln -sf "$0" "$name"; exec "$name" "$@\""""
    job = lab.one(wrap=("sh", "-c", called), environment={"WORLD_SIZE": "\u00b2", "WATCHDOG_USEC": "9" * 5000})
    assert "TracerPid" in lab.host.sh(f"cat /proc/{job.pid}/comm")
    made, back = lab.play(cuda("checkpointed", [job.pid]), cuda("running", [job.pid]))
    made.ok(changed=True)
    back.ok(changed=True)
    path = f"{STORE}/odd"
    dumped, restored = lab.play(
        image("present", pid=job.pid, path=path, leave_running=False), image("restored", path=path)
    )
    dumped.ok(changed=True)
    restored.ok(changed=True)
