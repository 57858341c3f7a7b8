# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The phases of a drain of one host: which comes after which, what is left to do, and who may have the host.

Pure. The open row of the table `drains` is the lock of the host; what is decided here is decided inside one transaction
on it (_drain_rows.py).
"""

from __future__ import annotations

import time
from typing import Any, Dict, FrozenSet, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

CLAIMED, SUSPENDING, SUSPENDED, MAINTENANCE = "claimed", "suspending", "suspended", "maintenance"
RESTORING, RESTORED, RELEASED = "restoring", "restored", "released"
UNDOING, UNDONE = "undoing", "undone"
#: Forward only.
ORDER: Tuple[str, ...] = (CLAIMED, SUSPENDING, SUSPENDED, MAINTENANCE, RESTORING, RESTORED, RELEASED)
PHASES: Tuple[str, ...] = (*ORDER, UNDOING, UNDONE)
#: With these the row is closed: the host is nobody's.
ENDS: FrozenSet[str] = frozenset((RELEASED, UNDONE))
#: What is written before anything is suspended.
BEGINNINGS: FrozenSet[str] = frozenset((CLAIMED, SUSPENDING))

WORK: Tuple[str, ...] = ("scheduler", "before_suspend", "suspend", "maintenance", "restore", "after_restore", "release")
_TODO: Mapping[str, Tuple[str, ...]] = {
    CLAIMED: WORK,
    SUSPENDING: WORK[2:],
    SUSPENDED: WORK[3:],
    MAINTENANCE: WORK[3:],
    RESTORING: WORK[4:],
    RESTORED: WORK[5:],
    RELEASED: (),
    UNDOING: ("undo",),
    UNDONE: WORK,
}
#: What may come next. Restoring from suspending: a suspend that went half way is taken back.
_NEXT: Mapping[str, FrozenSet[str]] = {
    CLAIMED: frozenset((SUSPENDING, UNDOING)),
    SUSPENDING: frozenset((SUSPENDED, RESTORING, UNDOING)),
    SUSPENDED: frozenset((MAINTENANCE, RESTORING)),
    MAINTENANCE: frozenset((RESTORING,)),
    RESTORING: frozenset((RESTORED,)),
    RESTORED: frozenset((RELEASED,)),
    UNDOING: frozenset((UNDONE,)),
}
_PROVES: Mapping[str, str] = {
    SUSPENDED: "that every process is suspended",
    RESTORED: "that every process runs",
    RELEASED: "that the host is given back",
    UNDONE: "that nothing is left of it",
}


class DrainError(Exception):
    """subject: whom it is about. evidence: what was seen. reason: why it matters. remedy: what helps. option: what
    overrides it, "" for nothing. As a string: all of it, for the operator."""

    def __init__(self, subject: str, evidence: str, reason: str, remedy: str, option: str = "") -> None:
        words = [f"{subject}: {evidence}", reason, remedy, f"Override: {option}" if option else ""]
        super().__init__(" ".join(sentence(word) for word in words if word))
        self.subject = subject
        self.evidence = evidence
        self.reason = reason
        self.remedy = remedy
        self.option = option


def sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


@dataclass(frozen=True)
class Drain:
    """A row of the table. runs: every run that it has belonged to, oldest first, `run_id` among them.
    boot_id: when it was opened; suspended_boot_id: when `suspended` was proved, "" before.
    processes: identity, executable, device_bytes, as they were suspended. packages: manager, held, already, why.
    after_operation, after_image: the last ids of those tables before it: what it did comes later.
    opened, updated, closed: seconds since the epoch; closed is None while the host is its own.
    """

    id: int
    run_id: str
    runs: Tuple[str, ...]
    kind: str
    attempt: int
    controller: str
    phase: str
    mode: str
    store: str
    boot_id: str
    suspended_boot_id: str
    selection: Mapping[str, Any]
    processes: Tuple[Mapping[str, Any], ...]
    scheduler: Mapping[str, Any]
    packages: Mapping[str, Any]
    declares: Tuple[str, ...]
    message: str
    after_operation: int
    after_image: int
    opened: float
    updated: float
    closed: Optional[float]

    @property
    def is_open(self) -> bool:
        return self.closed is None


@dataclass(frozen=True)
class Ask:
    """Who asks for which phase, in the words of the module's options. check: only what would be is asked for, so what
    comes before it may not be there."""

    phase: str
    run_id: str = ""
    attempt: int = 0
    controller: str = ""
    kind: str = "drain"
    take_over: str = ""
    accept_loss: bool = False
    check: bool = False


@dataclass(frozen=True)
class Found:
    """open: the row that has the host. last: the newest closed one, of the run that asks where it names itself."""

    open: Optional[Drain]
    last: Optional[Drain]
    since: float = 0.0


@dataclass(frozen=True)
class Claim:
    """What the one who asks has. row: the row that it is about; None is a new one, or with `nothing` none at all.
    taken_over: from which run, "" from none. settled: the row has ended, and is only looked at. nothing: this host has
    no drain, and none is needed."""

    row: Optional[Drain]
    run_id: str
    runs: Tuple[str, ...]
    attempt: int
    taken_over: str = ""
    settled: bool = False
    nothing: bool = False


def todo(phase: str) -> Tuple[str, ...]:
    """What a run has still to do on a host in this phase; "" is a host without a drain that this run has claimed."""
    return _TODO.get(phase, ())


def prefix(ask: Ask) -> str:
    """Of the variables of the role that asks."""
    if ask.kind == "drain":
        return "gpu_drain"
    return "gpu_restore" if ask.phase in (RESTORING, RESTORED, RELEASED) else "gpu_suspend"


def controller_host(controller: str) -> str:
    return controller.partition(" ")[0]


def at_rest(row: Drain) -> bool:
    """Suspended by itself: whoever did that has nothing more to do there, and anybody may bring it back."""
    return row.kind == "suspend" and row.phase == SUSPENDED


# Who may have the host


def claim(ask: Ask, found: Found, fresh: str) -> Claim:
    """fresh: a run id that nobody has, for who names none. Raises DrainError."""
    if found.open is not None:
        return _claim_open(ask, found.open, found.since)
    if ask.check and ask.phase not in BEGINNINGS:
        return Claim(None, ask.run_id, (), ask.attempt, nothing=True)
    if not ask.run_id:
        return _claim_unnamed(ask, found.last, fresh)
    return _claim_named(ask, found.last)


def _claim_open(ask: Ask, row: Drain, since: float) -> Claim:
    run_id = ask.run_id or (row.run_id if row.kind == "suspend" else "")
    if run_id == row.run_id:
        _check_attempt(ask, row)
        _check_controller(ask, row, since)
        return Claim(row, run_id, row.runs, ask.attempt or row.attempt + 1)
    if not run_id or ask.take_over != row.run_id:
        raise _held(ask, row, since)
    runs = row.runs if run_id in row.runs else (*row.runs, run_id)
    return Claim(row, run_id, runs, ask.attempt or row.attempt + 1, taken_over=row.run_id)


def _check_attempt(ask: Ask, row: Drain) -> None:
    if not ask.attempt or ask.attempt >= row.attempt:
        return
    raise DrainError(
        f"run {row.run_id}, attempt {ask.attempt}",
        f"attempt {row.attempt} of this run has taken over{_by(row)}",
        "Two attempts that work on one host would undo what the other does",
        "Let the newer one go on; if it has ended, run the same command again, which begins the next attempt",
    )


def _check_controller(ask: Ask, row: Drain, since: float) -> None:
    if not ask.controller or not row.controller or ask.take_over == row.run_id:
        return
    if controller_host(ask.controller) != controller_host(row.controller):
        if at_rest(row):
            return
        raise _held(ask, row, since)
    if ask.attempt == row.attempt and ask.controller != row.controller:
        raise DrainError(
            f"run {row.run_id}",
            f"its attempt {row.attempt} belongs to another ansible-playbook{_by(row)}",
            "Two that work on one host at once would undo what the other does",
            f"Wait for that one, or end it and run the same command again; {_resume_words(ask, row)}",
        )


def _held(ask: Ask, row: Drain, since: float) -> DrainError:
    name = prefix(ask)
    had = f", which took it over from run {ask.run_id}" if ask.run_id in row.runs and ask.run_id != row.run_id else ""
    return DrainError(
        "this host",
        f"it belongs to the {row.kind} of run {row.run_id}{had} (attempt {row.attempt}{_by(row)}), which is at "
        f"{row.phase} since {clock(since or row.updated)}",
        "Two runs on one host would each bring back or suspend what is the other's",
        f"To go on with that run where it was begun: {name}_run_id: {row.run_id}. To finish it from here, once nobody "
        f"works on it any more: {name}_take_over: {row.run_id} (option take_over)",
    )


def _resume_words(ask: Ask, row: Drain) -> str:
    return f"{prefix(ask)}_take_over: {row.run_id} takes it over"


def _by(row: Drain) -> str:
    words = row.controller.split()
    if len(words) < 2:
        return f", from {printable(row.controller)}" if row.controller else ""
    process = f", process {printable(words[2].partition(':')[0])}" if len(words) > 2 else ""
    return f", by {printable(words[1])} on {printable(words[0])}{process}"


def _claim_unnamed(ask: Ask, last: Optional[Drain], fresh: str) -> Claim:
    if ask.phase in BEGINNINGS:
        return Claim(None, fresh, (fresh,), ask.attempt or 1)
    if ask.phase in (SUSPENDED, MAINTENANCE):
        raise _no_drain(ask, last)
    if last is not None and last.kind == "suspend":
        return Claim(last, last.run_id, last.runs, last.attempt, settled=True)
    return Claim(None, "", (), 0, nothing=True)


def _claim_named(ask: Ask, last: Optional[Drain]) -> Claim:
    if last is None:
        if ask.phase in BEGINNINGS:
            return Claim(None, ask.run_id, (ask.run_id,), ask.attempt or 1)
        raise _no_drain(ask, last)
    if last.run_id == ask.run_id:
        _check_attempt(ask, last)
    attempt = ask.attempt or last.attempt + 1
    again = last.phase == UNDONE or last.kind == "suspend"
    if ask.phase in BEGINNINGS and again:
        return Claim(None, ask.run_id, (ask.run_id,), attempt)
    if ask.phase == SUSPENDING or (last.phase == UNDONE and ask.phase not in (UNDOING, UNDONE)):
        raise DrainError(
            f"run {ask.run_id}",
            f"it ended on this host as {last.phase} at {clock(last.closed or last.updated)}",
            "Its processes run, and what comes next would begin anew",
            f"Begin with {CLAIMED}, or for another drain of the host with another {prefix(ask)}_run_id",
        )
    if last.phase == RELEASED and ask.phase in (UNDOING, UNDONE):
        raise DrainError(
            f"run {ask.run_id}",
            f"it has released this host at {clock(last.closed or last.updated)}",
            "Nothing is left to undo",
            "",
        )
    return Claim(last, ask.run_id, last.runs, attempt, settled=True)


def _no_drain(ask: Ask, last: Optional[Drain]) -> DrainError:
    if last is None:
        seen = f"run {ask.run_id} has nothing here" if ask.run_id else "nobody has claimed it"
    else:
        seen = f"the last run here was {last.run_id}, {last.phase} at {clock(last.closed or last.updated)}"
    return DrainError(
        "this host",
        f"it has no open drain; {seen}",
        f"{ask.phase} comes after {CLAIMED} or {SUSPENDING}",
        f"Look at gpu_drain_info, and at the journal and the run id that the task names ({prefix(ask)}_journal, "
        f"{prefix(ask)}_run_id)",
    )


# From phase to phase


def advance(now: str, ask: Ask) -> bool:
    """Whether the row goes from its phase to the one that is asked for; False: it is there already, or further. "" is a
    row that is not there yet. Raises DrainError."""
    wanted = ask.phase
    if now == "":
        return True
    if wanted == now or (now == UNDOING and wanted == CLAIMED):
        return False
    if wanted in ORDER and now in ORDER and ORDER.index(wanted) < ORDER.index(now):
        return False
    if wanted in _NEXT.get(now, frozenset()) or (wanted == RELEASED and now == RESTORING and ask.accept_loss):
        return True
    if ask.check and (now in ORDER[:2] or wanted in ORDER) and now != UNDOING:
        return True
    raise _no_way(now, wanted)


def _no_way(now: str, wanted: str) -> DrainError:
    if wanted in (UNDOING, UNDONE) and now in ORDER[2:]:
        return DrainError(
            "this host",
            f"it is at {now}",
            "From suspended on nothing is undone, since a maintenance may have begun; a host is never released by "
            "itself then",
            "Finish it: run the same command again, or recover.yml with gpu_drain_maintenance_done: true",
        )
    if now == UNDOING:
        return DrainError(
            "this host",
            f"a run has begun to undo what it did here, and {wanted} was asked for",
            "Half of its processes may be back",
            "Finish that first: run the same command again, or recover.yml",
        )
    proof = f", which proves {_PROVES[wanted]}," if wanted in _PROVES else ""
    after = " or ".join(phase for phase in PHASES if wanted in _NEXT.get(phase, frozenset()))
    return DrainError(
        "this host",
        f"it is at {now}, and {wanted} was asked for",
        f"{wanted}{proof} comes after {after}",
        "Run the same command again, which does what is left in its order",
    )


# What the maintenance will do


def check_declares(declares: Sequence[str], mode: str, pids: Sequence[int], ask: Ask) -> None:
    """pids: of the CUDA processes that are meant. Raises DrainError."""
    name = prefix(ask)
    subject = f"{name}_declares"
    if "reboot" in declares and mode == "memory":
        raise DrainError(
            subject,
            f"it has reboot, and {name}_mode is memory",
            "A reboot ends what is suspended in memory",
            f"Set {name}_mode: disk, or leave reboot out if the host is not booted",
        )
    if "driver_change" not in declares:
        return
    remedy = "End the processes before, or leave driver_change out and keep the driver (packages are held meanwhile)"
    if mode == "disk":
        raise DrainError(
            subject, f"it has driver_change, and {name}_mode is disk", "An image needs exactly its driver", remedy
        )
    if pids:
        raise DrainError(
            subject,
            f"it has driver_change, and {listed(pids)} {'are' if len(pids) > 1 else 'is'} selected",
            "A process that is suspended in memory keeps the library of the old driver mapped, and can't be resumed "
            "with a new one",
            remedy,
        )


def check_declares_late(declares: Sequence[str], row: Drain, ask: Ask) -> None:
    """The same, of a host where processes are suspended already: how they are can't be chosen any more. Raises
    DrainError."""
    if row.phase == SUSPENDING:
        check_declares(declares, row.mode, (), ask)
    if row.phase not in (SUSPENDED, MAINTENANCE) or not row.processes:
        return
    deadly = {"reboot": row.mode == "memory", "driver_change": True}
    found = [declare for declare in declares if deadly.get(declare, False)]
    if not found:
        return
    held = "in memory" if row.mode == "memory" else "on disk"
    pids = [int(one["identity"]["pid"]) for one in row.processes]
    raise DrainError(
        f"{prefix(ask)}_declares",
        f"it has {' and '.join(found)}, and run {row.run_id} has suspended {listed(pids)} {held}",
        "A reboot ends what is suspended in memory" if "reboot" in found else "They need the driver that they had",
        "Finish this run without it, and begin another one for that maintenance",
    )


# Words


def clock(at: float) -> str:
    """Seconds since the epoch, as UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def listed(pids: Sequence[int], most: int = 8) -> str:
    words = [f"PID {pid}" for pid in pids[:most]]
    if len(pids) > most:
        words.append(f"{len(pids) - most} more")
    return ", ".join(words)


def packages_of(row: Mapping[str, Any]) -> Dict[str, Any]:
    """With every key."""
    return {
        "manager": str(row.get("manager", "none")),
        "held": list(row.get("held", [])),
        "already": list(row.get("already", [])),
        "why": str(row.get("why", "")),
    }
