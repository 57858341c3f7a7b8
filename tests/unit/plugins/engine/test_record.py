# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records do what frozen dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from functools import cached_property
from typing import Any, Dict, List, Optional, Tuple

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _record


@_record.dataclass(frozen=True)
class Record:
    """Both have the same body."""

    a: int
    b: Optional[str]
    c: Tuple[int, ...] = ()
    d: Dict[str, int] = dataclasses.field(default_factory=dict)

    @cached_property
    def twice(self) -> int:
        return 2 * self.a


@dataclasses.dataclass(frozen=True)
class Usual:
    """Both have the same body."""

    a: int
    b: Optional[str]
    c: Tuple[int, ...] = ()
    d: Dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Inside:
    one: Record


CALLS: List[Tuple[Tuple[Any, ...], Dict[str, Any]]] = [
    ((1, "x"), {}),
    ((1,), {"b": None}),
    ((), {"b": "y", "a": 2, "d": {"z": 1}}),
    ((1, "x", (3,), {}), {}),
]
WRONG: List[Tuple[Tuple[Any, ...], Dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((1, "x"), {"a": 2}),
    ((1, "x"), {"e": 2}),
    ((1,), {"e": 2}),
    ((1, "x", (), {}, 5), {}),
    ((1,), {"c": (), "d": {}, "e": 1}),
]


@pytest.mark.parametrize(("given", "named"), CALLS)
def test_it_is_made_like_a_dataclass(given: Tuple[Any, ...], named: Dict[str, Any]) -> None:
    record, usual = Record(*given, **named), Usual(*given, **named)
    other: object = usual
    assert dataclasses.asdict(record) == dataclasses.asdict(usual)
    assert dataclasses.astuple(record) == dataclasses.astuple(usual)
    assert repr(record) == repr(usual).replace("Usual", "Record")
    assert record == Record(*given, **named) and record != Record(9, "other")
    assert record != other, "another class"


@pytest.mark.parametrize(("given", "named"), WRONG)
def test_what_does_not_fit_is_refused(given: Tuple[Any, ...], named: Dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Usual(*given, **named)
    with pytest.raises(TypeError, match="Record"):
        Record(*given, **named)


def test_it_is_frozen() -> None:
    record = Record(1, "x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.a = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del record.a
    assert record.a == 1


def test_replaced_copied_and_inside_others() -> None:
    record = Record(1, "x", d={"y": 1})
    assert record.twice == 2
    assert dataclasses.replace(record, a=5) == Record(5, "x", d={"y": 1})
    assert dataclasses.replace(record, a=5).twice == 10
    assert repr(record) == "Record(a=1, b='x', c=(), d={'y': 1})", "what is remembered does not belong to it"
    deep = copy.deepcopy(record)
    assert deep == record and deep.d is not record.d
    assert pickle.loads(pickle.dumps(record)) == record
    assert dataclasses.asdict(Inside(record)) == {"one": {"a": 1, "b": "x", "c": (), "d": {"y": 1}}}


def test_no_default_is_shared() -> None:
    assert Record(1, "x").d is not Record(1, "x").d


def test_equal_ones_are_one_key() -> None:
    @_record.dataclass(frozen=True)
    class Key:
        a: int
        b: str = ""

    assert len({Key(1), Key(1, ""), Key(2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Record(1, "x"))


def test_what_it_can_not_do_is_said() -> None:
    with pytest.raises(TypeError, match="inherits"):
        _record.dataclass(frozen=True)(type("Below", (Record,), {}))
    with pytest.raises(TypeError, match="__post_init__"):
        _record.dataclass(frozen=True)(type("Post", (), {"__post_init__": lambda self: None}))
    with pytest.raises(TypeError, match="frozen"):
        _record.dataclass(frozen=False)
