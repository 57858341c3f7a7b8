# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is the tree in the image? Against a recorded one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import images
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.images import Task
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.proof import prove
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import Tree
from tests.unit.plugins.criu.known import member, tree, unpack

GPU = "GPU-037f4427-7da6-3ac9-a8cb-e47043f7d821"
OTHER = "GPU-537f4427-7da6-3ac9-a8cb-e47043f7d821"


@pytest.fixture
def image(tmp_path: Path) -> str:
    return unpack(tmp_path / "image")


def problems(image: str, seen: Tree, held: Mapping[int, Mapping[str, int]] | None = None) -> tuple[str, ...]:
    return prove(seen, images.read_pstree(image), images.page_bytes(image), held or {})


def test_the_recorded_tree_is_proved(image: str) -> None:
    """Its zombie is in the image, and not among those that were seen."""
    assert problems(image, tree()) == ()


def test_who_started_the_root_does_not_count(image: str) -> None:
    assert problems(image, tree(root=member(223, 777, "sh"))) == ()


def test_a_member_that_is_not_in_the_image(image: str) -> None:
    assert problems(image, tree(member(240, 225, "late"))) == ("PID 240 (late) is not in the image",)


def test_a_process_that_was_not_seen(image: str) -> None:
    seen = tree()
    fewer = replace(seen, members=seen.members[:2])
    assert problems(image, fewer) == ("PID 226 (sleep) is in the image, and was not seen in the tree",)


def test_another_root(image: str) -> None:
    found = problems(image, tree(root=member(222, 1, "sh")))
    assert found[0] == "its root is PID 223, not PID 222"


def test_a_thread_too_few_and_one_too_many(image: str) -> None:
    (found,) = problems(image, tree(member(225, 223, "victim", threads=(225, 228, 230, 231))))
    assert found == "PID 225 (victim) has 3 threads in the image, and 4 in the tree; missing: 230, 231; more: 229"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"parent": 226}, "has the parent 223 in the image, and 226 in the tree"),
        ({"group": 225}, "has the process group 223 in the image, and 225 in the tree"),
        ({"session": 225}, "has the session 223 in the image, and 225 in the tree"),
    ],
)
def test_another_place_in_the_tree(image: str, field: dict[str, int], words: str) -> None:
    changed = replace(member(225, 223, "victim", threads=(225, 228, 229)), **field)  # type: ignore[arg-type]
    assert problems(image, tree(changed)) == (f"PID 225 (victim) {words}",)


def test_a_member_that_died_meanwhile(image: str) -> None:
    assert problems(image, tree(member(227, 225, "victim")))[0] == "PID 227 (victim) is dead in the image"


def test_all_of_its_device_memory_is_there(image: str) -> None:
    there = images.page_bytes(image)[225]
    assert problems(image, tree(), {225: {GPU: there - 4096, OTHER: 4096}}) == ()
    (found,) = problems(image, tree(), {225: {GPU: there - 4096, OTHER: 4097}})
    assert found == (f"PID 225 (victim) has {there} bytes of memory in the image; from its GPUs alone came {there + 1}")


def test_no_memory_at_all(image: str) -> None:
    Path(image, "pagemap-225.img").unlink()
    Path(image, "pages-2.img").unlink()
    assert problems(image, tree(), {225: {GPU: 1}}) == ("no memory of PID 225 (victim) is in the image",)


def test_gpu_memory_of_a_process_that_nobody_saw(image: str) -> None:
    assert problems(image, tree(), {999: {GPU: 1}}) == ("PID 999 held GPU memory, and was not seen in the tree",)


def test_names_are_made_printable() -> None:
    stray = Task(226, 223, 223, 223, (226,), "alive", "a\nb")
    (*_others, found) = prove(Tree(tree().members[:1], 0.0), (stray,), {223: 1}, {})
    assert found == "PID 226 (a\\nb) is in the image, and was not seen in the tree"
