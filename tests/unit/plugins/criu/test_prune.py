# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What pruning would delete, and what it never does."""

import itertools
import random

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.life import RESTORING, SPENT, UNSPENT, Life
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.prune import prune
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.store import Image
from tests.unit.plugins.criu.images_made import make_manifest

DAY = 86400.0
NOW = 1796000000.0


def image(name: str, days: float, state: str = SPENT, snapshot: bool = False, lineage: str = "") -> Image:
    made = make_manifest(created=NOW - days * DAY, name=name, lineage=lineage or name, snapshot=snapshot)
    return Image(f"/store/{name}", made, Life(state))


def deleted(*images: Image, keep: int | None = None, age: float | None = None, force: bool = False) -> list[str]:
    return [one.image.manifest.name for one in prune(images, NOW, keep, age and age * DAY, force) if one.delete]


def reason(*images: Image, keep: int | None = None, age: float | None = None, name: str = "a") -> str:
    verdicts = prune(images, NOW, keep, age and age * DAY, False)
    return next(one.reason for one in verdicts if one.image.manifest.name == name)


def test_without_a_limit_everything_stays() -> None:
    assert deleted(image("a", 1000), image("b", 1, UNSPENT), force=True) == []


def test_the_newest_are_kept() -> None:
    images = [image(name, days) for name, days in (("c", 3), ("a", 1), ("d", 4), ("b", 2))]
    assert [one.image.manifest.name for one in prune(images, NOW, 2, None, False)] == ["a", "b", "c", "d"]
    assert deleted(*images, keep=2) == ["c", "d"]
    assert deleted(*images, keep=0) == ["a", "b", "c", "d"]
    assert deleted(*images, keep=9) == []
    assert reason(*images, keep=2, name="d") == "it is not among the newest 2 images"
    assert reason(*images, keep=1, name="d") == "it is not the newest image"


def test_what_is_too_old_goes() -> None:
    images = [image("a", 1), image("b", 6.9), image("c", 7.1)]
    assert deleted(*images, age=7) == ["c"]
    assert deleted(image("a", 7), age=7) == []
    assert reason(*images, age=7, name="c") == "it is 7.1 d old, more than 7 d"


def test_either_limit_is_enough() -> None:
    images = [image("a", 1), image("b", 2), image("c", 8)]
    assert deleted(*images, keep=1, age=7) == ["b", "c"]
    assert deleted(*images, keep=9, age=7) == ["c"]


def test_what_is_not_spent_goes_by_force_only() -> None:
    images = [image("a", 9, UNSPENT), image("b", 1)]
    assert deleted(*images, keep=0) == ["b"]
    assert reason(*images, keep=0) == (
        "it is not spent: its process exists nowhere else (force: true deletes it), though none is kept"
    )
    assert deleted(*images, keep=0, force=True) == ["b", "a"]


def test_what_is_being_restored_stays_whatever_is_said() -> None:
    assert deleted(image("a", 9, RESTORING), keep=0, force=True) == []
    assert "it is being restored" in reason(image("a", 9, RESTORING), keep=0)


def test_snapshots_are_a_kind_of_their_own() -> None:
    images = [image("a", 1), image("b", 2), *(image(f"s{day}", day, UNSPENT, True, "x") for day in (1, 2, 3))]
    assert sorted(deleted(*images, keep=1)) == ["b", "s2", "s3"]
    assert sorted(deleted(*images, keep=2)) == ["s3"]


def test_the_last_snapshot_of_a_process_stays() -> None:
    images = [image("a", 9, UNSPENT, True, "x"), image("b", 8, UNSPENT, True, "y"), image("c", 1, UNSPENT, True, "y")]
    assert deleted(*images, keep=1) == ["b"]
    assert deleted(*images, age=0.5) == ["b"]
    assert "it is the last snapshot of its process (force: true deletes it), though" in reason(*images, keep=1)
    assert sorted(deleted(*images, age=0.5, force=True)) == ["a", "b", "c"]


def test_a_dump_makes_the_snapshots_before_it_superfluous() -> None:
    images = [image("a", 2, UNSPENT, True, "x"), image("b", 1, UNSPENT, False, "x")]
    assert deleted(*images, keep=0) == ["a"]
    assert deleted(image("a", 2, UNSPENT, True, "x"), image("b", 1, SPENT, False, "x"), keep=0) == ["b"], "it lived on"
    later = image("c", 0.5, UNSPENT, True, "x")
    assert deleted(*images, later, keep=0) == ["a"], "the dump stays, whatever came after it"


def test_no_image_that_counts_goes_in_any_store() -> None:
    chance = random.Random(7)
    for _round in range(500):
        images = [
            image(
                f"i{number}",
                chance.uniform(-1, 30),
                chance.choice((UNSPENT, RESTORING, SPENT)),
                chance.random() < 0.5,
                chance.choice("xyz"),
            )
            for number in range(chance.randrange(8))
        ]
        keep, age = chance.choice((None, 0, 1, 3)), chance.choice((None, 0.1, 10.0))
        gone = deleted(*images, keep=keep, age=age)
        verdicts = prune(images, NOW, keep, age and age * DAY, False)
        assert len(verdicts) == len(images) and all(one.reason for one in verdicts)
        for one, force in itertools.product(images, (False, True)):
            if one.life.state == RESTORING:
                assert one.manifest.name not in deleted(*images, keep=keep, age=age, force=force)
        for one in images:
            if one.life.state != UNSPENT or one.manifest.name not in gone:
                continue
            assert one.manifest.snapshot
            assert any(
                other.manifest.lineage == one.manifest.lineage
                and other.manifest.created > one.manifest.created
                and other.life.state != SPENT
                and other.manifest.name not in gone
                for other in images
            ), "a later one of the same process is left, and can be restored"
