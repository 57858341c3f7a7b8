# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of two stores that hand over the right to restore them, on a disk, with their journals."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _image_handoff
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import owner
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    HELD,
    MOVED,
    RESTORING,
    RETURNED,
    SHARED,
    SOURCE,
    SPENT,
    UNSPENT,
    Handoff,
    Life,
    read_life,
    write_life,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._handoff_words import Entry, parse_entries
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_handoff import (
    Handing,
    HandoffOptions,
    Moved,
    result,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import read_identity
from tests.unit.plugins.criu.images_made import make_image, make_manifest

NAME = "pid-4711"
MACHINES = {"a": "a" * 32, "b": "b" * 32}


class Hosts:
    """Two, in two directories."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._patch = monkeypatch

    def store(self, host: str) -> Path:
        return self.root / host / "images"

    def image(self, host: str = "a", name: str = NAME) -> Path:
        return self.store(host) / name

    def state(self, host: str, name: str = NAME) -> str:
        return read_life(str(self.image(host, name))).state

    def step(self, host: str, state: str, entries: tuple[Entry, ...], **options: Any) -> list[Moved]:
        return self.handing(host, state, entries, **options).moved

    def handing(self, host: str, state: str, entries: tuple[Entry, ...], **options: Any) -> Handing:
        self._patch.setattr(_image_handoff, "read_machine_id", lambda: MACHINES[host])
        other = "b" if host == "a" else "a"
        chosen = HandoffOptions(
            state=state,
            store=str(self.store(host)),
            entries=entries,
            peer=MACHINES[other],
            peer_name=f"host {other}",
            transfer="copy",
            verify="full",
            seconds=2.0,
            run_id="run1",
            check=False,
        )
        with open_journal(str(self.root / f"{host}.db")) as journal:
            handing = Handing(replace(chosen, **options), journal)
            handing.run()
            return handing

    def copy(self, into: str) -> None:
        for one in self.image().iterdir():
            if one.name != "life.json" and not one.name.startswith("."):
                shutil.copy(one, into)

    def accepted(self) -> tuple[Entry, ...]:
        """Up to a copy that waits for its source."""
        offered = entries_of(self.step("a", "offered", (Entry(NAME),)))
        received = self.step("b", "received", offered)
        self.copy(received[0].into)
        return entries_of(self.step("b", "accepted", offered))

    def rows(self, host: str) -> list[tuple[str, str, bool]]:
        with open_journal(str(self.root / f"{host}.db")) as journal:
            found = [journal.image_latest(str(self.image(host)))]
            return [(row.step, row.status, row.finished) for row in found if row is not None]


def entries_of(moved: list[Moved]) -> tuple[Entry, ...]:
    return tuple(one.entry for one in moved)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    tmp_path.chmod(0o700)
    both = Hosts(tmp_path, monkeypatch)
    make_image(both.image())
    (tmp_path / "b").mkdir()
    yield both


def test_the_whole_way_each_step_twice(hosts: Hosts) -> None:
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),)))
    assert entries_of(hosts.step("a", "offered", (Entry(NAME),))) == offered
    received = hosts.step("b", "received", offered)
    assert [one.after for one in received] == ["partial"] and os.stat(received[0].into).st_mode & 0o777 == 0o700
    hosts.copy(received[0].into)
    os.mkdir(os.path.join(received[0].into, ".~tmp~"))
    assert hosts.step("b", "received", offered)[0].before == "partial", "what has come is kept"
    assert (Path(received[0].into) / "pages-1.img").exists()
    for _time in range(2):
        accepted = entries_of(hosts.step("b", "accepted", offered))
        assert hosts.state("b") == HELD and hosts.state("a") == UNSPENT
    assert not any(one.name.startswith(".") for one in hosts.image("b").iterdir())
    with pytest.raises(CriuError, match="another copy than this one"):
        hosts.step("b", "taken", offered)
    for _time in range(2):
        fenced = entries_of(hosts.step("a", "fenced", accepted))
        assert hosts.state("a") == MOVED and hosts.rows("a") == [("fenced", "moved", True)]
    for _time in range(2):
        hosts.step("b", "taken", fenced)
        assert hosts.state("b") == UNSPENT and hosts.rows("b") == [("taken", "moved", True)]
    write_life(str(hosts.image("b")), replace(read_life(str(hosts.image("b"))), state=SPENT))
    for _time in range(2):
        hosts.step("a", "concluded", fenced)
        assert hosts.state("a") == SPENT
    with open_journal(str(hosts.root / "b.db")) as journal:
        (measured,) = journal.history("image_transfer")
        assert measured.seconds == 2.0 and measured.bytes > 256000


def test_there_and_back(hosts: Hosts) -> None:
    fenced = entries_of(hosts.step("a", "fenced", hosts.accepted()))
    with pytest.raises(CriuError, match="copy on host b has not been given back"):
        hosts.step("a", "reclaimed", fenced)
    hosts.step("b", "taken", fenced)
    returned = entries_of(hosts.step("b", "returned", tuple(replace(one, key="", lock="") for one in fenced)))
    assert hosts.state("b") == RETURNED
    hosts.step("a", "reclaimed", returned)
    assert read_life(str(hosts.image())) == Life()
    # It may go there again: what was given back is replaced.
    fenced = entries_of(hosts.step("a", "fenced", hosts.accepted()))
    hosts.step("b", "taken", fenced)
    assert hosts.state("b") == UNSPENT


def test_a_byte_that_came_wrong(hosts: Hosts) -> None:
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),)))
    (received,) = hosts.step("b", "received", offered)
    hosts.copy(received.into)
    with open(os.path.join(received.into, "pages-1.img"), "r+b") as stream:
        stream.write(b"\xff")
    with pytest.raises(CriuError, match=r"pages-1\.img is damaged"):
        hosts.step("b", "accepted", offered)
    assert not hosts.image("b").exists() and Path(received.into).exists(), "only what is wrong is sent anew"
    hosts.copy(received.into)
    hosts.step("b", "accepted", offered)
    assert hosts.state("b") == HELD


def test_another_image_than_the_one_that_was_offered(hosts: Hosts) -> None:
    make_image(hosts.image(name="pid-1"), lineage="0" * 32)
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),)))
    (received,) = hosts.step("b", "received", offered)
    for one in hosts.image(name="pid-1").iterdir():
        shutil.copy(one, received.into)
    with pytest.raises(CriuError, match="its manifest is not the one that was offered"):
        hosts.step("b", "accepted", offered)


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_file_of_an_image_is_not_accepted(hosts: Hosts, kind: str) -> None:
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),)))
    (received,) = hosts.step("b", "received", offered)
    hosts.copy(received.into)
    odd = os.path.join(received.into, "odd.img")
    {
        "link": lambda: os.symlink("/etc/passwd", odd),
        "directory": lambda: os.mkdir(odd),
        "pipe": lambda: os.mkfifo(odd),
    }[kind]()
    with pytest.raises(CriuError, match="no file of an image"):
        hosts.step("b", "accepted", offered)


@pytest.mark.parametrize("life", [Life(), Life(RESTORING), Life(HELD)])
def test_an_image_that_somebody_may_need_is_not_replaced(hosts: Hosts, life: Life) -> None:
    make_image(hosts.image("b"), life, lineage="0" * 32)
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),)))
    with pytest.raises(CriuError, match="an image that somebody may need is never replaced"):
        hosts.step("b", "received", offered)


def test_one_that_is_spent_is_replaced(hosts: Hosts) -> None:
    make_image(hosts.image("b"), Life(SPENT), lineage="0" * 32)
    hosts.accepted()
    assert hosts.state("b") == HELD


def test_a_tree_that_is_alive_is_neither_offered_nor_given_up(hosts: Hosts) -> None:
    """Its dump was broken off when the image had its name already."""
    accepted = hosts.accepted()
    with subprocess.Popen(["sleep", "60"]) as process:
        identity = read_identity(process.pid)
        assert identity is not None
        member = replace(
            make_image(hosts.root / "other").tree[0],
            pid=process.pid,
            start_ticks=identity.start_ticks,
            threads=(process.pid,),
        )
        life = read_life(str(hosts.image()))
        shutil.rmtree(hosts.image())
        make_image(hosts.image(), life, root=process.pid, tree=(member,), boot_id=identity.boot_id)
        for state, entries in (("offered", (Entry(NAME),)), ("fenced", accepted)):
            with pytest.raises(CriuError, match=f"PID {process.pid} of it is alive here"):
                hosts.step("a", state, entries)
        assert hosts.state("a") == UNSPENT
        process.kill()


def test_snapshots_stay(hosts: Hosts) -> None:
    make_image(hosts.image(name="pid-1"), snapshot=True)
    with pytest.raises(CriuError, match="it is a snapshot"):
        hosts.step("a", "offered", (Entry("pid-1"),))


def test_each_for_itself_and_what_failed_is_told_as_it_is(hosts: Hosts) -> None:
    make_image(hosts.image(name="pid-1"), Life(SPENT))
    with pytest.raises(CriuError, match="pid-1: it is spent, and can't be offered"):
        hosts.step("a", "offered", (Entry("pid-1"), Entry(NAME)))
    assert read_life(str(hosts.image())).handoff is not None


def refused(hosts: Hosts, host: str, state: str, entries: tuple[Entry, ...], **options: Any) -> list[str]:
    """What is told of each after a step that failed."""
    told: list[Handing] = []
    run = Handing.run

    def keep(self: Handing) -> None:
        told.append(self)
        run(self)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(CriuError):
        patch.setattr(Handing, "run", keep)
        hosts.handing(host, state, entries, **options)
    return [one["after"] for one in result(told[0])["handoffs"]]


@pytest.mark.parametrize("lineage", ["0" * 32, make_manifest().lineage])
def test_another_image_of_that_name_is_no_answer(hosts: Hosts, lineage: str) -> None:
    """The copy is in another store; "spent" would say that it lives on the target, and the source's image would go."""
    elsewhere = {"store": str(hosts.root / "b" / "elsewhere")}
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),)))
    hosts.copy(hosts.step("b", "received", offered, **elsewhere)[0].into)
    accepted = entries_of(hosts.step("b", "accepted", offered, **elsewhere))
    asked = tuple(replace(one, key="", lock="") for one in entries_of(hosts.step("a", "fenced", accepted)))
    of_an_older_move = Life(SPENT, handoff=Handoff("1" * 32, SOURCE))
    for life in (Life(SPENT), of_an_older_move):
        shutil.rmtree(hosts.image("b"), ignore_errors=True)
        make_image(hosts.image("b"), life, lineage=lineage)
        assert refused(hosts, "b", "returned", asked) == []
    assert refused(hosts, "b", "returned", tuple(replace(one, lineage="") for one in asked)) == []


def test_what_was_restored_on_the_target_is_told_to_live_there(hosts: Hosts) -> None:
    fenced = entries_of(hosts.step("a", "fenced", hosts.accepted()))
    hosts.step("b", "taken", fenced)
    path = str(hosts.image("b"))
    write_life(path, replace(read_life(path), state=SPENT))
    assert refused(hosts, "b", "returned", fenced) == [SPENT]
    own = read_identity(os.getpid())
    assert own is not None
    shutil.rmtree(path)
    make_image(hosts.image("b"), Life(SPENT, members=(own,)))
    assert refused(hosts, "b", "returned", fenced) == [SPENT], "it was dumped and restored there once more, and lives"


def test_somebody_at_work_on_it_is_waited_for_by_nobody(hosts: Hosts) -> None:
    offered = hosts.accepted()
    pid = os.fork()
    if not pid:
        owner.claim(str(hosts.image()))
        os.kill(os.getpid(), 19)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    try:
        with pytest.raises(CriuError, match=f"PID {pid}"):
            hosts.step("a", "fenced", offered)
        assert hosts.state("a") == UNSPENT
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_copy_that_never_came_is_nothing_to_give_back(hosts: Hosts) -> None:
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),)))
    assert [one.after for one in hosts.step("b", "returned", offered)] == ["none"]
    (received,) = hosts.step("b", "received", offered)
    assert [one.after for one in hosts.step("b", "returned", offered)] == ["none"]
    assert not os.path.exists(received.into)


def test_check_mode_changes_nothing(hosts: Hosts) -> None:
    before = {str(one): one.read_bytes() for one in hosts.root.rglob("*") if one.is_file() and one.suffix != ".db"}
    handing = hosts.handing("a", "offered", (Entry(NAME),), check=True)
    hosts.handing("b", "received", entries_of(handing.moved), check=True)
    after = {str(one): one.read_bytes() for one in hosts.root.rglob("*") if one.is_file() and ".db" not in one.name}
    assert after == {path: data for path, data in before.items() if ".db" not in path}
    assert result(handing)["changed"] is False


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([{"id": "1" * 32}], "entry 0 has no name"),
        ([{"name": "../x"}], "name of entry 0 is '../x'"),
        ([{"name": "x.partial"}], "name of entry 0"),
        ([{"name": "x", "id": "y"}], "id of entry 0 is 'y'"),
        ([{"name": "x", "key": "\x1b"}], "key of entry 0"),
        ([{"name": "x", "side": "target"}], "source or shared"),
        ([{"name": "x"}, {"name": "x"}], "one image is there twice"),
    ],
)
def test_words_of_another_host_are_checked(raw: list[dict[str, str]], words: str) -> None:
    with pytest.raises(Exception, match="handoffs: ") as caught:
        parse_entries(raw)
    assert words in str(caught.value)


def test_one_store_that_both_see(hosts: Hosts) -> None:
    shared = {"store": str(hosts.store("a")), "transfer": "shared"}
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),), **shared))
    assert [one.after for one in hosts.step("b", "received", offered, **shared)] == [UNSPENT], "nothing has to come"
    accepted = entries_of(hosts.step("b", "accepted", offered, **shared))
    fenced = entries_of(hosts.step("a", "fenced", accepted, **shared))
    assert hosts.state("a") == MOVED
    with pytest.raises(CriuError):
        hosts.step("a", "taken", fenced, **shared)
    hosts.step("b", "taken", fenced, **shared)
    life = read_life(str(hosts.image()))
    assert (life.state, life.host) == (UNSPENT, MACHINES["b"])
    returned = entries_of(hosts.step("b", "returned", fenced, **shared))
    hosts.step("a", "reclaimed", returned, **shared)
    assert read_life(str(hosts.image())) == Life()


def shared_and_taken(hosts: Hosts) -> tuple[dict[str, str], tuple[Entry, ...]]:
    """One image that both see, which host b may restore. Options of each step, and what the fence returned."""
    shared = {"store": str(hosts.store("a")), "transfer": "shared"}
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),), **shared))
    accepted = entries_of(hosts.step("b", "accepted", offered, **shared))
    fenced = entries_of(hosts.step("a", "fenced", accepted, **shared))
    hosts.step("b", "taken", fenced, **shared)
    return shared, fenced


@pytest.mark.parametrize("state", [UNSPENT, RESTORING, SPENT])
def test_one_that_both_see_and_that_was_taken_goes_the_same_way_again(hosts: Hosts, state: str) -> None:
    """The controller died behind that step, and the same command is run again."""
    shared, _fenced = shared_and_taken(hosts)
    path = str(hosts.image())
    write_life(path, replace(read_life(path), state=state))
    before = read_life(path)
    offered = entries_of(hosts.step("a", "offered", (Entry(NAME),), **shared))
    assert [one.after for one in hosts.step("b", "received", offered, **shared)] == [state]
    accepted = entries_of(hosts.step("b", "accepted", offered, **shared))
    fenced = entries_of(hosts.step("a", "fenced", accepted, **shared))
    hosts.step("b", "taken", fenced, **shared)
    assert read_life(path) == before
    with pytest.raises(CriuError, match="only the host that"):
        hosts.step("a", "offered", (Entry(NAME),), **shared, peer="c" * 32)
    with pytest.raises(CriuError, match="can't be offered"):
        hosts.step("a", "offered", (Entry(NAME),), store=shared["store"])
    assert read_life(path) == before


def test_one_that_both_see_is_told_as_such_to_whoever_asks_from_a_plan(hosts: Hosts) -> None:
    shared, fenced = shared_and_taken(hosts)
    asked = (Entry(NAME, fenced[0].id),)
    assert [(one.after, one.entry.side) for one in hosts.step("b", "returned", asked, **shared)] == [(MOVED, SHARED)]
