# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of gpu_drain: claims the host, does what belongs to a phase, proves it, and writes it down.

What is written before the work is durable before it begins. What is written after it is written only if this attempt
still has the host then.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import (
    _drain,
    _drain_findings,
    _drain_judge,
    _drain_mend,
    _driver_packages,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import parse_run_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.place import check_way
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_holders import DeviceHolder, read_holders
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain import Ask, Claim, Drain, DrainError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_evidence import (
    guards,
    read_scene,
    wait_until_idle,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_judge import Scene, Verdict, judge
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_rows import Change, Drains
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

#: How long what an earlier attempt still does on the host is waited for.
WAIT_SECONDS = 600.0
_BEFORE = (_drain.CLAIMED, _drain.SUSPENDING, _drain.MAINTENANCE, _drain.RESTORING, _drain.UNDOING)


@dataclass(frozen=True)
class Options:
    """Those of the module. mode: "" where none was given; select, scheduler, message, failure: None where none was."""

    ask: Ask
    mode: str
    store: str
    select: Optional[Mapping[str, Any]]
    declares: Tuple[str, ...]
    hold_packages: bool
    scheduler: Optional[Mapping[str, Any]]
    message: Optional[str]
    failure: Optional[str] = None


class Call:
    """row: what it is about, None for a host without one. before: its phase before, "" for none."""

    def __init__(
        self,
        options: Options,
        journal: Journal,
        find_packages: Callable[[], Tuple[Optional[_driver_packages.Manager], str]] = _driver_packages.find,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._options = options
        self._ask = options.ask
        self._journal = journal
        self._find_packages = find_packages
        self._wait_seconds = wait_seconds
        self.boot_id = read_boot_id()
        self.drains = Drains(journal.file)
        self.row: Optional[Drain] = None
        self.before = ""
        self.packages_before: Tuple[str, ...] = ()
        self.changed = False
        self.scene: Optional[Scene] = None
        self.verdict = Verdict((), (), (), ())
        self.holders: Tuple[DeviceHolder, ...] = ()
        self.findings: List[Finding] = []
        self.notes: List[str] = []
        self._stored = False

    def run(self) -> None:
        """Raises DrainError, JournalError, CriuError, SelectError, NvmlError and NvmlMissing."""
        fresh = parse_run_id(None)
        claim = _drain.claim(self._ask, self.drains.find(self._ask.run_id), fresh)
        self._take(claim.row)
        if claim.settled or claim.nothing or self._only_told(claim):
            self._settled(claim)
            return
        self._check_wishes(claim)
        moves = _drain.advance(self.before, self._ask)
        if self._ask.phase == _drain.MAINTENANCE:
            self._look()
            self._check_holders()
        if self._ask.check:
            self.row = self._foreseen(claim, moves)
            self.changed = moves or bool(claim.taken_over)
        else:
            moves = self._claim(fresh)
        try:
            self._work(moves)
        except DrainError as error:
            self._note_failure(str(error))
            raise

    # The row

    def _take(self, row: Optional[Drain]) -> None:
        self.row = row
        self.before = row.phase if row is not None else ""
        self.packages_before = tuple(_drain.packages_of(row.packages)["held"]) if row is not None else ()

    def _only_told(self, claim: Claim) -> bool:
        """A failure is told of a drain that has ended meanwhile: that begins no other one."""
        return self._options.failure is not None and claim.row is None

    def _settled(self, claim: Claim) -> None:
        """Nothing is written any more; or, in check mode, what comes before is not there."""
        if claim.nothing and self._ask.check:
            self.row = self._blank(claim, self._ask.phase)
            self.changed = True
        self._look()

    def _check_wishes(self, claim: Claim) -> None:
        """What can't be meant, before anything is written."""
        if claim.row is not None and self._ask.phase in (*_drain.BEGINNINGS, _drain.SUSPENDED, _drain.MAINTENANCE):
            _drain.check_declares_late(self._options.declares, claim.row, self._ask)
        if self._ask.phase not in _drain.BEGINNINGS:
            return
        row = claim.row
        if row is not None and row.phase not in ("", _drain.CLAIMED):
            if row.phase == _drain.SUSPENDING and self._options.mode not in ("", row.mode):
                raise DrainError(
                    f"{_drain.prefix(self._ask)}_mode",
                    f"it is {self._options.mode}, and this run has begun to suspend this host in mode {row.mode}",
                    "Some of its processes may be suspended that way already",
                    f"Run the same command again with mode {row.mode}, or undo that first (recover.yml)",
                )
            return
        mode, declares = self._mode(row), self._declares(row)
        pids: List[int] = []
        if "driver_change" in declares:
            scene = read_scene(self._journal, None, self._selection(row))
            pids = [one.identity.pid for one in scene.seen if one.selected]
        _drain.check_declares(declares, mode, pids, self._ask)
        if mode == "disk":
            check_way(self._options.store)

    def _mode(self, row: Optional[Drain]) -> str:
        return self._options.mode or (row.mode if row is not None else "memory")

    def _declares(self, row: Optional[Drain]) -> Tuple[str, ...]:
        return self._options.declares or (row.declares if row is not None else ())

    def _selection(self, row: Optional[Drain]) -> Mapping[str, Any]:
        return self._options.select or (row.selection if row is not None else {}) or {"all": True}

    def _wishes(self, row: Optional[Drain], runs: Tuple[str, ...]) -> Dict[str, Any]:
        """Fields that are settled by the time that the first process is suspended."""
        values: Dict[str, Any] = {
            "mode": self._mode(row),
            "declares": self._declares(row),
            "selection": dict(self._selection(row)),
        }
        if self._ask.phase == _drain.SUSPENDING and values["mode"] == "disk":
            values["store"] = os.path.join(self._options.store, runs[0])
        return values

    def _claim(self, fresh: str) -> bool:
        """Under the lock, all of it again: what was looked at before may be old. True: to another phase."""
        with self.drains.lock() as change:
            claim = _drain.claim(self._ask, change.find(self._ask.run_id), fresh)
            if claim.settled or claim.nothing or self._only_told(claim):
                raise DrainError(
                    f"run {claim.run_id}",
                    "its drain of this host has ended in this moment",
                    "Another task of it was faster",
                    "Run the same command again",
                )
            self._take(claim.row)
            row = claim.row
            if row is None:
                self.row = self._open(change, claim)
                self._stored = self.changed = True
                return True
            moves = _drain.advance(row.phase, self._ask)
            values = self._taking(row, claim)
            if self._ask.phase in _drain.BEGINNINGS and row.phase == _drain.CLAIMED:
                values.update(self._wishes(row, claim.runs))
            self.row = change.update(row.id, **values)
            if self._options.failure:
                self.row = change.fail(row.id, self._options.failure)
            if moves and self._ask.phase in _BEFORE:
                message = self._options.message or ""
                self.row = change.reach(row.id, self._ask.phase, self.boot_id, message)
            self.changed = (moves and self._ask.phase in _BEFORE) or bool(claim.taken_over)
        self._stored = True
        return moves

    def _open(self, change: Change, claim: Claim) -> Drain:
        return change.open(
            claim.run_id,
            claim.attempt,
            self._ask.phase,
            self.boot_id,
            kind=self._ask.kind,
            controller=self._ask.controller,
            scheduler=dict(self._options.scheduler or {}),
            message=self._options.message or "",
            **self._wishes(None, claim.runs),
        )

    def _taking(self, row: Drain, claim: Claim) -> Dict[str, Any]:
        values: Dict[str, Any] = {"run_id": claim.run_id, "runs": claim.runs, "attempt": claim.attempt}
        if claim.taken_over:
            values["kind"] = self._ask.kind
        if self._ask.controller or claim.taken_over:
            values["controller"] = self._ask.controller
        if self._options.scheduler is not None:
            values["scheduler"] = dict(self._options.scheduler)
        if self._options.message is not None:
            values["message"] = self._options.message
        return values

    def _blank(self, claim: Claim, phase: str) -> Drain:
        """A row that would be there, but for check mode. Nothing that is suspended is its own."""
        now = time.time()
        return Drain(
            id=0,
            run_id=claim.run_id,
            runs=claim.runs or ((claim.run_id,) if claim.run_id else ()),
            kind=self._ask.kind,
            attempt=claim.attempt or 1,
            controller=self._ask.controller,
            phase=phase,
            mode=self._mode(None),
            store="",
            boot_id=self.boot_id,
            suspended_boot_id="",
            selection=dict(self._selection(None)),
            processes=(),
            scheduler=dict(self._options.scheduler or {}),
            packages={},
            declares=self._options.declares,
            message=self._options.message or "",
            after_operation=1 << 62,
            after_image=1 << 62,
            opened=now,
            updated=now,
            closed=None,
        )

    def _foreseen(self, claim: Claim, moves: bool) -> Drain:
        row = claim.row
        if row is None:
            blank = self._blank(claim, self._ask.phase)
            return replace(blank, **self._wishes(None, claim.runs))
        changed = self._taking(row, claim)
        if self._ask.phase in _drain.BEGINNINGS and row.phase == _drain.CLAIMED:
            changed.update(self._wishes(row, claim.runs))
        return replace(row, **changed, phase=self._ask.phase if moves else row.phase)

    @property
    def _held(self) -> Drain:
        if self.row is None:
            raise ValueError("no row")
        return self.row

    def _reach(self, phase: str, message: str, **values: object) -> None:
        """The phase that was proved. Raises DrainError."""
        self._write(lambda change: change.reach(self._held.id, phase, self.boot_id, message, **values), **values)
        self.changed = True
        # Of what was seen, that which the phase is about.
        self.verdict = replace(judge(replace(self._read_scene(), phase=phase)), lost=self.verdict.lost)

    def _update(self, **values: object) -> None:
        """Raises DrainError."""
        self._write(lambda change: change.update(self._held.id, **values), **values)

    def _write(self, write: Callable[[Change], Drain], **values: Any) -> None:
        """Into the row, if this attempt has the host still. Raises DrainError."""
        mine = self._held
        if self._ask.check:
            self.row = replace(mine, **values)
            return
        with self.drains.lock() as change:
            now = change.get(mine.id)
            if not now.is_open or (now.run_id, now.attempt, now.controller) != (
                mine.run_id,
                mine.attempt,
                mine.controller,
            ):
                raise DrainError(
                    f"run {mine.run_id}, attempt {mine.attempt}",
                    f"the host was taken meanwhile by run {now.run_id}, attempt {now.attempt}"
                    if now.is_open
                    else f"the drain was ended meanwhile as {now.phase}",
                    "Two that work on one host would undo what the other does",
                    "Let that one go on",
                )
            self.row = write(change)

    def _note_failure(self, text: str) -> None:
        if not self._stored or self._ask.check:
            return
        mine = self._held
        try:
            self._write(lambda change: change.fail(mine.id, text))
        except DrainError:
            return  # its own row is somebody else's now

    # The work of a phase

    def _work(self, moves: bool) -> None:
        phase = self._ask.phase
        if phase in (_drain.SUSPENDING, _drain.RESTORING, _drain.UNDOING) and self._held.phase == phase:
            self._wait()
        if phase == _drain.SUSPENDING and self._held.phase == phase:
            self._hold_packages()
        if phase in (_drain.RESTORING, _drain.UNDOING) and self._held.phase == phase and not self._ask.check:
            self.notes.extend(_drain_mend.prepare(self._journal, self._held))
        if phase in (_drain.RESTORED, _drain.UNDONE) and moves and not self._ask.check:
            self.notes.extend(_drain_mend.let_go(self._journal, self._held))
        if phase != _drain.MAINTENANCE:
            self._look()
        foreseen = self._ask.check and moves
        if phase == _drain.SUSPENDED and (moves or self.before == phase) and not foreseen:
            self._suspended(moves)
        elif phase in (_drain.RESTORED, _drain.UNDONE) and (moves or self.before == phase) and not foreseen:
            self._restored(moves)
        elif phase == _drain.RELEASED and not foreseen:
            self._released()

    def _wait(self) -> None:
        if self._ask.check:
            return
        busy = wait_until_idle(self._journal, self._held, self._wait_seconds)
        if busy:
            raise DrainError(
                "this host",
                f"after {self._wait_seconds:g} s there is still at work for run {self._held.run_id}: "
                f"{'; '.join(busy[:4])}",
                "What it does must not be crossed, and no driver call is ended half way",
                "Wait until it is done, and run the same command again; where it hangs, look at that process",
            )

    def _look(self) -> None:
        """Reads everything anew."""
        row = self.row
        criteria = self._selection(row)
        self.scene = read_scene(self._journal, row, criteria)
        self.verdict = judge(self.scene)
        phase = row.phase if row is not None else ""
        if self._ask.phase in (_drain.SUSPENDED, _drain.MAINTENANCE) and phase in _drain.ORDER[:4]:
            self.holders = read_holders(guards(self._journal))
        self.findings = list(_drain_findings.of(self.verdict, self.holders, row.declares if row is not None else ()))

    def _check_holders(self) -> None:
        row = self.row
        if row is None or "gpu_reset" not in row.declares or not self.holders:
            return
        if self._ask.check and self.before not in (_drain.SUSPENDED, _drain.MAINTENANCE):
            return
        raise DrainError(
            f"{_drain.prefix(self._ask)}_declares",
            f"it has gpu_reset, and GPUs are in use by {'; '.join(_holder_words(one) for one in self.holders[:8])}",
            "A GPU that somebody has open can't be reset",
            "Stop them (nvidia-persistenced and monitoring are services), and run the same command again; or leave "
            "gpu_reset out",
        )

    def _hold_packages(self) -> None:
        row = self._held
        if not self._options.hold_packages:
            return
        manager, why = self._find_packages()
        packages = _drain.packages_of(row.packages)
        if manager is None:
            self._no_packages(dict(packages, manager="none", why=why))
            return
        seen = manager.read()
        ours = [name for name in packages["held"] if name in seen.names]
        wanted = [name for name in seen.names if name not in seen.held]
        packages.update(
            manager=manager.name,
            held=sorted({*ours, *wanted}),
            already=sorted(seen.held - set(ours)),
            why="" if seen.names else "no package of the NVIDIA driver is installed",
        )
        if not seen.names:
            self._no_packages(packages)
            return
        # Before: a name that is written and not held is let go for nothing, one that is held and not written stays so.
        self._update(packages=packages)
        if not wanted:
            return
        self.changed = True
        if not self._ask.check:
            manager.hold(wanted)
            left = [name for name in wanted if name not in manager.read().held]
            if left:
                self.findings.append(_drain_findings.packages(f"{', '.join(left)} could not be held"))

    def _no_packages(self, packages: Dict[str, Any]) -> None:
        self._update(packages=packages)
        self.notes.append(f"no package of the driver is held: {packages['why']}")

    def _let_packages_go(self) -> None:
        packages = _drain.packages_of(self._held.packages)
        if not packages["held"]:
            return
        manager, why = self._find_packages()
        if manager is None:
            raise DrainError(
                "packages of the driver",
                f"{', '.join(packages['held'])} were held with {packages['manager']}, and now {why}",
                "They would stay held",
                "Install what is missing, and run the same command again",
            )
        seen = manager.read()
        held = [name for name in packages["held"] if name in seen.held]
        if held:
            manager.let_go(held)
        self._update(packages=dict(packages, held=[]))

    def _suspended(self, moves: bool) -> None:
        scene = self._read_scene()
        problems = _drain_judge.unsuspended(scene)
        _refuse(
            problems,
            "A maintenance would lose what is not suspended",
            "Run the same command again, which suspends what came later; keep new work away with the scheduler",
        )
        if not self._ask.accept_loss:
            self._check_lost()
        self._check_holders()
        if moves:
            self._reach(
                _drain.SUSPENDED,
                self._options.message or "",
                processes=self._remembered(),
                suspended_boot_id=self.boot_id,
            )

    def _restored(self, moves: bool) -> None:
        problems = _drain_judge.unrestored(self._read_scene(), self.verdict)
        _refuse(
            problems,
            "What is not seen to run is not back",
            "Run the same command again, which brings back what is left",
        )
        if not self._ask.accept_loss:
            self._check_lost()
        message = self._options.message or ""
        if self.verdict.lost:
            message = f"accepted as lost: {_lost_words(self.verdict)}"
        if not moves:
            return
        values: Dict[str, Any] = {"processes": self._remembered()}
        if self._ask.phase == _drain.UNDONE:
            self._let_packages_go()
        self._reach(self._ask.phase, message, **values)

    def _released(self) -> None:
        problems = _drain_judge.unrestored(self._read_scene(), self.verdict)
        if problems:
            raise DrainError(
                "this host",
                "; ".join(problems[:8]),
                "It would be left behind",
                "Bring it back first: run the same command again",
            )
        if not self._ask.accept_loss:
            self._check_lost()
        lost = f"accepted as lost: {_lost_words(self.verdict)}" if self.verdict.lost else ""
        if self._ask.check:
            return
        self._let_packages_go()
        self._reach(_drain.RELEASED, lost or self._options.message or "")

    def _check_lost(self) -> None:
        if not self.verdict.lost:
            return
        raise DrainError(
            "this host",
            f"lost is {_lost_words(self.verdict)}",
            "A process that does not come back has to be known",
            "What lives has been brought back as far as it can be. Look at what is lost; to go on without it: "
            f"{_drain.prefix(self._ask)}_accept_loss: true",
            "accept_loss: true",
        )

    def _remembered(self) -> Tuple[Mapping[str, Any], ...]:
        """What is this drain's own, and lives or is in an image."""
        return tuple(
            {
                "identity": identity_dict(one.identity),
                "executable": one.executable,
                "device_bytes": one.device_bytes,
            }
            for one in self.verdict.processes
            if one.state != _drain_judge.GONE and one.identity.pid not in self.verdict.others
        )

    def _read_scene(self) -> Scene:
        if self.scene is None:
            raise ValueError("nothing was read")
        return self.scene


def identity_dict(identity: Any) -> Dict[str, Any]:
    return {"pid": identity.pid, "start_ticks": identity.start_ticks, "boot_id": identity.boot_id}


def _holder_words(holder: DeviceHolder) -> str:
    return f"{holder.name} of {holder.user} ({', '.join(holder.files)})"


def _refuse(problems: Sequence[str], reason: str, remedy: str) -> None:
    """Raises DrainError if there are any; of many, the first ones are named."""
    if problems:
        more = f"; {len(problems) - 8} more" if len(problems) > 8 else ""
        raise DrainError("this host", "; ".join(problems[:8]) + more, reason, remedy)


def _lost_words(verdict: Verdict) -> str:
    return "; ".join(f"{one.what}: {one.why}" for one in verdict.lost[:8])
