# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The right to one life, on its way between two hosts: never at both, whatever is done, repeated or mixed up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import handoff
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import (
    HELD,
    MOVED,
    RESTORING,
    RETURNED,
    SHARED,
    SOURCE,
    SPENT,
    TARGET,
    UNSPENT,
    Handoff,
    Life,
    from_json,
    to_json,
)

A, B, C = "a" * 32, "b" * 32, "c" * 32
IMAGE = "/srv/images/pid-4711"


def key(name: str) -> str:
    return handoff.lock_of(name)


@dataclass(frozen=True)
class World:
    """One image at "a", copies at "b" and "c", and what a controller has heard. It may be confused, and tell anybody
    anything of that: locks and keys of copies, and the words of a fence, key and lock, which it takes for one thing.
    lives: where the process is. offers: how many there were."""

    marks: frozenset[tuple[str, Life]] = frozenset({("a", Life())})
    told: frozenset[str] = frozenset()
    fences: frozenset[tuple[str, str]] = frozenset()
    offers: int = 0
    lives: tuple[str, ...] = ()

    def mark(self, name: str) -> Life | None:
        return dict(self.marks).get(name)

    @property
    def source(self) -> Life:
        return dict(self.marks)["a"]

    def write(self, name: str, life: Life) -> World:
        return replace(self, marks=frozenset({**dict(self.marks), name: life}.items()))


MACHINES = {"a": A, "b": B, "c": C}
Step = Callable[[], World]


def steps(world: World) -> Iterator[Step]:
    """Everything that anybody could do now."""
    if world.offers < 2:
        yield partial(_offered, world, B)
        yield partial(_offered, world, C)
    for name in MACHINES:
        yield partial(_restored, world, name)
        if name != "a" and world.mark(name) is None:
            yield partial(_copied, world, name)
    for move in sorted({life.handoff.id for _name, life in world.marks if life.handoff is not None}):
        yield partial(_concluded, world, move)
        for word in sorted(world.told):
            yield partial(_fenced, world, move, word)
            yield partial(_reclaimed, world, move, word)
        for name in ("b", "c"):
            life = world.mark(name)
            if life is not None:
                yield partial(_given_back, world, name, life, move)
                for key_of, lock in sorted(world.fences):
                    yield partial(_taken, world, name, life, move, key_of, lock)


def _offered(world: World, machine: str) -> World:
    number = world.offers + 1
    life = handoff.offer(IMAGE, world.source, Handoff(str(number) * 32, SOURCE, machine, "", key(f"k{number}")))
    return world if life == world.source else replace(world.write("a", life), offers=number)


def _copied(world: World, name: str) -> World:
    """A copy is accepted: it has a key of its own, and the lock of the offer of then."""
    mark = world.source.handoff
    if mark is None:
        return world
    own = key(f"r{mark.id[0]}{name}")
    life = handoff.hold(Life(), Handoff(mark.id, TARGET, A, "", own, handoff.lock_of(mark.key)))
    return replace(world.write(name, life), told=world.told | {handoff.lock_of(own)})


def _fenced(world: World, move: str, lock: str) -> World:
    life = handoff.fence(IMAGE, world.source, move, lock, "run", 0.0)
    assert life.handoff is not None
    return replace(world.write("a", life), fences=world.fences | {(life.handoff.key, lock)})


def _taken(world: World, name: str, life: Life, move: str, key_of: str, lock: str) -> World:
    return world.write(name, handoff.take(IMAGE, life, move, key_of, lock, MACHINES[name]))


def _given_back(world: World, name: str, life: Life, move: str) -> World:
    after = handoff.give_back(IMAGE, life, move, MACHINES[name], life.state != RESTORING, "run", 0.0)
    assert after.handoff is not None
    return replace(world.write(name, after), told=world.told | {after.handoff.key})


def _reclaimed(world: World, move: str, word: str) -> World:
    return world.write("a", handoff.reclaim(IMAGE, world.source, move, word, A))


def _concluded(world: World, move: str) -> World:
    return world.write("a", handoff.conclude(IMAGE, world.source, move, 0.0))


def _restored(world: World, name: str) -> World:
    life = world.mark(name)
    if life is None or life.state == SPENT or handoff.barred(life, MACHINES[name]):
        return world
    begins = life.state == UNSPENT
    after = replace(life, state=RESTORING if begins else SPENT, host=MACHINES[name])
    return replace(world.write(name, after), lives=(*world.lives, name) if begins else world.lives)


def may_live(world: World) -> set[str]:
    """Where the process is, and where it could be made."""
    could = {name for name, life in world.marks if life.state == UNSPENT and not handoff.barred(life, MACHINES[name])}
    return could | set(world.lives)


def test_never_two_lives_whatever_anybody_does_in_whatever_order() -> None:
    """Every state that can be reached by any steps, with any keys and locks that were ever told, and two copies."""
    seen = {World()}
    todo = list(seen)
    while todo:
        world = todo.pop()
        assert len(may_live(world)) <= 1 and len(world.lives) <= 1, world
        for step in steps(world):
            try:
                after = step()
            except CriuError:
                continue
            if after not in seen:
                seen.add(after)
                todo.append(after)
    assert len(seen) > 100
    assert {world.lives for world in seen} == {(), ("a",), ("b",), ("c",)}


LOCK = handoff.lock_of(key("r"))


def offered() -> Life:
    return handoff.offer(IMAGE, Life(), Handoff("1" * 32, SOURCE, B, "gpu08", key("k")))


def held() -> Life:
    return handoff.hold(Life(), Handoff("1" * 32, TARGET, A, "gpu07", key("r"), handoff.lock_of(key("k"))))


def test_the_way_there_and_back_each_step_twice() -> None:
    source, target = offered(), held()
    assert handoff.offer(IMAGE, source, Handoff("2" * 32, SOURCE, B, "gpu08", key("other"))) == source
    assert not handoff.barred(source, A) and handoff.barred(target, B)
    for _time in range(2):
        source = handoff.fence(IMAGE, source, "1" * 32, handoff.lock_of(key("r")), "run", 1.0)
    assert source.state == MOVED and "gpu08" in handoff.barred(source, A)
    for _time in range(2):
        target = handoff.take(IMAGE, target, "1" * 32, key("k"), LOCK, B)
    assert target.state == UNSPENT and not handoff.barred(target, B)
    for _time in range(2):
        target = handoff.give_back(IMAGE, target, "1" * 32, B, True, "run", 2.0)
    assert target.state == RETURNED and "gpu07" in handoff.barred(target, B)
    source = handoff.reclaim(IMAGE, source, "1" * 32, key("r"), A)
    assert source == Life()


def test_another_offer_makes_copies_of_the_former_worthless() -> None:
    source = handoff.offer(IMAGE, offered(), Handoff("2" * 32, SOURCE, C, "gpu09", key("k2")))
    with pytest.raises(CriuError, match="tells of move 22222222, not of move 11111111"):
        handoff.fence(IMAGE, source, "1" * 32, handoff.lock_of(key("r")), "run", 1.0)
    source = handoff.fence(IMAGE, source, "2" * 32, handoff.lock_of(key("r2")), "run", 1.0)
    with pytest.raises(CriuError, match="the key that is to open it is not that of its source"):
        handoff.take(IMAGE, held(), "1" * 32, key("k2"), LOCK, B)


def test_a_copy_opens_with_the_key_of_its_source_only() -> None:
    for wrong in ("", key("r"), handoff.lock_of(key("k"))):
        with pytest.raises(CriuError, match="there could be two lives"):
            handoff.take(IMAGE, held(), "1" * 32, wrong, LOCK, B)
    with pytest.raises(CriuError, match="given the image up for another copy than this one"):
        handoff.take(IMAGE, held(), "1" * 32, key("k"), handoff.lock_of(key("r2")), B)


def test_the_source_has_it_back_with_the_key_of_that_copy_only() -> None:
    source = handoff.fence(IMAGE, offered(), "1" * 32, handoff.lock_of(key("r")), "run", 1.0)
    for wrong in ("", key("k"), key("r2")):
        with pytest.raises(CriuError, match="copy on gpu08 has not been given back") as caught:
            handoff.reclaim(IMAGE, source, "1" * 32, wrong, A)
        assert "second_life" in caught.value.option


@pytest.mark.parametrize("state", [RESTORING, SPENT])
def test_what_lives_or_may_live_is_not_given_back(state: str) -> None:
    life = replace(handoff.take(IMAGE, held(), "1" * 32, key("k"), LOCK, B), state=state, run_id="r1")
    with pytest.raises(CriuError, match="run r1"):
        handoff.give_back(IMAGE, life, "1" * 32, B, False, "run", 1.0)


def test_what_broke_off_and_left_nothing_is_given_back() -> None:
    life = replace(handoff.take(IMAGE, held(), "1" * 32, key("k"), LOCK, B), state=RESTORING, boot_id="0-1")
    assert handoff.give_back(IMAGE, life, "1" * 32, B, True, "run", 1.0).state == RETURNED


@pytest.mark.parametrize("state", [RESTORING, SPENT, HELD, RETURNED])
def test_only_what_can_be_restored_is_offered_and_given_up(state: str) -> None:
    life = replace(offered(), state=state)
    with pytest.raises(CriuError, match=f"it is {state}"):
        handoff.offer(IMAGE, life, Handoff("2" * 32, SOURCE, C, "", key("k2")))
    with pytest.raises(CriuError, match=f"it is {state}"):
        handoff.fence(IMAGE, life, "1" * 32, handoff.lock_of(key("r")), "run", 1.0)


def test_one_image_that_both_see() -> None:
    life = handoff.offer(IMAGE, Life(), Handoff("1" * 32, SHARED, B, "gpu08", key("k")))
    with pytest.raises(CriuError, match="has to be given up for this very host first"):
        handoff.take(IMAGE, life, "1" * 32, key("k"), "", B)
    life = handoff.fence(IMAGE, life, "1" * 32, "", "run", 1.0)
    assert handoff.barred(life, A) and handoff.barred(life, B) and handoff.barred(life, C)
    with pytest.raises(CriuError):
        handoff.take(IMAGE, life, "1" * 32, key("k"), "", C)
    taken = handoff.take(IMAGE, life, "1" * 32, "", "", B)
    assert not handoff.barred(taken, B)
    assert f"machine id {B}" in handoff.barred(taken, A)
    with pytest.raises(CriuError, match="unspent, and can't be reclaimed"):
        handoff.reclaim(IMAGE, taken, "1" * 32, "", A)
    with pytest.raises(CriuError):
        handoff.give_back(IMAGE, taken, "1" * 32, A, True, "run", 1.0)
    back = handoff.give_back(IMAGE, taken, "1" * 32, B, True, "run", 1.0)
    assert handoff.barred(back, B)
    assert handoff.reclaim(IMAGE, back, "1" * 32, "", A) == Life()


def test_a_restore_that_was_begun_elsewhere_is_not_begun_anew_here() -> None:
    """Of one store that two hosts see: the other one has what came out of it."""
    life = Life(RESTORING, "0-1", "r1", 1.0, host=B)
    assert not handoff.barred(life, B)
    assert "has begun to restore it" in handoff.barred(life, A)


@pytest.mark.parametrize("life", [offered(), held(), replace(held(), state=RETURNED, host=B)])
def test_marks_are_read_as_they_were_written(life: Life) -> None:
    assert from_json(to_json(life)) == life


def test_the_mark_of_an_image_that_never_moves_is_as_it_was() -> None:
    assert b"handoff" not in to_json(Life()) and b"host" not in to_json(Life())
