# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to be held of the systemd services that processes belong to, and what can't be. Pure; docs/units.md says why
each line of the drop-in is there, and what was measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_model import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._units import parse_span
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import natural, printable

#: What the processes are going to be: suspended in memory, or in an image.
SUSPEND = "suspend"
IMAGE = "image"

#: How far a drop-in goes: nothing, no start beside a process that lives outside of the unit now, no second copy by
#: systemd itself, no start by anybody.
NOTHING, BESIDE, NO_RESTART, NO_START = "", "beside", "restart", "start"
_REACH = (NOTHING, BESIDE, NO_RESTART, NO_START)

#: What a held watchdog is set to, in microseconds: ten years. Not 0: systemd forgets with it when the service reported
#: last, so that the way back could count as a report that is overdue.
HELD_USEC = 3650 * 86400 * 10**6
#: A watchdog from here on is one that is held.
HELD_LEAST_USEC = HELD_USEC // 2

#: Sorted behind every other drop-in, so that none of them overrides it.
DROP_IN = "zzzz-gpufleet-hold.conf"
#: Never made: what the start of a held unit asks for.
NEVER = "/run/gpufleet/unit-is-held"
DOCS = "https://github.com/gpufleet/checkpoint/blob/main/docs/units.md"

PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "MainPID",
    "NotifyAccess",
    "WatchdogUSec",
    "Restart",
    "ControlGroup",
    "TasksCurrent",
    "DropInPaths",
    "NeedDaemonReload",
    "TriggeredBy",
    "BoundBy",
)
_USER = re.compile(r"/user@(\d+)\.service/")
_SETTLED = frozenset(("active", "inactive", "failed"))


@dataclass(frozen=True)
class Member:
    """A process of a task. paths: of its control groups, as /proc/PID/cgroup gives them."""

    identity: Identity
    parent: int
    paths: Tuple[str, ...]

    @property
    def pid(self) -> int:
        return self.identity.pid


@dataclass(frozen=True)
class Service:
    """A service as systemd tells it. problem: why nothing is known of it, "" where it is. watchdog_usec: 0 for none.
    main_pid: 0 for none. tasks: in its control group, 0 for none or unknown."""

    name: str
    problem: str = ""
    load: str = "loaded"
    active: str = "active"
    main_pid: int = 0
    notify_access: str = "none"
    watchdog_usec: int = 0
    restart: str = "no"
    group: str = ""
    tasks: int = 0
    drop_ins: Tuple[str, ...] = ()
    stale: bool = False
    sockets: Tuple[str, ...] = ()
    bound: Tuple[str, ...] = ()

    @property
    def watchdog_is_held(self) -> bool:
        return self.watchdog_usec >= HELD_LEAST_USEC

    @property
    def has_drop_in(self) -> bool:
        return any(path.endswith(f"/{DROP_IN}") for path in self.drop_ins)


@dataclass(frozen=True)
class Wanted:
    """What has to be held of one service. reach: of its drop-in. members: the processes that are in it."""

    service: Service
    watchdog: bool
    reach: str
    members: Tuple[Member, ...]


@dataclass(frozen=True)
class Done:
    """What was done to a unit. watchdog: seconds, 0 for none."""

    unit: str
    held: bool
    watchdog: float
    restart: bool

    def as_dict(self) -> Dict[str, object]:
        return {"unit": self.unit, "held": self.held, "watchdog": self.watchdog, "restart": self.restart}


@dataclass(frozen=True)
class Look:
    """kind: SUSPEND or IMAGE. findings: what can't be held. free: PIDs that their unit does nothing to, once that is
    held. notes: what the operator should know."""

    kind: str
    wanted: Tuple[Wanted, ...] = ()
    findings: Tuple[Finding, ...] = ()
    free: FrozenSet[int] = frozenset()
    notes: Tuple[str, ...] = ()

    @property
    def done(self) -> List[Done]:
        """What holding it would come to."""
        return [
            Done(one.service.name, True, seconds(one.service.watchdog_usec) if one.watchdog else 0.0, bool(one.reach))
            for one in self.wanted
        ]


def service_from(name: str, shown: Mapping[str, str]) -> Service:
    """Out of one block of `systemctl show`."""
    return Service(
        name,
        load=shown.get("LoadState", "not-found"),
        active=shown.get("ActiveState", ""),
        main_pid=_number(shown.get("MainPID", "")),
        notify_access=shown.get("NotifyAccess", "none"),
        watchdog_usec=round(parse_span(shown.get("WatchdogUSec", "")) * 1e6),
        restart=shown.get("Restart", ""),
        group=shown.get("ControlGroup", ""),
        tasks=_number(shown.get("TasksCurrent", "")),
        drop_ins=tuple(shown.get("DropInPaths", "").split()),
        stale=shown.get("NeedDaemonReload") == "yes",
        sockets=tuple(one for one in shown.get("TriggeredBy", "").split() if one.endswith(".socket")),
        bound=tuple(shown.get("BoundBy", "").split()),
    )


def _number(text: str) -> int:
    return natural(text) or 0


def unit_of(paths: Sequence[str]) -> Tuple[str, str]:
    """(the service that it is in, the uid of the user whose manager runs that); "" for none, or the system's."""
    for path in sorted(paths, key=len, reverse=True):
        user = _USER.search(path)
        inside = path[user.end() - 1 :] if user else path
        units = [part for part in inside.split("/") if part.endswith((".service", ".scope"))]
        if units:
            return (units[-1] if units[-1].endswith(".service") else "", user.group(1) if user else "")
    return "", ""


def names_of(members: Iterable[Member]) -> Tuple[str, ...]:
    """The services that have to be looked at."""
    found = (unit_of(member.paths) for member in members)
    return tuple(sorted({name for name, user in found if name and not user}))


def judge(kind: str, members: Sequence[Member], services: Mapping[str, Service], root: bool) -> Look:
    """What is to be held. services: one for each of names_of(). root: the caller may change units."""
    findings: List[Finding] = []
    free: List[int] = []
    wanted: List[Wanted] = []
    by_unit: Dict[Tuple[str, str], List[Member]] = {}
    for member in members:
        by_unit.setdefault(unit_of(member.paths), []).append(member)
    for (name, user), inside in sorted(by_unit.items()):
        if not name:
            continue
        if user:
            findings.append(_of_a_user(name, user, inside[0]))
            continue
        service = services[name]
        refusal = _refusal(service, inside[0])
        one = _wanted(kind, service, tuple(inside))
        if refusal is None and (one.watchdog or one.reach):
            refusal = _cannot(one, root)
        if refusal is not None:
            findings.append(refusal)
            continue
        free.extend(member.pid for member in inside)
        if one.watchdog or one.reach:
            wanted.append(one)
    notes = tuple(note for one in wanted for note in _notes(one))
    return Look(kind, tuple(wanted), tuple(findings), frozenset(free), notes)


def _wanted(kind: str, service: Service, inside: Tuple[Member, ...]) -> Wanted:
    if service.active != "active":
        return Wanted(service, False, NOTHING, inside)
    pids = {member.pid for member in inside}
    # One that may not report for the service can't fail to.
    reports = service.notify_access == "all" or service.main_pid in (0, *pids)
    reach = NOTHING
    if kind == IMAGE:
        if service.main_pid in (0, *pids):
            reach = NO_START
        elif service.main_pid in {member.parent for member in inside}:
            # Such as `sh -c`. It may also be a supervisor with other children, which somebody may want to start anew.
            reach = NO_RESTART
    return Wanted(service, bool(service.watchdog_usec) and reports, reach, inside)


def _refusal(service: Service, member: Member) -> Optional[Finding]:
    """Why nothing can be said of the unit."""
    if service.problem:
        return finding(
            service.name,
            f"systemd does not tell of it: {service.problem}",
            "What is not known can't be held",
            "Look on the host itself: systemctl status " + service.name,
            member.pid,
        )
    group = service.group.rstrip("/")
    inside = any(path == group or path.startswith(group + "/") for path in member.paths)
    if service.load == "not-found" or not group or not inside:
        return finding(
            service.name,
            f"PID {member.pid} is in a control group of that name, which this host's systemd does not run",
            "Another service manager does, such as one in a container, and may end the process or start a second copy",
            "Leave it to that manager: without unit_policy, what speaks against it is told by name",
            member.pid,
        )
    if service.active not in _SETTLED:
        return finding(
            service.name,
            f"it is {service.active}",
            "A service that is being started or stopped has a time limit of its own, at which systemd kills it",
            "Wait until it is active, and run the task again",
            member.pid,
        )
    return None


def _cannot(one: Wanted, root: bool) -> Optional[Finding]:
    """Why it can't be held."""
    service, member = one.service, one.members[0]
    if not root:
        return finding(
            service.name,
            f"{_what(one)}, and the module does not run as root",
            "Only root can hold a unit",
            "Run the task with become: true",
            member.pid,
        )
    if one.watchdog and not service.main_pid and service.notify_access != "all":
        return finding(
            service.name,
            f"its watchdog of {seconds(service.watchdog_usec):g} s is on, and it has no main process",
            "systemd takes a change of the watchdog in the name of the main process only (NotifyAccess="
            f"{service.notify_access})",
            "Start the service without WatchdogSec=",
            member.pid,
        )
    return None


def _of_a_user(name: str, user: str, member: Member) -> Finding:
    return finding(
        f"{name} of user id {user}",
        f"PID {member.pid} belongs to it, and the user's own service manager runs it",
        "That manager can't be asked from here, and may kill the process or start a second copy",
        "Run it as a service of the system, or without unit_policy, where what speaks against it is told by name",
        member.pid,
    )


def _what(one: Wanted) -> str:
    parts = []
    if one.watchdog:
        parts.append(f"a watchdog of {seconds(one.service.watchdog_usec):g} s")
    if one.reach:
        parts.append(f"Restart={one.service.restart}")
    return "it has " + " and ".join(parts)


def _notes(one: Wanted) -> List[str]:
    found = []
    name = one.service.name
    if one.reach == NO_START and one.service.sockets:
        sockets = ", ".join(one.service.sockets)
        found.append(f"{sockets} starts {name} at a connection; it fails while {name} is held: stop it meanwhile")
    if one.reach and one.service.bound:
        found.append(f"systemd stops {', '.join(one.service.bound)} with {name}: they are bound to it")
    return found


def lift(findings: Sequence[Finding], look: Look) -> Tuple[Finding, ...]:
    """Without those that holding the units makes void."""
    void = {"systemd_watchdog"} | ({"systemd_restart"} if look.kind == IMAGE else set())
    return tuple(one for one in findings if not (one.id in void and one.severity == BLOCKING and one.pid in look.free))


def finding(
    subject: str, evidence: str, reason: str, remedy: str, pid: Optional[int], name: str = "unit_hold"
) -> Finding:
    return Finding(
        id=name,
        severity=BLOCKING,
        subject=printable(subject),
        evidence=printable(evidence),
        reason=reason,
        remedy=printable(remedy),
        option="",
        reference=f"{DOCS}#{name}",
        pid=pid,
    )


def second_copy(service: Service, main: Optional[Identity], now: Optional[Identity]) -> Optional[Finding]:
    """Has the unit been started by itself since its process went into an image? main: its main process then; now: the
    one that it has."""
    if service.problem:
        return finding(
            service.name,
            f"whether it runs can't be seen: {service.problem}",
            "The process in the image was its own: beside a new copy it would be a second life",
            "Look on the host itself: systemctl status " + service.name,
            None,
            "unit_active",
        )
    if service.active in ("inactive", "failed") or not (service.main_pid or service.tasks):
        return None
    if now is not None and now == main:
        return None
    who = f"PID {service.main_pid}" if service.main_pid else f"{service.tasks} tasks"
    return finding(
        service.name,
        f"it is {service.active} with {who}, started since its process went into the image",
        "Both would use the same GPUs, ports and files: a second life",
        f"Stop it (systemctl stop {service.name}), or give the image up",
        service.main_pid or None,
        "unit_active",
    )


def widest(reaches: Iterable[str]) -> str:
    """Of several drop-ins for one unit, the one that serves all."""
    return max(reaches, key=_REACH.index, default=NOTHING)


def drop_in(reach: str, groups: Iterable[str] = ()) -> str:
    """The text of it, "" for none. groups: directories of control groups beside whose processes it must not start:
    the kernel removes them when those have ended."""
    if reach == NOTHING:
        return ""
    beside = [f"AssertPathExists=!{one.replace('%', '%%')}" for one in sorted(set(groups))]
    if reach == BESIDE:
        words = "# Made by gpufleet.checkpoint: a process of this unit was restored and lives outside of it."
        return "\n".join([words, "[Unit]", *beside]) + "\n"
    lines = ["# Made by gpufleet.checkpoint: a process of this unit is in an image. Removed when it is back."]
    lines += ["[Unit]", "FailureAction=none", "SuccessAction=none", *beside]
    if reach == NO_START:
        lines.append(f"AssertPathExists={NEVER}")
    lines += ["[Service]", "Restart=no", "RestartForceExitStatus=", "SuccessExitStatus=SIGKILL", "RemainAfterExit=no"]
    lines += ["KillMode=process", "ExecStop=", "ExecStopPost=", "RuntimeDirectoryPreserve=yes"]
    return "\n".join(lines) + "\n"


def seconds(usec: int) -> float:
    return usec / 1e6
