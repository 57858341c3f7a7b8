# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to be held, and what can't be: services on paper."""

from __future__ import annotations

from typing import Tuple

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import (
    BESIDE,
    HELD_LEAST_USEC,
    HELD_USEC,
    IMAGE,
    NEVER,
    NO_RESTART,
    NO_START,
    NOTHING,
    SUSPEND,
    Look,
    Service,
    drop_in,
    finding,
    judge,
    lift,
    names_of,
    second_copy,
    service_from,
    unit_of,
    widest,
)
from tests.unit.plugins.units.helpers import MAIN, identity, member, service


def look(kind: str, one: Service, *members: object, root: bool = True) -> Look:
    inside = members or (member(),)
    return judge(kind, inside, {one.name: one}, root)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/system.slice/a.service", ("a.service", "")),
        ("/system.slice/system-a.slice/a@1.service", ("a@1.service", "")),
        ("/system.slice/a.service/worker/3", ("a.service", "")),
        ("/system.slice/outer.service/system.slice/inner.service", ("inner.service", "")),
        ("/system.slice/docker-0123.scope", ("", "")),
        ("/system.slice/a.service/run.scope", ("", "")),
        ("/user.slice/user-1000.slice/session-3.scope", ("", "")),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/a.service", ("a.service", "1000")),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/tmux.scope", ("", "1000")),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", ("", "1000")),
        ("/", ("", "")),
    ],
)
def test_the_unit_of_a_control_group(path: str, expected: Tuple[str, str]) -> None:
    assert unit_of(("/", path)) == expected


def test_units_of_users_are_not_asked_for() -> None:
    user = member(path="/user.slice/user-1.slice/user@1.service/u.service")
    assert names_of((member(), user, member(MAIN + 1), member(path="/x.scope"))) == ("a.service",)


def test_what_systemctl_shows_is_read() -> None:
    one = service_from(
        "a.service",
        {
            "LoadState": "loaded",
            "ActiveState": "active",
            "MainPID": "12",
            "WatchdogUSec": "1min 30.5s",
            "TasksCurrent": "[not set]",
            "TriggeredBy": "a.timer a.socket",
            "NeedDaemonReload": "yes",
            "DropInPaths": "/run/x.conf /etc/y.conf",
        },
    )
    assert (one.main_pid, one.watchdog_usec, one.tasks, one.sockets) == (12, 90_500_000, 0, ("a.socket",))
    assert one.stale and one.drop_ins == ("/run/x.conf", "/etc/y.conf")
    assert service_from("a.service", {"WatchdogUSec": "infinity"}).watchdog_usec == 0
    held = service_from("a.service", {"WatchdogUSec": "9y 11month 3w 6d 22h 30min"})
    assert held.watchdog_is_held and abs(held.watchdog_usec - HELD_USEC) < HELD_USEC // 100 < HELD_LEAST_USEC


def test_a_suspend_needs_the_watchdog_only() -> None:
    (one,) = look(SUSPEND, service()).wanted
    assert (one.watchdog, one.reach) == (True, NOTHING)
    assert look(SUSPEND, service(watchdog_usec=0)) == Look(SUSPEND, free=frozenset((MAIN,)))


def test_an_image_needs_the_unit_not_to_start() -> None:
    assert [one.reach for one in look(IMAGE, service(watchdog_usec=0)).wanted] == [NO_START]
    assert [one.watchdog for one in look(IMAGE, service()).wanted] == [True]
    assert [one.reach for one in look(IMAGE, service(main_pid=0, watchdog_usec=0)).wanted] == [NO_START]


def test_below_its_main_process_a_second_copy_is_all_that_is_kept_away() -> None:
    """`sh -c` may be a supervisor as well, whose other children somebody wants to start anew."""
    inside = member(MAIN + 1, parent=MAIN)
    assert [one.reach for one in look(IMAGE, service(), inside).wanted] == [NO_RESTART]


@pytest.mark.parametrize("kind", [SUSPEND, IMAGE])
def test_a_daemon_further_up_is_left_alone(kind: str) -> None:
    """Such as sshd of a job that was started over SSH: it reports itself, and must be startable."""
    told = look(kind, service(), member(MAIN + 2, parent=MAIN + 1))
    assert not told.wanted and not told.findings and told.free == {MAIN + 2}


def test_whoever_may_report_has_to_be_held() -> None:
    (one,) = look(SUSPEND, service(notify_access="all"), member(MAIN + 2, parent=MAIN + 1)).wanted
    assert one.watchdog


@pytest.mark.parametrize("state", ["activating", "deactivating", "reloading"])
def test_a_unit_on_its_way_is_refused(state: str) -> None:
    (told,) = look(SUSPEND, service(active=state)).findings
    assert (told.id, told.pid, told.option) == ("unit_hold", MAIN, "")
    assert f"a.service: it is {state}." in told.message() and "Wait" in told.message()


def test_a_unit_that_is_over_has_nothing_to_hold() -> None:
    for state in ("failed", "inactive"):
        assert look(IMAGE, service(active=state)) == Look(IMAGE, free=frozenset((MAIN,)))


def test_a_unit_of_a_user_is_refused() -> None:
    told = judge(IMAGE, (member(path="/user.slice/user-7.slice/user@7.service/u.service"),), {}, True)
    assert not told.free and "u.service of user id 7" in told.findings[0].message()


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (service(group="/machine.slice/x.scope/system.slice/a.service"), "this host's systemd does not run"),
        (service(group=""), "this host's systemd does not run"),
        (service(load="not-found"), "this host's systemd does not run"),
        (service(problem="systemctl gave no answer"), "systemctl gave no answer"),
        (service(main_pid=0), "no main process"),
    ],
)
def test_what_systemd_does_not_own_or_tell_is_refused(one: Service, words: str) -> None:
    told = look(SUSPEND, one)
    assert not told.wanted and not told.free and words in told.findings[0].message()


def test_a_group_whose_name_only_begins_alike_is_another() -> None:
    assert look(SUSPEND, service(), member(path="/system.slice/a.service-x/a.service")).findings


def test_only_root_holds() -> None:
    (told,) = look(SUSPEND, service(), root=False).findings
    assert "watchdog of 2 s" in told.message() and "become: true" in told.message()
    assert not look(SUSPEND, service(watchdog_usec=0), root=False).findings


def test_what_stops_with_it_or_starts_it_is_told() -> None:
    told = look(IMAGE, service(sockets=("a.socket",), bound=("b.service",)))
    assert "a.socket" in told.notes[0] and "b.service" in told.notes[1]
    assert not look(SUSPEND, service(sockets=("a.socket",), bound=("b.service",))).notes


def test_findings_that_holding_makes_void_are_lifted() -> None:
    watchdog = finding("x", "y", "z", "w", MAIN, "systemd_watchdog")
    restart = finding("x", "y", "z", "w", MAIN, "systemd_restart")
    other = finding("x", "y", "z", "w", MAIN, "mps_client")
    foreign = finding("x", "y", "z", "w", MAIN + 1, "systemd_watchdog")
    every = (watchdog, watchdog.allowed(), restart, other, foreign)
    assert lift(every, look(SUSPEND, service())) == (watchdog.allowed(), restart, other, foreign)
    assert lift(every, look(IMAGE, service())) == (watchdog.allowed(), other, foreign)
    assert lift(every, look(SUSPEND, service(active="activating"))) == every


def test_a_second_copy_is_another_main_process() -> None:
    first, second = identity(MAIN), identity(MAIN + 5)
    told = second_copy(service(main_pid=second.pid), first, second)
    assert told is not None and (told.id, told.pid) == ("unit_active", second.pid)
    assert "systemctl stop a.service" in told.message() and f"PID {second.pid}" in told.message()
    assert second_copy(service(), first, first) is None
    for gone in (service(active="inactive"), service(active="failed"), service(main_pid=0, tasks=0)):
        assert second_copy(gone, first, None) is None
    assert second_copy(service(main_pid=0, tasks=3), first, None) is not None
    assert second_copy(service(problem="no answer"), first, None) is not None


def test_beside_what_was_restored_a_unit_is_only_kept_from_starting() -> None:
    text = drop_in(BESIDE, ["/sys/fs/cgroup/b%.scope", "/a.scope", "/a.scope"])
    assert text.splitlines()[1:] == [
        "[Unit]",
        "AssertPathExists=!/a.scope",
        "AssertPathExists=!/sys/fs/cgroup/b%%.scope",
    ]
    assert "AssertPathExists=!/a.scope\n" in drop_in(NO_RESTART, ["/a.scope"])
    assert widest([BESIDE, NO_RESTART]) == NO_RESTART and widest([BESIDE, NOTHING]) == BESIDE


def test_the_drop_in_that_serves_all() -> None:
    assert widest([]) == NOTHING and widest([NO_START, NOTHING, NO_RESTART]) == NO_START
    assert drop_in(NOTHING) == ""
    assert NEVER in drop_in(NO_START) and NEVER not in drop_in(NO_RESTART)
    for text in (drop_in(NO_START), drop_in(NO_RESTART)):
        unit, _separator, main = text.partition("[Service]\n")
        assert "Restart=no\n" in main and "KillMode=process\n" in main and "SuccessExitStatus=SIGKILL\n" in main
        assert "FailureAction=none\n" in unit
