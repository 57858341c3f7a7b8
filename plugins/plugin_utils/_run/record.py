# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the controller knows of a run: one record of the run, one of each host. Pure.

A view: the journal of each host is the truth, and `rebuilt` makes a host's record from it. Times are seconds since
the epoch, by the controller's clock; those that `rebuilt` brings are by the host's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

SCHEMA = 1

UNTOUCHED = "untouched"
IN_PROGRESS = "in_progress"
FINISHED = "finished"
FAILED = "failed"
UNDONE = "undone"
LOST = "lost"
OUTCOMES: Tuple[str, ...] = (UNTOUCHED, IN_PROGRESS, FINISHED, FAILED, UNDONE, LOST)

CLAIMED = "claimed"
SUSPENDING = "suspending"
SUSPENDED = "suspended"
MAINTENANCE = "maintenance"
RESTORING = "restoring"
RESTORED = "restored"
RELEASED = "released"
UNDOING = "undoing"
UNDONE_PHASE = "undone"
#: In the order in which a host goes through them; the last two instead of what follows `suspending`.
PHASES: Tuple[str, ...] = (
    CLAIMED,
    SUSPENDING,
    SUSPENDED,
    MAINTENANCE,
    RESTORING,
    RESTORED,
    RELEASED,
    UNDOING,
    UNDONE_PHASE,
)
#: After which nothing more happens to the host.
LAST_PHASES = frozenset((RELEASED, UNDONE_PHASE))
#: What was read again before they were written down: their processes are all that there are.
PROVED = frozenset((SUSPENDED, RESTORED, RELEASED))
PREFLIGHT = "preflight"
#: A host that got so far is finished rather than left as it is.
BEYOND_CLAIMED = frozenset((SUSPENDING, SUSPENDED, MAINTENANCE, RESTORING, RESTORED))

#: Of what modules return of a process, an image, a finding, a holder: this. Command lines and environments hold
#: secrets, and the report is passed on.
_PROCESS_KEYS = (
    *("pid", "identity", "executable", "user", "device_bytes", "image_bytes", "state", "before", "after", "parked"),
    *("gpus", "unit", "slurm_job", "container", "seconds", "warnings", "error"),
)
_IMAGE_KEYS = ("path", "pid", "state", "bytes", "device_bytes", "error")
_FINDING_KEYS = (
    "id",
    "severity",
    "subject",
    "evidence",
    "reason",
    "remedy",
    "option",
    "reference",
    "pid",
    "capabilities",
)
_HOLDER_KEYS = ("pid", "executable", "user", "files")
_LOST_KEYS = ("what", "why")


#: What gpu_preflight calls a mode.
CAPABILITY: Mapping[str, str] = {"memory": "suspend", "disk": "dump"}


class RecordError(Exception):
    """A record that can't be read or written. str() is the whole message."""

    def __init__(self, subject: str, evidence: str, reason: str, remedy: str) -> None:
        super().__init__(f"{subject}: {evidence}. {reason} {remedy}")
        self.subject = subject
        self.evidence = evidence
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True)
class Controller:
    """The ansible-playbook process of an attempt, so that it can't be mistaken for another one."""

    host: str
    user: str
    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True)
class Attempt:
    """One ansible-playbook over (a slice of) the run. hosts: those that it is to try, in the order of its batches.
    batch: the one that it is at, from 1; 0 before the first. stopped: why it went no further."""

    attempt: int
    slice: int
    controller: Controller
    began: float
    hosts: Tuple[str, ...]
    batch: int = 0
    stopped: str = ""


@dataclass(frozen=True)
class Run:
    """settings: mode, select, serial, failures_allowed, scheduler, declares, store, window; of the last attempt."""

    run_id: str
    kind: str
    created: float
    settings: Mapping[str, Any]
    fingerprint: str
    order: Tuple[str, ...]
    attempts: Tuple[Attempt, ...] = ()

    def last(self, slice: int) -> Optional[Attempt]:
        """The last attempt over this slice."""
        return max((one for one in self.attempts if one.slice == slice), key=lambda one: one.attempt, default=None)

    def current(self) -> Tuple[Attempt, ...]:
        """The last attempt over each slice."""
        found = (self.last(slice) for slice in sorted({one.slice for one in self.attempts}))
        return tuple(one for one in found if one is not None)

    def with_attempt(self, attempt: Attempt) -> Run:
        """With this one in place of that of the same number over the same slice, or added."""
        others = (one for one in self.attempts if (one.attempt, one.slice) != (attempt.attempt, attempt.slice))
        kept = sorted((*others, attempt), key=lambda one: (one.attempt, one.slice))
        return replace(self, attempts=tuple(kept))


@dataclass(frozen=True)
class Entry:
    """A phase, or a hook or task in it. ended: None while it lasts, and for ever if nobody was left to tell. failed:
    something failed in it at `failed_at`, and `text` says what; a phase may last all the same. failed_at: None also
    where it was not written down."""

    what: str
    began: float
    ended: Optional[float] = None
    text: str = ""
    attempt: int = 0
    failed: bool = False
    failed_at: Optional[float] = None

    @property
    def phase(self) -> bool:
        return self.what in PHASES


@dataclass(frozen=True)
class Host:
    """outcome: one of OUTCOMES. phase: the last that the host's journal was known to be in; "" for none. processes,
    images, holders, lost: as gpu_drain returns them; findings: as gpu_preflight does; all without command lines. next:
    what the operator does next about it. refused: it answered, and this attempt was not given it."""

    run_id: str
    host: str
    attempt: int = 0
    slice: int = 1
    batch: int = 0
    outcome: str = UNTOUCHED
    phase: str = ""
    mode: str = ""
    boot_id: str = ""
    timeline: Tuple[Entry, ...] = ()
    processes: Tuple[Mapping[str, Any], ...] = ()
    images: Tuple[Mapping[str, Any], ...] = ()
    findings: Tuple[Mapping[str, Any], ...] = ()
    estimate: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, Any] = field(default_factory=dict)
    holders: Tuple[Mapping[str, Any], ...] = ()
    lost: Tuple[Mapping[str, Any], ...] = ()
    message: str = ""
    next: str = ""
    refused: bool = False

    @property
    def maybe_claimed(self) -> bool:
        """Whether the journal of the host may know this run: its turn has come, and nobody was told that the claim was
        refused."""
        if any(entry.phase for entry in self.timeline) or self.phase:
            return True
        return not self.refused and (self.outcome != UNTOUCHED or self.batch > 0)


def marked(host: Host, attempt: Attempt) -> Host:
    """The same, as one of the hosts of the batch that this attempt begins: nothing of it is known yet, but that its
    turn has come. What an earlier attempt had against it is no longer said; where its journal was is kept."""
    phase = "" if host.phase in LAST_PHASES else host.phase
    return replace(
        host if phase else _anew(host),
        attempt=attempt.attempt,
        slice=attempt.slice,
        batch=attempt.batch,
        outcome=IN_PROGRESS if phase else UNTOUCHED,
        phase=phase,
        findings=(),
        message="",
        next="",
        refused=False,
    )


def event(host: Host, what: str, at: float, data: Mapping[str, Any], ended: bool = False) -> Host:
    """The record after something was told of the host.

    what: a phase, or the name of a hook or task ("before_suspend", "preflight", "health"). data: the result of the
    module that told it, or nothing; its `phase` wins over `what`, because a claim returns the phase that the host was
    in already; its `outcome`, if there is one, is taken. ended: of a hook, that it is over. A phase ends with the next.
    """
    known = trimmed(data)
    said = str(known.pop("message", ""))
    if data.get("outcome"):
        known["message"] = said
    phase = phase_of(what, data)
    if phase == CLAIMED and host.phase in LAST_PHASES:
        host = _anew(host)
    after = _with_data(host, known, phase in PROVED)
    if phase:
        after = _in_phase(after, phase, at)
    if what not in PHASES:
        after = replace(after, timeline=_hook(after, what, at, said, ended))
    outcome = data.get("outcome")
    return _past(replace(after, outcome=str(outcome) if outcome in OUTCOMES else _outcome(after)))


def known(host: Host, data: Mapping[str, Any]) -> Host:
    """With what was seen of it, and nothing more in its timeline."""
    return _with_data(host, trimmed(data))


def held_off(host: Host, at: float) -> Host:
    """After a failure before any process was touched: the look did not pass."""
    entry = Entry(PREFLIGHT, at, at, "", host.attempt, True, at)
    return replace(host, timeline=(*host.timeline, entry))


def _anew(host: Host) -> Host:
    """Without what was there before it was let go: its processes were nobody's meanwhile."""
    return replace(host, processes=(), images=(), holders=(), estimate={})


def _past(host: Host) -> Host:
    """Of a finished host, what failed on the way is told by its timeline alone."""
    return replace(host, message="", next="") if host.outcome == FINISHED else host


def phase_of(what: str, data: Mapping[str, Any]) -> str:
    """The phase that a host is told to be in; "" where none is."""
    told = str(data.get("phase") or "")
    return told if told in PHASES else what if what in PHASES else ""


def silent(host: Host, message: str) -> Host:
    """The record of a host whose batch is over and that left no last word: when it failed, and whether what was under
    way went on, nobody knows."""
    return replace(host, outcome=host.outcome if host.outcome in (UNDONE, LOST) else FAILED, message=message)


def failed(host: Host, at: float, message: str, next: str, text: str = "") -> Host:
    """The record after a word about a host that failed. What was under way ended with it; a phase lasts: the host is
    still in it. A host that was put back as it was stays `undone`, one that lost something `lost`. text: what failed
    in what is under way, where `message` tells of more than that."""
    hooks = [index for index, entry in enumerate(host.timeline) if _open(entry) and not entry.phase]
    phases = [index for index, entry in enumerate(host.timeline) if _open(entry) and entry.phase]
    entries = list(host.timeline)
    for index in hooks:
        entries[index] = replace(entries[index], ended=at, failed=True, failed_at=at, text=text or message)
    if phases and not hooks and not _ended_by_a_hook(entries, phases[-1]):
        entry = entries[phases[-1]]
        first = at if entry.failed_at is None else entry.failed_at
        entries[phases[-1]] = replace(entry, failed=True, failed_at=first, text=text or message)
    return replace(
        host,
        outcome=host.outcome if host.outcome in (UNDONE, LOST) else FAILED,
        timeline=tuple(entries),
        message=message,
        next=next,
    )


def rebuilt(run_id: str, name: str, told: Mapping[str, Any], before: Optional[Host] = None) -> Host:
    """The record of a host from what gpu_drain_info returned of it. Of `before`, what a host doesn't know is kept: its
    batch, hooks and findings. A host without a row of this run is untouched, whatever was recorded."""
    old = before or Host(run_id=run_id, host=name)
    row = told.get("drain") or {}
    if run_id not in (row.get("runs") or [row.get("run_id")]):
        return replace(Host(run_id=run_id, host=name), attempt=old.attempt, slice=old.slice, batch=old.batch)
    steps = sorted(row.get("timeline") or (), key=lambda step: float(step["at"]))
    phases = []
    for index, step in enumerate(steps):
        at = float(step["at"])
        following = steps[index + 1] if index + 1 < len(steps) else None
        end = at if step["phase"] in LAST_PHASES else (None if following is None else float(following["at"]))
        text = str(step.get("message") or "")
        phases.append(Entry(str(step["phase"]), at, end, text, int(step.get("attempt") or 0)))
    failures = [dict(one) for one in row.get("failures") or ()]
    phases = [_with_failures(entry, failures, old) for entry in phases]
    hooks = [entry for entry in old.timeline if not entry.phase]
    after = _with_data(old, trimmed(row), row.get("phase") in PROVED)
    after = replace(
        after,
        attempt=max(int(row.get("attempt") or 0), old.attempt),
        phase=str(row.get("phase") or ""),
        timeline=tuple(sorted([*phases, *hooks], key=lambda entry: entry.began)),
    )
    outcome = _outcome(after)
    last = failures[-1] if failures else {}
    told_by_host = (last.get("phase"), last.get("attempt")) == (row.get("phase"), row.get("attempt"))
    known = old.outcome == FAILED or told_by_host
    return _past(replace(after, outcome=FAILED if outcome == IN_PROGRESS and known else outcome))


def _with_failures(entry: Entry, failures: Sequence[Mapping[str, Any]], old: Host) -> Entry:
    """With the last failure in this phase: from the journal, or by what the controller knew."""
    mine = [
        one
        for one in failures
        if one["phase"] == entry.what
        and float(one["at"]) >= entry.began
        and (entry.ended is None or float(one["at"]) <= entry.ended)
    ]
    if mine:
        return replace(entry, failed=True, failed_at=float(mine[-1]["at"]), text=str(mine[-1]["message"]))
    same = (one for one in old.timeline if (one.what, one.attempt, one.failed) == (entry.what, entry.attempt, True))
    known = next(same, None)
    return entry if known is None else replace(entry, failed=True, failed_at=known.failed_at, text=known.text)


def trimmed(data: Mapping[str, Any]) -> Dict[str, Any]:
    """Of a module's result, what a record keeps."""
    kept: Dict[str, Any] = {}
    for key, keys in (
        ("processes", _PROCESS_KEYS),
        ("images", _IMAGE_KEYS),
        ("findings", _FINDING_KEYS),
        ("holders", _HOLDER_KEYS),
        ("lost", _LOST_KEYS),
    ):
        if isinstance(data.get(key), (list, tuple)):
            kept[key] = tuple({name: one[name] for name in keys if name in one} for one in data[key])
    for key in ("scheduler", "packages"):
        if isinstance(data.get(key), Mapping):
            kept[key] = dict(data[key])
    if isinstance(data.get("estimate"), Mapping):
        kept["estimate"] = _estimate(data["estimate"])
    for key in ("mode", "boot_id", "message", "next"):
        if data.get(key):
            kept[key] = str(data[key])
    return kept


def _estimate(told: Mapping[str, Any]) -> Dict[str, Any]:
    """From gpu_preflight's, or as it is kept already."""
    if "bytes" in told:
        return {"seconds": told.get("seconds"), "bytes": told["bytes"]}
    return {"seconds": told.get("total_seconds"), "bytes": told.get("device_bytes")}


def _with_data(host: Host, known: Mapping[str, Any], whole: bool = False) -> Host:
    """whole: no other process than those in `known` is there."""
    values = dict(known)
    if "processes" in values:
        told = {_pid(one) for one in values["processes"]}
        before = [one for one in host.processes if not (whole and told) or _pid(one) in told]
        values["processes"] = _merged(before, values["processes"])
    if "findings" in values:
        capability = CAPABILITY.get(str(values.get("mode") or host.mode))
        told = values["findings"]
        fits = [capability in one.pop("capabilities", (capability,)) or capability is None for one in told]
        fresh = tuple(one for index, one in enumerate(told) if fits[index])
        values["findings"] = tuple([one for one in host.findings if one not in fresh] + list(fresh))
    return replace(host, **values)


def _merged(before: Sequence[Mapping[str, Any]], fresh: Sequence[Mapping[str, Any]]) -> Tuple[Mapping[str, Any], ...]:
    """Each process with all that was told of it; one task names the user, another the state."""
    rows: Dict[Any, Dict[str, Any]] = {_pid(one): dict(one) for one in before}
    for one in fresh:
        row = rows.setdefault(_pid(one), {})
        row.update((key, value) for key, value in one.items() if value is not None or key not in row)
    return tuple(rows.values())


def _pid(process: Mapping[str, Any]) -> Any:
    return process.get("pid", (process.get("identity") or {}).get("pid"))


def _in_phase(host: Host, phase: str, at: float) -> Host:
    entries = list(host.timeline)
    index = max((index for index, entry in enumerate(entries) if entry.phase), default=None)
    last = None if index is None else entries[index]
    if last is not None and (last.what, last.attempt) == (phase, host.attempt):
        return replace(host, phase=phase)
    if last is not None and index is not None and _open(last):
        entries[index] = replace(last, ended=at)
    entries.append(Entry(phase, at, at if phase in LAST_PHASES else None, "", host.attempt))
    return replace(host, phase=phase, timeline=tuple(entries))


def _hook(host: Host, what: str, at: float, text: str, ended: bool) -> Tuple[Entry, ...]:
    entries = list(host.timeline)
    begun = [i for i, one in enumerate(entries) if (one.what, one.attempt) == (what, host.attempt) and _open(one)]
    if ended and begun:
        entries[begun[-1]] = replace(entries[begun[-1]], ended=at, text=text or entries[begun[-1]].text)
    elif ended or not begun:
        entries.append(Entry(what, at, at if ended else None, text, host.attempt))
    return tuple(entries)


def _ended_by_a_hook(entries: Sequence[Entry], phase: int) -> bool:
    """Whether a hook that failed in this phase has told it already."""
    return any(one.failed and not one.phase for one in entries[phase:])


def _open(entry: Entry) -> bool:
    return entry.ended is None


def _outcome(host: Host) -> str:
    if host.phase == RELEASED:
        return FINISHED
    if host.phase == UNDONE_PHASE:
        return UNDONE
    if host.lost:
        return LOST
    return IN_PROGRESS if host.phase or host.timeline else UNTOUCHED


def run_to_json(run: Run) -> Dict[str, Any]:
    return {"schema": SCHEMA, **asdict(run)}


def host_to_json(host: Host) -> Dict[str, Any]:
    return {"schema": SCHEMA, **asdict(host)}


def run_from_json(data: Mapping[str, Any]) -> Run:
    """Raises KeyError, TypeError and ValueError for what is no record; RecordError is for who reads the file."""
    attempts = tuple(
        Attempt(
            attempt=int(one["attempt"]),
            slice=int(one["slice"]),
            controller=Controller(
                host=str(one["controller"]["host"]),
                user=str(one["controller"]["user"]),
                pid=int(one["controller"]["pid"]),
                start_ticks=int(one["controller"]["start_ticks"]),
                boot_id=str(one["controller"]["boot_id"]),
            ),
            began=float(one["began"]),
            hosts=tuple(str(name) for name in one["hosts"]),
            batch=int(one["batch"]),
            stopped=str(one["stopped"]),
        )
        for one in data["attempts"]
    )
    return Run(
        run_id=str(data["run_id"]),
        kind=str(data["kind"]),
        created=float(data["created"]),
        settings=dict(data["settings"]),
        fingerprint=str(data["fingerprint"]),
        order=tuple(str(name) for name in data["order"]),
        attempts=attempts,
    )


def host_from_json(data: Mapping[str, Any]) -> Host:
    """Raises as run_from_json does."""
    timeline = tuple(
        Entry(
            what=str(one["what"]),
            began=float(one["began"]),
            ended=None if one["ended"] is None else float(one["ended"]),
            text=str(one["text"]),
            attempt=int(one["attempt"]),
            failed=bool(one["failed"]),
            failed_at=None if one.get("failed_at") is None else float(one["failed_at"]),
        )
        for one in data["timeline"]
    )
    if data["outcome"] not in OUTCOMES:
        raise ValueError(f"outcome {data['outcome']!r}")
    return Host(
        run_id=str(data["run_id"]),
        host=str(data["host"]),
        attempt=int(data["attempt"]),
        slice=int(data["slice"]),
        batch=int(data["batch"]),
        outcome=str(data["outcome"]),
        phase=str(data["phase"]),
        mode=str(data["mode"]),
        boot_id=str(data["boot_id"]),
        timeline=timeline,
        message=str(data["message"]),
        next=str(data["next"]),
        processes=_rows(data["processes"]),
        images=_rows(data["images"]),
        findings=_rows(data["findings"]),
        holders=_rows(data["holders"]),
        lost=_rows(data["lost"]),
        estimate=dict(data["estimate"]),
        scheduler=dict(data["scheduler"]),
        packages=dict(data["packages"]),
        refused=bool(data.get("refused", False)),
    )


def _rows(data: Sequence[Mapping[str, Any]]) -> Tuple[Mapping[str, Any], ...]:
    return tuple(dict(one) for one in data)
