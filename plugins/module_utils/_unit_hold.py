# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds the systemd services of processes that are suspended or go into an image: no watchdog kills them, no second
copy is started. Let go again when they are back. docs/units.md.

    units = UnitHolds(journal)
    look = units.look(IMAGE, identities)          # reads; look.findings is what can't be held
    units.hold(look, image_owner(lineage))        # before the first of them is stopped
    units.release([image_owner(lineage)], root)   # after they run again, or were taken back; root: lives on

Held for an owner: an image by its lineage, else each process. Journalled before it is done. What a crash left is let go
by mend(); what a reboot left is gone with /run.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _unit_hold_plan as plan
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import read_membership
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import SETTLED, Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, is_alive, read_identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_read import read_stat
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_manager import Manager
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import (
    HELD_USEC,
    Done,
    Look,
    Member,
    Service,
    Wanted,
    seconds,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_rows import (
    Row,
    forget,
    process_owner,
    read_rows,
    record,
)

POLICIES = ("refuse", "hold")
#: Of what was restored (`_scope`).
SCOPES = "gpufleet-"
# Where systemd keeps its groups: version 2 alone, beside version 1, and version 1.
_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
# Of an image's rows: the process is in the image, or on its way there or back.
_AWAY = frozenset(("active", "dumped", "sealed", "gone", "restoring"))


class UnitHoldError(Exception):
    """A unit could not be held. What had been begun is undone."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message())
        self.finding = finding


class UnitHolds:
    """manager, alive, boot_id, root: for tests."""

    def __init__(
        self,
        journal: Journal,
        manager: Optional[Manager] = None,
        alive: Callable[[Identity], bool] = is_alive,
        boot_id: Callable[[], str] = read_boot_id,
        root: Optional[bool] = None,
    ) -> None:
        self._journal = journal
        self._manager = manager or Manager()
        self._alive = alive
        self._boot_id = boot_id
        self._root = os.geteuid() == 0 if root is None else root

    # Before

    def look(self, kind: str, members: Sequence[Identity]) -> Look:
        """What would have to be held for these processes. kind: SUSPEND or IMAGE. Reads only. Nothing, on a host that
        systemd does not run."""
        if not members or not self._manager.is_there:
            return Look(kind)
        seen = [member for member in (_member(identity) for identity in members) if member is not None]
        return plan.judge(kind, seen, self._manager.services(plan.names_of(seen)), self._root)

    def hold(self, look: Look, owner: str = "") -> List[Done]:
        """Hold what was looked at. owner: image_owner(); "" for each of the processes. Once more is no harm.

        Raises UnitHoldError, JournalError: nothing is held then that was not held before.
        """
        if look.findings:
            raise UnitHoldError(look.findings[0])
        names = {one.service.name for one in look.wanted}
        # Restored before, and outside of its unit since: it goes back into an image.
        names.update(row.unit for row in read_rows(self._journal) if owner and row.owner == owner and row.beside)
        if not names:
            return []
        try:
            with self._manager.alone():
                return self._hold(look, owner, sorted(names))
        except OSError as error:
            raise UnitHoldError(_failed(min(names), f"{error.filename}: {error.strerror}")) from error

    def _hold(self, look: Look, owner: str, names: Sequence[str]) -> List[Done]:
        known = self._rows(names)
        before = {row.name: row for row in known}
        new = self._new_rows(look, owner, known)
        problems: Dict[str, str] = {}
        try:
            for row in new:
                record(self._journal, row)
            problems = self._apply(names, self._rows(names))
        except BaseException:
            self._undo(new, before)
            raise
        if problems:
            self._undo(new, before)
            unit, problem = next(iter(problems.items()))
            raise UnitHoldError(_failed(unit, problem))
        return [_done(one, True, self._rows([one])) for one in names]

    def _undo(self, new: Sequence[Row], before: Dict[str, Row]) -> None:
        for row in new:
            if row.name in before:
                record(self._journal, before[row.name])
        self._let_go([row for row in new if row.name not in before])
        names = sorted({row.unit for row in before.values()})
        self._apply(names, self._rows(names))

    def _new_rows(self, look: Look, owner: str, known: Sequence[Row]) -> List[Row]:
        """What another owner remembers of a held unit is what it was; systemd tells what it is."""
        rows = [
            replace(row, reach=plan.NO_START, beside="", runner=read_identity(os.getpid()))
            for row in known
            if owner and row.owner == owner and row.beside
        ]
        for one in look.wanted:
            service = one.service
            earlier = [row for row in known if row.unit == service.name]
            usec = service.watchdog_usec
            if service.watchdog_is_held:
                usec = max((row.watchdog_usec for row in earlier), default=0)
            for name, users in _owners(one, owner):
                before = next((row for row in earlier if row.owner == name), None)
                rows.append(
                    Row(
                        unit=service.name,
                        owner=name,
                        boot_id=self._boot_id(),
                        watchdog_usec=usec if one.watchdog else 0,
                        reach=one.reach,
                        main=before.main if before is not None else _main(service),
                        runner=read_identity(os.getpid()),
                        users=users,
                    )
                )
        return rows

    # After

    def release(self, owners: Iterable[str], lives: Optional[Identity] = None) -> Tuple[List[Done], List[str]]:
        """Let go of everything that is held for these owners; what others need stays held. Returns what was done, and
        warnings: what could not be is tried again by the next run. Raises JournalError.

        lives: the process goes on. Where that is outside of its unit, in a scope of this collection, the unit is let go
        but does not start beside it; from the end of the scope on it does.
        """
        wanted = set(owners)
        rows = [row for row in read_rows(self._journal) if row.owner in wanted]
        scope = _own_scope(lives.pid) if rows and lives is not None and self._alive(lives) else ""
        users = () if lives is None else (lives,)
        kept = [
            replace(row, boot_id=self._boot_id(), watchdog_usec=0, reach=plan.BESIDE, beside=scope, users=users)
            for row in rows
            if scope and row.lineage and row.reach
        ]
        return self._release(rows, kept)

    def release_processes(self, processes: Iterable[Identity]) -> Tuple[List[Done], List[str]]:
        return self.release(process_owner(identity) for identity in processes)

    def _release(self, rows: Sequence[Row], kept: Sequence[Row] = ()) -> Tuple[List[Done], List[str]]:
        if not rows:
            return [], []
        try:
            with self._manager.alone():
                return self._let_go(rows, kept)
        except OSError as error:
            return [], [f"units stay held: {error.filename}: {error.strerror}"]

    def _let_go(self, rows: Sequence[Row], kept: Sequence[Row] = ()) -> Tuple[List[Done], List[str]]:
        """kept: those that stay, with less. What went wrong stays as it was."""
        for row in kept:
            record(self._journal, row)
        here = [row for row in rows if row.boot_id == self._boot_id()]
        names = sorted({row.unit for row in (*here, *kept)})
        over = {row.name for row in rows} - {row.name for row in kept}
        left = [row for row in self._rows(names) if row.name not in over]
        problems = self._apply(names, left, here) if names and self._manager.is_there else {}
        for row in rows:
            if row.unit in problems:
                record(self._journal, row)
        forget(self._journal, [row for row in rows if row.name in over and row.unit not in problems])
        needed = {row.unit for row in left if row not in kept}
        free = [name for name in names if name not in problems and name not in needed]
        done = [_done(name, False, [row for row in rows if row.unit == name]) for name in free]
        return done, [f"{unit} stays held, the next run tries again: {words}" for unit, words in problems.items()]

    def mend(self) -> List[str]:
        """Let go of what a run that died has left held, and of what a reboot has. Returns warnings. Raises
        JournalError."""
        if not self._journal.file.writable:
            return []
        stale = [row for row in read_rows(self._journal) if self._is_left(row)]
        done, warnings = self._release(stale)
        # Of a process that has ended, nobody has missed anything.
        told = {
            row.unit
            for row in stale
            if not row.beside and (row.lineage or any(self._alive(user) for user in row.users))
        }
        words = "was still held; let go (a run that held it has died)"
        return warnings + [f"{one.unit} {words}" for one in done if one.unit in told]

    def _is_left(self, row: Row) -> bool:
        if row.beside:
            return row.boot_id != self._boot_id() or not os.path.isdir(row.beside)
        if row.lineage:
            # Of an earlier boot: nothing is held any more, and it tells where the image came from.
            return row.boot_id == self._boot_id() and not self._is_busy(row) and not self._is_away(row)
        if row.boot_id != self._boot_id() or not any(self._alive(user) for user in row.users):
            return True
        return not self._is_busy(row) and not any(self._is_in_use(user) for user in row.users)

    def _is_busy(self, row: Row) -> bool:
        return row.runner is not None and self._alive(row.runner)

    def _is_in_use(self, process: Identity) -> bool:
        """Suspended or locked, or somebody is at it."""
        operation = self._journal.latest(process)
        return operation is not None and (operation.status not in SETTLED or operation.goal == "locked")

    def _is_away(self, row: Row) -> bool:
        for one in self._journal.images_of_lineage(row.lineage):
            if one.status in _AWAY:
                return not (one.finished and one.leave == "running")
            if one.status == "restored":
                return False
        return any(self._is_in_use(user) for user in row.users if self._alive(user))

    # An image's unit

    def second_copies(self, lineage: str, units: Iterable[str] = ()) -> Tuple[Finding, ...]:
        """Units of the processes in an image that somebody has started since. units: their names, where an image tells
        more than the journal of this host."""
        origins: Dict[str, Optional[Identity]] = dict.fromkeys(units)
        for row in read_rows(self._journal):
            if row.lineage == lineage and row.reach:
                origins[row.unit] = row.main
        if not origins or not self._manager.is_there:
            return ()
        found = []
        for name, service in self._manager.services(origins).items():
            now = read_identity(service.main_pid) if service.main_pid else None
            found.append(plan.second_copy(service, origins[name], now))
        return tuple(one for one in found if one is not None)

    # Doing it

    def _rows(self, names: Sequence[str]) -> List[Row]:
        """Of this boot: what it holds."""
        return [row for row in read_rows(self._journal) if row.unit in names and row.boot_id == self._boot_id()]

    def _apply(self, names: Sequence[str], rows: Sequence[Row], before: Sequence[Row] = ()) -> Dict[str, str]:
        """Bring these units to what the rows ask for. before: those that ask no more, and know what it was. Returns
        unit to what went wrong."""
        problems: Dict[str, str] = {}
        services = self._manager.services(names)
        for name in names:
            problem = self._watch(services[name], rows, before)
            if problem:
                problems[name] = problem
        changed = [name for name in names if name not in problems and self._write(services[name], rows, problems)]
        if changed:
            problem = self._manager.reload()
            problems.update({name: problem for name in changed if problem})
        sound = [name for name in names if name not in problems]
        for name, service in self._manager.services(sound).items():
            problem = _wrong(service, rows, before)
            if problem:
                problems[name] = problem
        return problems

    def _watch(self, service: Service, rows: Sequence[Row], before: Sequence[Row]) -> str:
        """Returns why not."""
        if service.problem:
            return service.problem
        wanted, original = _usec(rows, service.name), _usec(before, service.name)
        users = [user.pid for row in (*rows, *before) if row.unit == service.name for user in row.users]
        # Where it has no main process, any of its processes may speak for it (NotifyAccess=all).
        sender = service.main_pid or next(iter(users), 0)
        if wanted and service.watchdog_usec and not service.watchdog_is_held:
            return self._manager.tell(sender, f"WATCHDOG_USEC={HELD_USEC}")
        if not wanted and original and service.watchdog_is_held:
            # It reports, so to speak, at this moment: its time begins anew.
            return self._manager.tell(sender, "WATCHDOG=1", f"WATCHDOG_USEC={original}")
        return ""

    def _write(self, service: Service, rows: Sequence[Row], problems: Dict[str, str]) -> bool:
        """Whether systemd has to read the unit anew."""
        name = service.name
        own = [row for row in rows if row.unit == name]
        text = plan.drop_in(plan.widest(row.reach for row in own), (row.beside for row in own if row.beside))
        try:
            if self._manager.drop_in(name) != text:
                self._manager.write(name, text)
                return True
        except OSError as error:
            problems[name] = f"{error.filename}: {error.strerror}"
            return False
        # An earlier reload may have failed.
        return service.has_drop_in != bool(text)


def _member(identity: Identity) -> Optional[Member]:
    """None: it has ended."""
    stat = read_stat(f"/proc/{identity.pid}/stat")
    membership = read_membership(identity.pid)
    if stat is None or membership is None or read_identity(identity.pid) != identity:
        return None
    return Member(identity, stat.parent, tuple(sorted({path for _hierarchy, path in membership})))


def _own_scope(pid: int) -> str:
    """The directory of the control group of a scope that this collection has made for it, "" for another place."""
    for _hierarchy, path in read_membership(pid) or ():
        name = path.rstrip("/").rpartition("/")[2]
        if not (name.startswith(SCOPES) and name.endswith(".scope")):
            continue
        for root in _ROOTS:
            if os.path.isfile(f"{root}{path}/cgroup.procs"):
                return root + path
    return ""


def _main(service: Service) -> Optional[Identity]:
    return read_identity(service.main_pid) if service.main_pid else None


def _owners(one: Wanted, owner: str) -> List[Tuple[str, Tuple[Identity, ...]]]:
    if owner:
        return [(owner, tuple(member.identity for member in one.members))]
    return [(process_owner(member.identity), (member.identity,)) for member in one.members]


def _usec(rows: Sequence[Row], unit: str) -> int:
    return max((row.watchdog_usec for row in rows if row.unit == unit), default=0)


def _wrong(service: Service, rows: Sequence[Row], before: Sequence[Row]) -> str:
    """What was read again does not fit what was asked for."""
    wanted, original = _usec(rows, service.name), _usec(before, service.name)
    reach = plan.widest(row.reach for row in rows if row.unit == service.name)
    if service.problem:
        return service.problem
    if wanted and service.watchdog_usec and not service.watchdog_is_held:
        return f"its watchdog is still {seconds(service.watchdog_usec):g} s"
    if original and not wanted and service.watchdog_is_held:
        return "its watchdog is still off"
    if reach and (service.stale or not service.has_drop_in):
        return f"systemd has not read {plan.DROP_IN} (drop-ins: {' '.join(service.drop_ins)})"
    if reach in (plan.NO_RESTART, plan.NO_START) and service.restart != "no":
        return f"it still has Restart={service.restart} (drop-ins: {' '.join(service.drop_ins)})"
    if not reach and service.has_drop_in:
        return f"{plan.DROP_IN} is still in force"
    return ""


def _done(unit: str, held: bool, rows: Sequence[Row]) -> Done:
    return Done(unit, held, seconds(_usec(rows, unit)), any(row.reach for row in rows))


def _failed(unit: str, problem: str) -> Finding:
    return plan.finding(
        unit,
        f"it could not be held: {problem}",
        "systemd would kill the process, or start a second copy of it",
        "Mend that, or do without unit_policy: what speaks against it is then told by name",
        None,
    )
