# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of tests. A test is a function over a Trial; its requirements say where it can be shown."""

from __future__ import annotations

import fnmatch
import functools
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, List, Sequence, Tuple

if TYPE_CHECKING:
    from .trial import Trial

PARTS = ("jax", "image", "cycle", "kills", "facts", "park", "one-fails", "ways", "gates", "bad")


@dataclass(frozen=True)
class Test:
    """seconds: its budget; past it the test is stopped, and what it had recorded is kept. framework: "" or what has to
    be importable; simulated workloads can stand in for it."""

    name: str
    body: Callable[[Trial], None]
    requires: Tuple[str, ...]
    seconds: float
    framework: str

    @property
    def part(self) -> str:
        return self.name.partition("/")[0]

    @property
    def about(self) -> str:
        function = self.body.func if isinstance(self.body, functools.partial) else self.body
        return " ".join((function.__doc__ or "").split())


_TESTS: Dict[str, Test] = {}


def add(
    name: str,
    body: Callable[[Trial], None],
    *,
    requires: Sequence[str] = (),
    seconds: float = 180,
    framework: str = "",
) -> None:
    if name in _TESTS:
        raise ValueError(f"two tests are called {name}")
    _TESTS[name] = Test(name, body, tuple(requires), seconds, framework)


def test(
    name: str, *, requires: Sequence[str] = (), seconds: float = 180, framework: str = ""
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    def register(body: Callable[[Trial], None]) -> Callable[[Trial], None]:
        add(name, body, requires=requires, seconds=seconds, framework=framework)
        return body

    return register


def load() -> List[Test]:
    """In the order in which they are started: what takes long comes first."""
    for name in PARTS:
        importlib.import_module(f"{__package__}.parts.{name.replace('-', '_')}")
    return sorted(_TESTS.values(), key=lambda one: PARTS.index(one.part))


def select(tests: Sequence[Test], patterns: Sequence[str]) -> List[Test]:
    """All without patterns. A pattern is a part, or a shell pattern over names."""
    if not patterns:
        return list(tests)
    return [one for one in tests if any(one.part == text or fnmatch.fnmatchcase(one.name, text) for text in patterns)]
