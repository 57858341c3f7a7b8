# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which run a command belongs to, and which hosts it still has to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import answers, batches, record, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Attempt, Controller, Host, Run

NEW = "new"
SCHEDULERS = ("none", "command", "slurm", "kubernetes")
#: What a host must have been begun with to be finished by the same command.
_COMPARED = ("mode", "store", "scheduler")
DECLARES = ("reboot", "driver_change", "gpu_reset")
#: Of each, the mode that it can't be meant with.
_DEADLY = (
    (
        "reboot",
        "memory",
        "A reboot ends what is suspended in memory.",
        "Set gpu_drain_mode: disk, or leave reboot out if the host is not booted.",
    ),
    (
        "driver_change",
        "disk",
        "An image needs exactly its driver.",
        "End the processes before, or leave driver_change out and keep the driver (packages are held meanwhile).",
    ),
)
_RANK = {record.IN_PROGRESS: 0, record.FAILED: 1, record.UNDONE: 1, record.LOST: 1, record.UNTOUCHED: 2}


class Refused(Exception):
    """Nothing was touched. str() is the whole message."""

    def __init__(self, subject: str, evidence: str, reason: str, remedy: str) -> None:
        super().__init__(f"{subject}: {evidence}. {reason} {remedy}")


@dataclass(frozen=True)
class Wanted:
    """What a command asks for. hosts: what is wanted of each, in the order of the inventory: mode, store, scheduler,
    select, declares, window, hooks. run: what holds for all of them, as Ansible resolved it on each."""

    hosts: Mapping[str, Mapping[str, Any]]
    run_id: str
    take_over: str
    serial: Any
    failures_allowed: int
    slices: int
    slice: int
    shared: bool
    notify: Tuple[str, ...]
    directory: str


@dataclass(frozen=True)
class Known:
    """A run that there is a record of."""

    run: Run
    hosts: Mapping[str, Host]

    def host(self, name: str) -> Host:
        return self.hosts.get(name, Host(run_id=self.run.run_id, host=name))

    @property
    def unfinished(self) -> Tuple[str, ...]:
        return tuple(name for name in self.run.order if self.host(name).outcome != record.FINISHED)

    @property
    def maybe_claimed(self) -> bool:
        """Whether any host may know this run. One that was refused before that has left nothing to finish."""
        return any(self.host(name).maybe_claimed for name in self.run.order)


@dataclass(frozen=True)
class Begun:
    """run: with the new attempt. claim_attempt: what a host is claimed with; 0 where this controller can't know how
    many attempts the host has seen. order: hosts to do; finished: hosts to look at again."""

    run: Run
    attempt: Attempt
    claim_attempt: int
    resumed: bool
    order: Tuple[str, ...]
    finished: Tuple[str, ...]
    said: Tuple[str, ...]


def wanted(settings: Mapping[str, Mapping[str, Any]]) -> Wanted:
    """From what each host resolved its variables to: {host: {run: .., host: ..}}. Raises Refused."""
    first_name, first = next(iter(settings.items()))
    for name, one in settings.items():
        for key, value in one["run"].items():
            if value != first["run"][key]:
                raise Refused(
                    f"gpu_drain_{key}",
                    f"it is {words.setting(first['run'][key])} on {first_name} and {words.setting(value)} on {name}",
                    "It belongs to the run as a whole.",
                    "Set it once, with -e or for the group all.",
                )
    run = first["run"]
    made = Wanted(
        hosts={name: one["host"] for name, one in settings.items()},
        run_id=str(run["run_id"]),
        take_over=str(run["take_over"]),
        serial=run["serial"],
        failures_allowed=_count("failures_allowed", run["failures_allowed"], 0),
        slices=_count("slices", run["slices"], 1),
        slice=_count("slice", run["slice"], 1),
        shared=bool(run["run_directory_shared"]),
        notify=tuple(str(word) for word in run["notify_command"]),
        directory=str(run["run_directory"]),
    )
    _check(made)
    return made


def begin(
    asked: Wanted,
    known: Sequence[Known],
    me: Controller,
    alive: Callable[[Controller], Optional[bool]],
    now: float,
    made_up: str,
) -> Begun:
    """known: every run in the run directory. alive: None for a controller of another machine. Raises Refused."""
    found = _find(asked, known, alive, now)
    order, finished = _order(asked, found)
    run_id = found.run.run_id if found else (made_up if asked.run_id in ("", NEW) else asked.run_id)
    number = 1
    if found:
        told = [one.attempt for one in found.run.attempts] + [host.attempt for host in found.hosts.values()]
        number = max([0, *told]) + 1
    attempt = Attempt(attempt=number, slice=asked.slice, controller=me, began=now, hosts=order)
    names = list(found.run.order) if found else []
    whole = tuple(names + [name for name in asked.hosts if name not in names])
    run = Run(
        run_id=run_id,
        kind="drain",
        created=found.run.created if found else now,
        settings=_settings(asked, found),
        fingerprint=fingerprint(asked),
        order=whole,
        attempts=found.run.attempts if found else (),
    ).with_attempt(attempt)
    lost_record = found is None and asked.run_id not in ("", NEW)
    return Begun(
        run=run,
        attempt=attempt,
        claim_attempt=0 if lost_record else number,
        resumed=found is not None,
        order=order,
        finished=finished,
        said=_said(asked, found, order, finished, now),
    )


def fingerprint(asked: Wanted) -> str:
    """What kind of run it is, readable."""
    parts = ["drain"]
    for key in _COMPARED:
        parts.append(f"{key}={'+'.join(sorted({str(host[key]) for host in asked.hosts.values()}))}")
    return " ".join(parts)


def batch(attempt: Attempt, serial: Any, hosts: Sequence[str]) -> int:
    """The number of the batch that begins now with these hosts. Raises Refused if Ansible made other batches."""
    foreseen = batches.batches(attempt.hosts, serial)
    number = attempt.batch + 1
    expected = foreseen[number - 1] if number <= len(foreseen) else ()
    if set(expected) == set(hosts):
        return number
    raise Refused(
        f"batch {number}",
        f"Ansible makes it of {words.plural(len(hosts), 'host')} ({words.names(list(hosts))}), and "
        f"gpu_drain_serial: {words.setting(serial)} of {words.names(list(expected)) or 'none'}",
        "Ansible reads the size of batches before it reads variables of the inventory, so it did not see the one that "
        "is set there.",
        'Give gpu_drain_serial with -e, as in -e \'{"gpu_drain_serial": [1, "10%"]}\', and not in the inventory.',
    )


def silent(attempt: Attempt, serial: Any, hosts: Mapping[str, Host]) -> Tuple[str, ...]:
    """At the end of a batch: its hosts that have neither finished nor failed, so that nobody was left to tell."""
    return tuple(
        name
        for name in batch_of(attempt, serial)
        if name not in hosts or hosts[name].outcome in (record.IN_PROGRESS, record.UNTOUCHED)
    )


def batch_of(attempt: Attempt, serial: Any) -> Tuple[str, ...]:
    """The hosts of the batch that it is at."""
    foreseen = batches.batches(attempt.hosts, serial)
    return foreseen[attempt.batch - 1] if 0 < attempt.batch <= len(foreseen) else ()


def last_batch(attempt: Attempt, serial: Any) -> bool:
    return attempt.batch >= len(batches.batches(attempt.hosts, serial))


def _check(asked: Wanted) -> None:
    if asked.run_id and not answers.RUN_ID.fullmatch(asked.run_id):
        raise Refused(
            "gpu_drain_run_id",
            f'"{asked.run_id}" is no name of a run',
            "It names a directory and rows in the journals of hosts.",
            "Use up to 64 letters, digits, dots, underscores and hyphens, and not . or .. alone.",
        )
    try:
        batches.batches(list(asked.hosts), asked.serial)
    except ValueError:
        raise Refused(
            "gpu_drain_serial",
            f"{words.setting(asked.serial)} is not understood",
            "Batches are made of numbers of hosts and percentages.",
            'Give for example [1, "10%"].',
        ) from None
    if asked.slice > asked.slices:
        raise Refused(
            "gpu_drain_slice",
            f"it is {asked.slice} of {asked.slices} (gpu_drain_slices)",
            "Slices are counted from 1.",
            "Give each job of the sliced run its own number.",
        )
    if asked.slices > 1 and not (asked.shared and asked.run_id not in ("", NEW)):
        raise Refused(
            f"gpu_drain_slices: {asked.slices}",
            "gpu_drain_run_directory_shared is not true" if not asked.shared else "there is no gpu_drain_run_id",
            "The slices of a run count their failed hosts together, in one run directory that all of them see.",
            "Put gpu_drain_run_directory on a file system that all of them have, set gpu_drain_run_directory_shared: "
            "true, and give all of them the same gpu_drain_run_id.",
        )
    for name, host in asked.hosts.items():
        for key, choices in (("mode", ("memory", "disk")), ("scheduler", SCHEDULERS)):
            if host[key] not in choices:
                raise Refused(
                    f"gpu_drain_{key}",
                    f'it is "{host[key]}" for {name}',
                    "It decides what is done to the host.",
                    f"Use one of {', '.join(choices)}.",
                )
        _check_declares(name, host)
        _check_commands(name, host)


def _check_declares(name: str, host: Mapping[str, Any]) -> None:
    """What gpu_drain refuses on the host whatever it finds there. Raises Refused."""
    declares = host.get("declares") or ()
    for declared in declares.split(",") if isinstance(declares, str) else declares:
        if declared not in DECLARES:
            raise Refused(
                "gpu_drain_declares",
                f'it has "{declared}" for {name}',
                "What it means for the processes is not known.",
                f"Use some of {', '.join(DECLARES)}.",
            )
    for declared, mode, reason, remedy in _DEADLY:
        if declared in declares and host["mode"] == mode:
            raise Refused(
                "gpu_drain_declares", f"it has {declared} for {name}, and gpu_drain_mode is {mode}", reason, remedy
            )


def _check_commands(name: str, host: Mapping[str, Any]) -> None:
    if host["scheduler"] != "command":
        return
    for key, command in (host.get("scheduler_commands") or {}).items():
        if not isinstance(command, (list, tuple)) or not command:
            raise Refused(
                f"gpu_drain_scheduler_{key}_command",
                f"it is {words.setting(command) or '-'} for {name}, and gpu_drain_scheduler is command",
                "What is drained has to be released by something.",
                "Set gpu_drain_scheduler_drain_command and gpu_drain_scheduler_release_command, each as a list of "
                "words such as [/usr/local/sbin/drain-node], or gpu_drain_scheduler: none; see docs/schedulers.md.",
            )


def _count(key: str, value: Any, least: int) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = least - 1
    if count < least:
        raise Refused(f"gpu_drain_{key}", f'it is "{value}"', "It counts.", f"Give a whole number from {least} on.")
    return count


def _find(
    asked: Wanted, known: Sequence[Known], alive: Callable[[Controller], Optional[bool]], now: float
) -> Optional[Known]:
    if asked.run_id == NEW:
        return None
    if asked.run_id:
        named = next((one for one in known if one.run.run_id == asked.run_id), None)
        if named is not None:
            _not_at_work(asked, named, alive, now)
        return named
    meant = [one for one in known if one.run.kind == "drain" and set(one.unfinished) & set(asked.hosts)]
    meant = [one for one in meant if one.maybe_claimed or any(alive(who.controller) for who in one.run.current())]
    # One that is taken over by its name; a command before may have begun another one.
    meant = [one for one in meant if one.run.run_id == asked.take_over] or meant
    if len(meant) > 1:
        raise Refused(
            "gpu_drain_run_id",
            f"{len(meant)} runs over these hosts are not finished: "
            + "; ".join(f"{one.run.run_id} (since {words.clock(one.run.created)})" for one in meant),
            "Which one this command goes on with is not guessed.",
            "Give gpu_drain_run_id with the one that is meant, or gpu_drain_run_id: new.",
        )
    if not meant:
        return None
    found = meant[0]
    _not_at_work(asked, found, alive, now)
    other = _differences(asked, found)
    if other:
        raise Refused(
            f"run {found.run.run_id}",
            f"it is not finished on {words.names([name for name in found.unfinished if name in asked.hosts])}, and had "
            f"other settings: {'; '.join(other)}",
            "A host is finished as it was begun.",
            f"To go on with that run all the same, give gpu_drain_run_id: {found.run.run_id}; a host that is suspended "
            "keeps its mode. To begin another one, give gpu_drain_run_id: new.",
        )
    return found


def _not_at_work(asked: Wanted, found: Known, alive: Callable[[Controller], Optional[bool]], now: float) -> None:
    """Two playbooks over the same hosts would undo each other's work."""
    last = found.run.last(asked.slice)
    if last is None:
        return
    who = last.controller
    lives = alive(who)
    if lives:
        raise Refused(
            f"run {found.run.run_id}",
            f"attempt {last.attempt} is at work: PID {who.pid} of {who.user} on {who.host}, since "
            f"{words.clock(last.began)}",
            "Two playbooks that drive the same hosts would undo each other's work.",
            f"Wait for it, or end it, and run this again; {words.STATUS} shows how far it is.",
        )
    if lives is None and asked.take_over != found.run.run_id:
        raise Refused(
            f"run {found.run.run_id}",
            f"attempt {last.attempt} was begun on another controller, {who.host}, by {who.user} (PID {who.pid}), "
            f"{words.clock(last.began)}",
            "Whether it still runs can't be seen from here.",
            f"See there that it has ended, and run this again with gpu_drain_take_over: {found.run.run_id}.",
        )


def _differences(asked: Wanted, found: Known) -> List[str]:
    before = found.run.settings.get("of_hosts") or {}
    told = []
    for name in found.unfinished:
        for key in _COMPARED:
            old, new = (before.get(name) or {}).get(key), (asked.hosts.get(name) or {}).get(key)
            if old is not None and new is not None and old != new:
                told.append(f"gpu_drain_{key} of {name} was {words.setting(old)} and is {words.setting(new)}")
    return told


def _order(asked: Wanted, found: Optional[Known]) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    if found is None:
        return tuple(asked.hosts), ()
    states = [found.host(name) for name in asked.hosts]
    left = [host for host in states if host.outcome != record.FINISHED]
    left.sort(key=lambda host: _RANK[host.outcome])
    return (
        tuple(host.host for host in left),
        tuple(host.host for host in states if host.outcome == record.FINISHED),
    )


def _settings(asked: Wanted, found: Optional[Known]) -> Dict[str, Any]:
    """For the report, and for the next attempt to compare with."""

    def one(key: str) -> Any:
        values: List[Any] = []
        for host in asked.hosts.values():
            if host.get(key) not in values:
                values.append(host.get(key))
        return values[0] if len(values) == 1 else values

    of_hosts = dict((found.run.settings.get("of_hosts") or {}) if found else {})
    for name, host in asked.hosts.items():
        of_hosts[name] = {key: host[key] for key in _COMPARED}
    return {
        "mode": one("mode"),
        "select": one("select"),
        "serial": list(batches.entries(asked.serial)),
        "failures_allowed": asked.failures_allowed,
        "scheduler": one("scheduler"),
        "declares": one("declares"),
        "store": one("store"),
        "window": one("window"),
        "of_hosts": of_hosts,
    }


def _said(
    asked: Wanted, found: Optional[Known], order: Sequence[str], finished: Sequence[str], now: float
) -> Tuple[str, ...]:
    if found is None:
        return ()
    count = len([name for name in order if found.host(name).outcome == record.UNTOUCHED])
    ago = words.duration(now - found.run.created)
    told = [
        (
            f"This goes on with run {found.run.run_id}, begun {ago} ago: {words.plural(len(finished), 'host')} "
            f"finished and only looked at again, {len(order) - count} half done or failed, {count} untouched. For "
            "another run instead: gpu_drain_run_id: new."
        )
    ]
    absent = [name for name in found.unfinished if name not in asked.hosts]
    if absent:
        told.append(f"Not finished, and not among the hosts of this command: {words.names(absent)}.")
    return tuple(told)


def stopped(run: Run, attempt: Attempt, why: str) -> Tuple[Run, Attempt]:
    """The run with the reason why this attempt goes no further."""
    after = replace(attempt, stopped=why)
    return run.with_attempt(after), after


def among(order: Sequence[str], serial: Any, hosts: Sequence[str]) -> None:
    """As `batch`, where no record says which batch it is. Raises Refused."""
    foreseen = batches.batches(list(order), serial)
    start = list(order).index(hosts[0]) if hosts and hosts[0] in order else 0
    before = len([one for one in foreseen if list(order).index(one[-1]) < start])
    batch(Attempt(0, 1, Controller("", "", 0, 0, ""), 0, tuple(order), before), serial, hosts)
