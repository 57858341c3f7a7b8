# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal on file systems that fail: no power, no space, no writing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.hosts import ROOT, Host, host

PACKAGE = "ansible_collections/gpufleet/checkpoint/plugins"
JOURNAL = "/var/lib/gpufleet/checkpoint.db"
PROLOGUE = """
import os, sys
sys.path.insert(0, "/root/collections")
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity
TARGET = Identity(12, 4711, "boot")
def begin(journal):
    return journal.begin(run_id="run", identity=TARGET, executable="/x", uid=0, goal="checkpointed", park=True,
                         state_before="running", step="lock", worker=None, guard="none", backend="libcuda")
def refused(action):
    try:
        action()
    except JournalError as error:
        print(error)
    else:
        print("no error")
"""


@pytest.fixture(scope="module")
def h1() -> Iterator[Host]:
    with host("--gpus", "0") as one:
        one.run("mkdir", "-p", f"/root/collections/{PACKAGE}")
        subprocess.run(
            [
                str(one.fleet.directory / "scp"),
                "-qr",
                str(ROOT / "plugins/module_utils"),
                f"h1:/root/collections/{PACKAGE}/",
            ],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        one.run("sync")
        yield one


def python(on: Host, script: str) -> str:
    return on.run("python3", "-B", "-", stdin=PROLOGUE + script)


def test_what_was_begun_survives_the_loss_of_power(h1: Host) -> None:
    """Also the first one of a host: the file and its directories are new. And so do all steps before something that is
    durable."""
    said = python(
        h1,
        f"""
journal = open_journal({JOURNAL!r})
operation = begin(journal)
for number in range(20):
    journal.step(operation.id, str(number))
    print(number, flush=True)
journal.harden()
begin(journal)
journal.update(operation.id, message="not synced")
with open("/var/lib/not-synced", "w") as other:
    other.write("there")
os._exit(0)
""",
    )
    assert said.splitlines()[-1] == "19"
    h1.disconnect()
    h1.fleet.must("poweroff", "h1", "--lose-unsynced")
    h1.fleet.must("start", "h1")
    assert h1.sh("cat /var/lib/not-synced 2>/dev/null || true").strip("\0") == ""
    first, last = python(
        h1,
        f"""
for one in open_journal({JOURNAL!r}).of_process(TARGET):
    print(one.id, one.step, one.status, one.message)
""",
    ).splitlines()
    assert (first.split(), last.split()) == (["1", "19", "active"], ["2", "lock", "active"])
    assert h1.sh(f"stat -c '%a %U' {Path(JOURNAL).parent} {JOURNAL}") == "700 root\n600 root"


def test_a_full_file_system(h1: Host) -> None:
    h1.sh("mkdir /full && mount -t tmpfs -o size=6m,mode=700 none /full")
    said = python(
        h1,
        """
journal = open_journal("/full/checkpoint.db")
operation = begin(journal)
with open("/full/filler", "wb") as filler:
    try:
        while filler.write(b"x" * 4096):
            filler.flush()
    except OSError:
        pass
def fill():
    for number in range(10000):
        journal.step(operation.id, str(number), message="x" * 1000)
refused(fill)
before = journal.get(operation.id)
refused(lambda: open_journal("/full/checkpoint.db"))
print(journal.steps(operation.id)[-1] == before.step)
os.unlink("/full/filler")
journal.step(operation.id, "last")
print(open_journal("/full/checkpoint.db").get(operation.id).step)
""",
    )
    in_the_middle, before_the_first, whole, last = said.splitlines()
    assert in_the_middle.startswith("journal /full/checkpoint.db: ")
    assert "full" in in_the_middle.partition(". ")[0] and "No step is made that was not written" in in_the_middle
    assert "KiB free, 4096 KiB are needed" in before_the_first
    assert before_the_first.endswith("Free space on the file system of /full.")
    assert (whole, last) == ("True", "last")


def test_a_file_system_that_can_not_be_written(h1: Host) -> None:
    h1.sh("mkdir /ro && mount -t tmpfs -o mode=700 none /ro")
    python(h1, "with open_journal('/ro/checkpoint.db') as journal: begin(journal)")
    h1.sh("mount -o remount,ro /ro")
    said = python(
        h1,
        """
refused(lambda: open_journal("/ro/checkpoint.db"))
refused(lambda: open_journal("/ro/new/checkpoint.db"))
print(open_journal("/ro/checkpoint.db", create=False).latest(TARGET).step)
print(open_journal("/ro/new/checkpoint.db", create=False).latest(TARGET))
""",
    )
    there, new, read, nothing = said.splitlines()
    assert there.startswith("journal /ro/checkpoint.db: ")
    assert "read-only file system" in there.lower() and "/ro" in there.partition(". ")[2]
    assert "Read-only file system (/ro/new)" in new and "another journal" in new
    assert (read, nothing) == ("lock", "None")


def test_a_journal_that_dies_while_it_is_open_to_a_reader(h1: Host) -> None:
    """A reader after a crash of the writer, on a file system that nobody can write any more."""
    h1.sh("mkdir /crash && mount -t tmpfs -o mode=700 none /crash")
    python(
        h1,
        """
journal = open_journal("/crash/checkpoint.db")
begin(journal)
os._exit(0)
""",
    )
    assert h1.sh("ls /crash/checkpoint.db-wal") == "/crash/checkpoint.db-wal"
    h1.sh("mount -o remount,ro /crash")
    assert python(h1, "print(open_journal('/crash/checkpoint.db', create=False).latest(TARGET).step)") == "lock"


def test_what_belongs_to_another_user(h1: Host) -> None:
    """Root takes no orders from a directory that a user can write, and a user none from another one's."""
    h1.sh("mkdir -m 755 /home/eve && mkdir -m 700 /home/eve/own && chown -R 1000:1000 /home/eve")
    said = python(
        h1,
        f"""
refused(lambda: open_journal("/home/eve/checkpoint.db"))
os.chown("/home/eve/own", 0, 0)
refused(lambda: open_journal("/home/eve/own/checkpoint.db"))
os.chown("/home/eve/own", 1000, 1000)
open_journal({JOURNAL!r})
os.setuid(1000)
print(open_journal("/home/eve/own/checkpoint.db").live("boot"))
refused(lambda: open_journal({JOURNAL!r}))
refused(lambda: open_journal({JOURNAL!r}, create=False))
""",
    )
    direct, above, own, write, read = said.splitlines()
    for line in (direct, above):
        assert "/home/eve belongs to user id 1000. " in line
        assert "Name a journal in a directory that belongs to root or to the user who runs the task." in line
    assert own == "()"
    for line in (write, read):
        assert line.startswith(f"journal {JOURNAL}: Permission denied ({JOURNAL})")
        assert "Run the task as the owner of the journal (become), or name another file as journal." in line
