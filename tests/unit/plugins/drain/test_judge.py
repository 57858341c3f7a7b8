# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a suspended process is, what has become of it, and what is proved of a host."""

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_judge import (
    ImageSeen,
    Known,
    Lost,
    Member,
    Scene,
    Seen,
    judge,
    last_suspend,
    suspender,
    unrestored,
    unsuspended,
)
from tests.unit.plugins.drain.made import BOOT, EARLIER, identity, operation

SUSPEND = operation(id=1)
RESUME: dict[str, Any] = {"goal": "running", "state_before": "checkpointed"}


def seen(pid: int, suspended: bool = False, stopped: bool = False, selected: bool = True) -> Seen:
    return Seen(identity(pid), "/usr/bin/train", suspended, stopped or suspended, selected)


def known(pid: int, boot_id: str = BOOT, **values: Any) -> Known:
    return Known(identity(pid, boot_id), "/usr/bin/train", 5, **values)


def image(state: str = "unspent", pid: int = 7, came: bool = False, **values: Any) -> ImageSeen:
    member = Member(identity(pid, EARLIER), "/usr/bin/train", 5, identity(pid) if came else None)
    return ImageSeen(f"/i/pid-{pid}", pid, state, 9, (member,), **values)


def scene(phase: str = "suspending", mode: str = "memory", **values: Any) -> Scene:
    fields: dict[str, Any] = {"boot_id": BOOT, "seen": (), "known": (), "images": ()}
    return Scene(phase, mode, **{**fields, **values})


def states(one: Scene) -> dict[int, str]:
    return {process.identity.pid: process.state for process in judge(one).processes}


# Who has suspended it


@pytest.mark.parametrize(
    ("operations", "by"),
    [
        ([SUSPEND], 1),
        ([operation(id=1, run_id="x"), operation(id=2, state_before="checkpointed")], 1),  # a guard was renewed
        ([SUSPEND, operation(id=2, **RESUME, status="failed")], 1),
        ([SUSPEND, operation(id=2, **RESUME, status="active")], 1),
        ([SUSPEND, operation(id=2, state_before="unknown", status="suspended")], 1),  # found half way
        ([operation(id=2, state_before="unknown")], 2),
        ([SUSPEND, operation(id=2, **RESUME, status="done")], None),
        ([operation(id=1, status="undone")], None),
        ([SUSPEND, operation(id=2, **RESUME, status="done"), operation(id=3, status="undone")], None),
        ([SUSPEND, operation(id=2, **RESUME, status="done"), operation(id=3)], 3),
        ([operation(id=1, state_before="locked")], 1),
        ([], None),
    ],
)
def test_who_suspended_it(operations: list[Any], by: int | None) -> None:
    found = suspender(operations)
    assert (found.id if found else None) == by


def test_who_suspended_it_last_also_when_it_is_back() -> None:
    back = [SUSPEND, operation(id=2, **RESUME, status="done")]
    assert last_suspend(back) == SUSPEND
    assert last_suspend([*back, operation(id=3, status="undone")]) == SUSPEND
    assert last_suspend([operation(id=1, status="undone")]) is None


# What has become of it


def test_what_is_suspended_in_memory_is_ours_or_another_s() -> None:
    one = scene(
        seen=(seen(7, suspended=True), seen(8, suspended=True), seen(9), seen(10, selected=False)),
        known=(known(7),),
        ours=frozenset((identity(7),)),
    )
    found = judge(one)
    assert found.pids == (identity(7),) and found.others == (8,) and found.lost == ()
    assert states(one) == {7: "suspended", 8: "suspended", 9: "running"}


def test_after_the_suspend_only_its_own_are_told() -> None:
    one = scene("suspended", seen=(seen(7, suspended=True), seen(9)), known=(known(7),), ours=frozenset((identity(7),)))
    assert states(one) == {7: "suspended"}


@pytest.mark.parametrize("phase", ["suspending", "suspended", "maintenance", "restoring", "undoing"])
def test_a_reboot_loses_what_was_in_memory(phase: str) -> None:
    one = scene(phase, known=(known(7, EARLIER),))
    assert judge(one).lost == (
        Lost("PID 7 (/usr/bin/train)", "it was suspended in memory, and the host has booted since"),
    )
    assert states(one) == {7: "gone"}


def test_who_ends_meanwhile_is_lost_and_who_ends_later_is_not() -> None:
    assert judge(scene("suspended", known=(known(7),))).lost[0].why.startswith("it ended while it was suspended")
    assert judge(scene("restoring", known=(known(7, resumed=True),))).lost[0].why == (
        "it was brought back, and has ended since"
    )
    for phase in ("claimed", "restored", "released", "undone"):
        assert judge(scene(phase, known=(known(7),))).lost == ()


def test_an_image_holds_what_has_ended_here() -> None:
    one = scene("suspended", "disk", known=(known(7, EARLIER),), images=(image(),))
    assert judge(one).lost == () and states(one) == {7: "suspended"}
    # The journal knows less than the image, where the host was booted from another disk.
    assert states(scene("suspended", "disk", images=(image(),))) == {7: "suspended"}


def test_who_came_out_of_an_image_is_the_same_with_another_identity() -> None:
    one = scene(
        "restoring",
        "disk",
        seen=(seen(7),),
        known=(known(7, EARLIER), known(7)),
        images=(image("spent", came=True, lives=True),),
    )
    (process,) = judge(one).processes
    assert (process.identity, process.state) == (identity(7), "running")
    assert judge(one).lost == ()


def test_who_came_out_of_an_image_without_its_gpu_is_suspended() -> None:
    one = scene(
        "restoring",
        "disk",
        seen=(seen(7, suspended=True),),
        known=(known(7, EARLIER), known(7)),
        images=(image("restoring", came=True, lives=True),),
        ours=frozenset((identity(7),)),
    )
    assert states(one) == {7: "suspended"} and judge(one).pids == (identity(7),)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (image("missing", why="it is not there any more"), "it is not there any more"),
        (image("damaged", why="pages-1.img is missing"), "pages-1.img is missing"),
        (image("spent"), "everything that came out of it has ended since"),
    ],
)
def test_an_image_that_gives_nothing_back_is_lost_once(one: ImageSeen, why: str) -> None:
    found = judge(scene("restoring", "disk", known=(known(7, EARLIER),), images=(one,)))
    assert len(found.lost) == 1
    assert found.lost[0].what == "image /i/pid-7 (PID 7)" and why in found.lost[0].why
    assert [process.state for process in found.processes] == ["gone"]


def test_one_of_a_restored_tree_that_has_ended_is_lost() -> None:
    one = image("spent", lives=True)
    (lost,) = judge(scene("restoring", "disk", known=(known(7, EARLIER),), images=(one,))).lost
    assert lost == Lost("PID 7 (/usr/bin/train)", "it was restored from /i/pid-7, and has ended since")


# What is proved


def test_suspended_needs_every_selected_process_stopped_without_its_gpu() -> None:
    good = scene(seen=(seen(7, suspended=True), seen(8, suspended=True), seen(9, selected=False)))
    assert unsuspended(good) == ()
    loose = Seen(identity(7), "/usr/bin/train", suspended=True, stopped=False, selected=True)
    assert unsuspended(scene(seen=(seen(8), loose))) == (
        "PID 8 (/usr/bin/train) runs with its GPU",
        "PID 7 (/usr/bin/train) is suspended, but its threads run without their GPU",
    )
    # With backend: toggle nothing can be parked, and whoever allowed that knows it.
    assert unsuspended(scene(seen=(loose,), known=(known(7, park=False),))) == ()


def test_on_disk_nothing_may_be_left() -> None:
    assert unsuspended(scene(mode="disk", images=(image(),))) == ()
    assert unsuspended(scene(mode="disk", seen=(seen(7, suspended=True),))) == (
        "PID 7 (/usr/bin/train) is suspended in memory, and in no image",
    )
    half = image("unfinished", lives=True, why="its tree has not been ended (step end)")
    assert unsuspended(scene(mode="disk", images=(half,))) == (
        "image /i/pid-7 is unfinished: its tree has not been ended (step end)",
    )


def test_restored_needs_every_process_to_run_and_every_image_spent() -> None:
    def problems(one: Scene) -> tuple[str, ...]:
        return unrestored(one, judge(one))

    assert problems(scene("restoring", seen=(seen(7),), known=(known(7),))) == ()
    assert problems(scene("restoring", seen=(seen(7, suspended=True),), known=(known(7),))) == (
        "PID 7 (/usr/bin/train) is suspended still",
    )
    # An image beside its living process would be a second life.
    beside = scene("undoing", "disk", seen=(seen(7),), images=(image(),))
    assert "image /i/pid-7 is unspent" in problems(beside)
    held = scene("undoing", "disk", images=(ImageSeen("/i/pid-7", 7, "unfinished", None, lives=True),))
    assert problems(held) == ("image /i/pid-7 was begun, and its processes are held",)
    # It has its devices, and yet nobody has unlocked it.
    locked = replace(seen(7), half_way=True)
    left = scene("undoing", seen=(locked,), known=(known(7),), ours=frozenset((locked.identity,)))
    assert problems(left) == ("PID 7 (/usr/bin/train) may be locked: the last step with it was broken off",)
    assert judge(left).pids == (locked.identity,)
    assert problems(replace(left, ours=frozenset())) == () and judge(replace(left, ours=frozenset())).pids == ()
    # What somebody else has suspended is not this drain's to bring back.
    assert problems(scene("restoring", seen=(seen(8, suspended=True),))) == ()
