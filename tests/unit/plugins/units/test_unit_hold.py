# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holding and letting go, with a real journal and a systemd on paper: several owners, crashes, reboots, failures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, List, Set

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _unit_hold
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal, open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold import UnitHoldError, UnitHolds, _member
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import (
    HELD_USEC,
    IMAGE,
    NEVER,
    SUSPEND,
    Look,
    judge,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_rows import (
    image_owner,
    process_owner,
    read_rows,
)
from tests.unit.plugins.journal.helpers import begin
from tests.unit.plugins.units.helpers import BOOT, LATER, MAIN, PaperSystemd, identity, member, service

LINEAGE = "0123456789abcdef0123456789abcdef"
OWNER = image_owner(LINEAGE)


class Here:
    """A host on paper; `dead` are processes that have ended."""

    def __init__(self, directory: Path) -> None:
        self.journal: Journal = open_journal(str(directory / "journal" / "checkpoint.db"))
        self.systemd = PaperSystemd(directory, service())
        self.dead: Set[int] = set()
        self.boot = BOOT
        self.units = UnitHolds(
            self.journal, self.systemd, lambda one: one.pid not in self.dead, lambda: self.boot, root=True
        )

    def look(self, kind: str, *pids: int) -> Look:
        members = [member(pid, parent=MAIN if pid != MAIN else 1) for pid in pids or (MAIN,)]
        return judge(kind, members, self.systemd.services(["a.service"]), True)

    def owners(self) -> List[str]:
        return [row.owner for row in read_rows(self.journal)]

    @property
    def watchdog(self) -> int:
        return self.systemd.loaded["a.service"].watchdog_usec

    @property
    def restart(self) -> str:
        return self.systemd.loaded["a.service"].restart

    def run_dies(self) -> None:
        """Whoever held: this very process, for the journal."""
        self.dead.add(os.getpid())


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    one = Here(tmp_path)
    with one.journal:
        yield one


def test_a_suspended_process_has_its_watchdog_back_afterwards(here: Here) -> None:
    (done,) = here.units.hold(here.look(SUSPEND))
    assert done.as_dict() == {"unit": "a.service", "held": True, "watchdog": 2.0, "restart": False}
    assert here.watchdog == HELD_USEC and here.systemd.reloads == 0 and here.restart == "always"
    (done,), warnings = here.units.release_processes([identity()])
    assert (done.held, done.watchdog, warnings) == (False, 2.0, [])
    # The report and the old time in one message, so that no report is overdue in between.
    assert here.systemd.told[-1] == (MAIN, ("WATCHDOG=1", "WATCHDOG_USEC=2000000"))
    assert here.watchdog == 2_000_000 and here.owners() == []
    assert here.units.release_processes([identity()]) == ([], [])


def test_an_image_holds_all_and_lets_go_of_a_unit_that_is_over(here: Here) -> None:
    (done,) = here.units.hold(here.look(IMAGE), OWNER)
    assert done.restart and here.restart == "no" and here.systemd.reloads == 1
    here.systemd.dies("a.service")
    told = len(here.systemd.told)
    (done,), warnings = here.units.release([OWNER])
    assert not done.held and not warnings and len(here.systemd.told) == told
    assert here.restart == "always" and list(here.systemd.directory.iterdir()) == []


def test_once_more_changes_nothing(here: Here) -> None:
    here.units.hold(here.look(IMAGE), OWNER)
    rows, told = read_rows(here.journal), list(here.systemd.told)
    here.units.hold(here.look(IMAGE), OWNER)
    assert read_rows(here.journal) == rows and here.systemd.told == told and here.systemd.reloads == 1
    assert rows[0].watchdog_usec == 2_000_000


def test_the_last_owner_lets_go(here: Here) -> None:
    here.units.hold(here.look(SUSPEND))
    here.units.hold(here.look(IMAGE), OWNER)
    assert {row.watchdog_usec for row in read_rows(here.journal)} == {2_000_000}
    done, _warnings = here.units.release([OWNER])
    assert done == [] and here.watchdog == HELD_USEC and here.restart == "always", "the process still needs its part"
    here.units.release_processes([identity()])
    assert here.watchdog == 2_000_000 and here.owners() == []


def test_a_service_that_was_started_anew_keeps_its_own_watchdog(here: Here) -> None:
    here.units.hold(here.look(SUSPEND))
    here.systemd.starts("a.service", MAIN + 1, 5_000_000)
    told = len(here.systemd.told)
    assert here.units.release_processes([identity()])[1] == []
    assert here.watchdog == 5_000_000 and len(here.systemd.told) == told


def test_what_does_not_come_into_force_is_undone(here: Here) -> None:
    here.systemd.obeys = False
    for kind, owner, words in ((SUSPEND, "", "its watchdog is still 2 s"), (IMAGE, OWNER, "its watchdog is still 2 s")):
        with pytest.raises(UnitHoldError, match=words) as caught:
            here.units.hold(here.look(kind), owner)
        assert caught.value.finding.id == "unit_hold"
        assert here.owners() == [] and list(here.systemd.directory.iterdir()) == []


def test_a_restart_that_somebody_else_insists_on_is_told(here: Here) -> None:
    here.systemd.loaded["a.service"] = service(watchdog_usec=0)
    here.systemd.obeys = False
    with pytest.raises(UnitHoldError, match="still has Restart=always"):
        here.units.hold(here.look(IMAGE), OWNER)
    assert here.owners() == [] and not here.systemd.drop_in("a.service")


def test_a_reload_that_fails_leaves_nothing_new(here: Here) -> None:
    here.systemd.broken = "systemctl daemon-reload: no answer"
    with pytest.raises(UnitHoldError, match="no answer"):
        here.units.hold(here.look(IMAGE), OWNER)
    assert not here.systemd.drop_in("a.service") and here.watchdog == 2_000_000
    # Removed, but systemd has not read that: the next run tries again.
    assert here.owners() == [OWNER]
    here.systemd.broken = ""
    here.run_dies()
    (warning,) = here.units.mend()
    assert "a.service was still held; let go" in warning
    assert here.owners() == []


def test_what_can_not_be_let_go_is_told_and_tried_again(here: Here) -> None:
    here.units.hold(here.look(IMAGE), OWNER)
    here.systemd.broken = "systemctl daemon-reload: Access denied"
    done, warnings = here.units.release([OWNER])
    assert done == [] and "a.service stays held" in warnings[0] and "Access denied" in warnings[0]
    here.systemd.broken = ""
    assert here.units.release([OWNER])[1] == [] and here.restart == "always"


def test_findings_are_no_hold(here: Here) -> None:
    here.systemd.loaded["a.service"] = service(active="activating")
    with pytest.raises(UnitHoldError, match="activating"):
        here.units.hold(here.look(SUSPEND))
    assert here.owners() == []


def test_mending_waits_for_the_run_and_for_the_suspended(here: Here) -> None:
    here.units.hold(here.look(SUSPEND))
    assert here.units.mend() == [] and here.watchdog == HELD_USEC, "the run is at it"
    here.run_dies()
    operation = begin(here.journal, MAIN)
    here.journal.finish(operation.id, "suspended")
    assert here.units.mend() == [] and here.watchdog == HELD_USEC, "it is suspended"
    here.journal.finish(operation.id, "done")
    assert len(here.units.mend()) == 1 and here.watchdog == 2_000_000


def test_mending_lets_go_of_a_process_that_has_ended(here: Here) -> None:
    here.units.hold(here.look(SUSPEND))
    begin(here.journal, MAIN)
    here.dead.add(MAIN)
    here.systemd.dies("a.service")
    assert here.units.mend() == [] and here.owners() == []


def images(here: Here, *statuses: str, leave: str = "killed") -> None:
    for status in statuses:
        row = here.journal.begin_image(
            lineage=LINEAGE, path="/i", run_id="r", root=identity(), leave=leave, worker=None, status="active"
        )
        here.journal.finish_image(row.id, status)


@pytest.mark.parametrize(
    ("statuses", "stays"),
    [
        ((), False),
        (("undone",), False),
        (("gone",), True),
        (("sealed",), True),
        (("gone", "failed"), True),
        (("gone", "restored"), False),
        (("gone", "restored", "undone"), False),
    ],
)
def test_mending_an_image_asks_what_became_of_it(here: Here, statuses: "tuple[str, ...]", stays: bool) -> None:
    here.units.hold(here.look(IMAGE), OWNER)
    images(here, *statuses)
    assert here.units.mend() == [], "the run is at it"
    here.run_dies()
    here.dead.add(MAIN)
    assert bool(here.units.mend()) is not stays
    assert here.owners() == ([OWNER] if stays else [])


def test_a_snapshot_holds_nothing_once_it_is_made(here: Here) -> None:
    here.units.hold(here.look(IMAGE), OWNER)
    images(here, "sealed", leave="running")
    here.run_dies()
    assert len(here.units.mend()) == 1 and here.watchdog == 2_000_000


def test_a_dump_that_died_keeps_its_hold_until_the_process_runs(here: Here) -> None:
    here.units.hold(here.look(IMAGE), OWNER)
    here.run_dies()
    operation = begin(here.journal, MAIN)
    assert here.units.mend() == [] and here.watchdog == HELD_USEC
    here.journal.finish(operation.id, "undone")
    assert len(here.units.mend()) == 1 and here.watchdog == 2_000_000


def test_a_reboot_ends_it_but_an_image_remembers_its_unit(here: Here) -> None:
    here.units.hold(here.look(SUSPEND))
    here.units.hold(here.look(IMAGE), OWNER)
    here.run_dies()
    here.boot = LATER
    here.systemd.write("a.service", "")
    here.systemd.reload()
    reloads = here.systemd.reloads
    assert here.units.mend() == [] and here.owners() == [OWNER]
    here.systemd.starts("a.service", MAIN + 7)
    (found,) = here.units.second_copies(LINEAGE)
    assert found.id == "unit_active" and found.severity == "blocking"
    assert here.units.second_copies("f" * 32) == ()
    here.systemd.dies("a.service")
    assert here.units.second_copies(LINEAGE) == ()
    assert here.units.release([OWNER]) == ([], []) and here.owners() == [] and here.systemd.reloads == reloads


def test_units_that_an_image_names_are_looked_at_as_well(here: Here) -> None:
    (found,) = here.units.second_copies(LINEAGE, ["a.service"])
    assert found.subject == "a.service"


def lives_in(here: Here, monkeypatch: pytest.MonkeyPatch, group: Path) -> Identity:
    """A process that was restored into a scope of ours."""
    group.mkdir()
    monkeypatch.setattr(_unit_hold, "_own_scope", lambda pid: str(group))
    return identity(MAIN + 9)


def test_a_unit_does_not_start_beside_what_was_restored(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here.units.hold(here.look(IMAGE), OWNER)
    here.systemd.dies("a.service")
    scope = tmp_path / "gpufleet-restored-x.scope"
    (done,), warnings = here.units.release([OWNER], lives_in(here, monkeypatch, scope))
    assert not done.held and not warnings and here.restart == "always"
    assert here.systemd.drop_in("a.service").splitlines()[1:] == ["[Unit]", f"AssertPathExists=!{scope}"]
    here.run_dies()
    assert here.units.mend() == [] and here.owners() == [OWNER], "it lives"
    scope.rmdir()
    assert here.units.mend() == [] and here.owners() == [] and not here.systemd.drop_in("a.service")


def test_what_was_restored_goes_into_an_image_again(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here.units.hold(here.look(IMAGE), OWNER)
    here.systemd.dies("a.service")
    here.units.release([OWNER], lives_in(here, monkeypatch, tmp_path / "gpufleet-restored-x.scope"))
    (done,) = here.units.hold(Look(IMAGE), OWNER)
    assert done.unit == "a.service" and NEVER in here.systemd.drop_in("a.service")
    here.systemd.broken = "no answer"
    _done, warnings = here.units.release([OWNER])
    assert warnings and [row.reach for row in read_rows(here.journal)] == ["start"]
    here.systemd.broken = ""
    assert here.units.release([OWNER])[1] == [] and here.owners() == []


def test_a_hold_that_fails_leaves_what_was_held_before(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here.units.hold(here.look(IMAGE), OWNER)
    here.systemd.dies("a.service")
    here.units.release([OWNER], lives_in(here, monkeypatch, tmp_path / "gpufleet-restored-x.scope"))
    before, text = read_rows(here.journal), here.systemd.drop_in("a.service")
    here.systemd.broken = "no answer"
    with pytest.raises(UnitHoldError, match="no answer"):
        here.units.hold(Look(IMAGE), OWNER)
    assert read_rows(here.journal) == before and here.systemd.drop_in("a.service") == text


def test_after_a_reboot_it_does_not_start_beside_what_was_restored_either(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here.units.hold(here.look(IMAGE), OWNER)
    here.systemd.write("a.service", "")
    here.systemd.reload()
    here.systemd.dies("a.service")
    here.boot = LATER
    here.units.release([OWNER], lives_in(here, monkeypatch, tmp_path / "gpufleet-restored-x.scope"))
    assert [(row.boot_id, row.reach) for row in read_rows(here.journal)] == [(LATER, "beside")]
    assert "AssertPathExists=!" in here.systemd.drop_in("a.service")


def test_check_mode_mends_nothing(here: Here) -> None:
    here.units.hold(here.look(SUSPEND))
    here.run_dies()
    with open_journal(here.journal.path, create=False) as reading:
        units = UnitHolds(reading, here.systemd, lambda one: one.pid not in here.dead, lambda: BOOT, root=True)
        assert units.mend() == [] and here.watchdog == HELD_USEC


def test_without_systemd_there_is_nothing_to_hold(here: Here) -> None:
    here.systemd.directory.rmdir()
    look = here.units.look(SUSPEND, [identity()])
    assert look == Look(SUSPEND) and here.units.hold(look) == []


def test_processes_are_read_from_the_host() -> None:
    me = read_identity(os.getpid())
    assert me is not None
    seen = _member(me)
    assert seen is not None and (seen.pid, seen.parent) == (os.getpid(), os.getppid()) and seen.paths
    assert _member(Identity(me.pid, me.start_ticks + 1, me.boot_id)) is None


def test_owners_are_told_apart() -> None:
    assert process_owner(identity()) != process_owner(identity(boot=LATER))
