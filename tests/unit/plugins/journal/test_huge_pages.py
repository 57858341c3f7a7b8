# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Transparent huge pages: changed while somebody needs it, put back by the last one, whoever died meanwhile."""

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._huge_pages import CHOICES, HugePages, Knob, target
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity
from tests.unit.plugins.journal.helpers import BOOT, Words, fork, identity, kill, me, wait

ONE, TWO = identity(1), identity(2)


class World:
    """dead: who is. boot: the current one."""

    def __init__(self, journal: Journal, file: Path) -> None:
        self.dead: set[Identity] = set()
        self.boot = BOOT
        self.knob = Words(file)
        self.journal = journal
        self.pages = HugePages(journal, self.knob, lambda owner: owner not in self.dead, lambda: self.boot)

    @property
    def value(self) -> str | None:
        return self.knob.read()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_journal(str(tmp_path / "checkpoint.db")) as journal:
        yield World(journal, tmp_path / "enabled")


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        ("auto", "madvise", "always"),
        ("auto", "never", None),
        ("auto", "always", None),
        ("always", "madvise", "always"),
        ("always", "never", "always"),
        ("always", "always", None),
        ("keep", "madvise", None),
        ("keep", "never", None),
        ("always", "a word of a later kernel", None),
        ("auto", "", None),
    ],
)
def test_what_is_set_where(wanted: str, value: str, expected: str | None) -> None:
    assert wanted in CHOICES
    assert target(wanted, value) == expected


@pytest.mark.parametrize(("wanted", "before"), [("auto", "madvise"), ("always", "never"), ("always", "madvise")])
def test_changed_and_put_back(world: World, wanted: str, before: str) -> None:
    world.knob.write(before)
    assert world.pages.acquire(ONE, wanted) == f"transparent huge pages: {before} -> always"
    assert world.value == "always"
    assert world.pages.release(ONE) == f"transparent huge pages: always -> {before}"
    assert world.value == before
    assert world.pages.release(ONE) == ""
    assert world.pages.mend() == []


@pytest.mark.parametrize(
    ("wanted", "before"), [("auto", "never"), ("auto", "always"), ("always", "always"), ("keep", "madvise")]
)
def test_left_alone(world: World, wanted: str, before: str) -> None:
    world.knob.write(before)
    assert world.pages.acquire(ONE, wanted) == ""
    assert world.value == before
    assert world.pages.release(ONE) == ""
    assert world.value == before


def test_the_last_user_puts_it_back(world: World) -> None:
    assert world.pages.acquire(ONE, "auto") == world.pages.acquire(TWO, "auto") != ""
    assert world.pages.release(ONE) == ""
    assert world.value == "always"
    assert world.pages.release(TWO) == "transparent huge pages: always -> madvise"
    assert world.value == "madvise"


def test_respect_for_never_is_not_shared_with_who_overrode_it(world: World) -> None:
    world.knob.write("never")
    assert world.pages.acquire(ONE, "always") != ""
    assert world.pages.acquire(TWO, "auto") == ""
    world.pages.release(ONE)
    assert world.value == "never"
    assert world.pages.release(TWO) == ""


def test_after_a_crash_the_next_run_puts_it_back(world: World) -> None:
    world.pages.acquire(ONE, "auto")
    assert world.pages.mend() == []
    world.dead.add(ONE)
    (told,) = world.pages.mend()
    assert told == "transparent huge pages: always -> madvise (a run that changed it has died)"
    assert world.value == "madvise"
    assert world.pages.mend() == []


def test_after_a_crash_the_last_user_alive_puts_it_back(world: World) -> None:
    world.pages.acquire(ONE, "auto")
    world.pages.acquire(TWO, "auto")
    world.dead.add(ONE)
    assert world.pages.mend() == []
    assert world.value == "always"
    world.pages.release(TWO)
    assert world.value == "madvise"


def test_after_a_crash_the_next_user_remembers_what_it_was(world: World) -> None:
    world.pages.acquire(ONE, "auto")
    world.dead.add(ONE)
    told = world.pages.acquire(TWO, "auto")
    assert told == "transparent huge pages: always -> madvise; madvise -> always"
    assert world.value == "always"
    world.pages.release(TWO)
    assert world.value == "madvise"


def test_a_crash_between_entry_and_change_leaves_nothing(world: World) -> None:

    def killed(_value: str) -> str:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.pages, "_set", killed)
        with pytest.raises(KeyboardInterrupt):
            world.pages.acquire(ONE, "auto")
    world.dead.add(ONE)
    assert world.pages.mend() == []
    assert world.value == "madvise"
    assert world.pages.acquire(TWO, "auto") != ""


def test_the_second_does_not_take_what_is_not_set_yet_for_a_change_of_somebody_else(world: World) -> None:
    world.pages.acquire(ONE, "auto")
    world.knob.write("madvise")  # as between the first one's entry and its write
    assert world.pages.acquire(TWO, "auto") == "transparent huge pages: madvise -> always"
    assert world.value == "always"


def test_a_change_of_somebody_else_is_respected(world: World) -> None:
    world.pages.acquire(ONE, "auto")
    world.knob.write("never")
    told = world.pages.acquire(TWO, "always")
    assert told == "transparent huge pages: left at never: somebody else changed it from always"
    assert world.pages.release(ONE) == told
    assert world.value == "never"
    assert world.pages.release(TWO) == ""


def test_a_change_of_somebody_else_is_respected_after_a_crash(world: World) -> None:
    world.pages.acquire(ONE, "auto")
    world.knob.write("never")
    world.dead.add(ONE)
    (told,) = world.pages.mend()
    assert "left at never: somebody else changed it from always" in told
    assert world.value == "never"


def test_a_reboot_has_put_it_back_already(world: World) -> None:
    world.pages.acquire(ONE, "auto")
    world.boot = "after the reboot"
    world.dead.add(ONE)
    # What is configured now is "always", and that is nobody's leftover.
    assert world.pages.mend() == []
    assert world.value == "always"
    late = identity(3, boot_id="after the reboot")
    world.knob.write("madvise")
    assert world.pages.acquire(late, "auto") != ""
    world.pages.release(late)
    assert world.value == "madvise"


def test_a_setting_that_can_not_be_written_is_told_and_left(world: World) -> None:
    world.knob.refuses = "Read-only file system"
    told = world.pages.acquire(ONE, "auto")
    assert told == "transparent huge pages: left at madvise: Read-only file system"
    assert world.pages.release(ONE) == ""
    assert world.journal.file.read("SELECT * FROM settings") == ()


def test_what_can_not_be_put_back_is_tried_again(world: World) -> None:
    world.pages.acquire(ONE, "auto")
    world.knob.refuses = "Read-only file system"
    told = world.pages.release(ONE)
    assert told == "transparent huge pages: still always, not back at madvise: Read-only file system"
    assert len(world.pages.mend()) == 1
    world.knob.refuses = ""
    assert len(world.pages.mend()) == 1
    assert world.value == "madvise"
    assert world.pages.mend() == []


def test_without_a_journal_nothing_is_changed(world: World) -> None:
    connection = world.journal.file._connected()
    connection.execute("PRAGMA query_only = ON")
    told = world.pages.acquire(ONE, "auto")
    assert told.startswith("transparent huge pages: left alone: journal ")
    assert world.value == "madvise"
    connection.execute("PRAGMA query_only = OFF")
    world.pages.acquire(ONE, "auto")
    connection.execute("PRAGMA query_only = ON")
    assert "not put back, the next run will: journal " in world.pages.release(ONE)
    connection.execute("PRAGMA query_only = OFF")
    world.dead.add(ONE)
    assert len(world.pages.mend()) == 1
    assert world.value == "madvise"


def test_a_kernel_without_the_setting(world: World, tmp_path: Path) -> None:
    pages = HugePages(world.journal, Knob(str(tmp_path / "missing")))
    assert pages.acquire(ONE, "always") == pages.release(ONE) == ""
    (tmp_path / "odd").write_text("no brackets")
    assert HugePages(world.journal, Knob(str(tmp_path / "odd"))).acquire(ONE, "always") == ""


def test_the_kernels_file_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "enabled"
    file.write_text("always [madvise] never\n")
    knob = Knob(str(file))
    assert knob.read() == "madvise"
    assert knob.write("always") == ""
    assert file.read_text() == "always"
    assert Knob(str(tmp_path)).write("always") == f"{tmp_path}: Is a directory"


def test_a_reader_mends_nothing(world: World) -> None:
    world.pages.acquire(ONE, "auto")
    world.dead.add(ONE)
    with open_journal(world.journal.path, create=False) as reader:
        assert HugePages(reader, world.knob, lambda _owner: False, lambda: BOOT).mend() == []
    assert world.value == "always"


def test_many_real_processes_of_which_some_are_killed(tmp_path: Path) -> None:
    path, file = str(tmp_path / "checkpoint.db"), tmp_path / "enabled"
    Words(file)
    read, write = os.pipe()

    def suspend(index: int) -> None:
        with open_journal(path) as journal:
            pages = HugePages(journal, Words(file))
            pages.acquire(me(), "auto")
            assert Words(file).read() == "always"
            os.write(write, b"x")
            os.close(write)
            if index % 2:
                time.sleep(600)
            assert Words(file).read() == "always"
            pages.release(me())

    children = [fork(partial(suspend, index)) for index in range(8)]
    os.close(write)
    with os.fdopen(read, "rb") as said:
        assert said.read() == b"x" * 8
    assert [wait(child) for child in children[::2]] == [0] * 4
    assert Words(file).read() == "always"
    for child in children[1::2]:
        kill(child)
    with open_journal(path) as journal:
        assert len(HugePages(journal, Words(file)).mend()) == 1
        assert Words(file).read() == "madvise"
        assert journal.file.read("SELECT * FROM settings") == () == journal.file.read("SELECT * FROM setting_users")
