# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of cases. A case is a function over a context; its requirements say where it can be shown."""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Sequence, Tuple

if TYPE_CHECKING:
    from .context import Context

BOTH = ("libcuda", "cli")


@dataclass(frozen=True)
class Case:
    """`exclusive`: looks at, or fills, a GPU's whole memory, so nothing else may run beside it.
    `slow`: mostly waits, so it is started early. `real_only`: why a simulated host cannot show it, or ""."""

    name: str
    body: Callable[[Context], None]
    order: int
    requires: Tuple[str, ...]
    backends: Tuple[str, ...]
    exclusive: bool
    seconds: float
    real_only: str
    slow: bool

    @property
    def gpus(self) -> int:
        return max([1, *(int(one[6:]) for one in self.requires if one.startswith("gpus>="))])


_CASES: Dict[str, Case] = {}


def case(
    name: str,
    *,
    requires: Sequence[str] = (),
    backends: Sequence[str] = BOTH,
    exclusive: bool = False,
    seconds: float = 120,
    real_only: str = "",
    slow: bool = False,
) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    def register(body: Callable[[Context], None]) -> Callable[[Context], None]:
        if name in _CASES:
            raise ValueError(f"two cases are called {name}")
        _CASES[name] = Case(
            name, body, len(_CASES), tuple(requires), tuple(backends), exclusive, seconds, real_only, slow
        )
        return body

    return register


def load() -> List[Case]:
    """All cases, quick and fundamental ones first."""
    package = importlib.import_module(".cases", __package__)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    for name in names:
        importlib.import_module(f".cases.{name}", __package__)
    return sorted(_CASES.values(), key=lambda one: one.order)


SANITY = "state/table"


def scope(cases: Sequence[Case], gpus: int) -> List[Case]:
    """A host with several GPUs shows what needs several, and one case to be sure that it is sane."""
    if gpus < 2:
        return list(cases)
    return [one for one in cases if one.gpus > 1 or one.name == SANITY]


def select(cases: Sequence[Case], globs: Sequence[str]) -> List[Case]:
    if not globs:
        return list(cases)
    return [one for one in cases if any(fnmatch.fnmatchcase(one.name, glob) for glob in globs)]


def source_hash() -> str:
    """Over the source of the cases and of what observes: a recording made by other source is said to be."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
