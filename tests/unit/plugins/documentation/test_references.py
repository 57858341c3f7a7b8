# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each finding names a place to read more, which is there. Read out of the code: no test has to think of a new one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import HAZARDS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.host_findings import HOST_HAZARDS

ROOT = Path(__file__).resolve().parents[4]
SOURCES = sorted((ROOT / "plugins/module_utils").rglob("*.py"))
PAGE = re.compile(r"docs/([a-z-]+\.md)\Z")
#: Of `self.id`, by file.
IDS = {"hazard.py": {one.id for one in HAZARDS}, "concern.py": {one.id for one in HOST_HAZARDS}}


class Source:
    """One file of the collection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text())
        self.constants = {
            target.id: node.value.value
            for node in self.tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def page(self) -> str:
        """That of DOCS, its own or the one that it imports."""
        docs = self.constants.get("DOCS")
        imported = {
            name.name: node.module
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for name in node.names
        }
        for name in ("DOCS", "reference"):
            if docs is None and name in imported:
                docs = Source(_file_of(imported[name])).constants["DOCS"]
        found = PAGE.search(str(docs))
        assert found, f"{self.path}: no page"
        return found.group(1)

    def places(self) -> Iterator[str]:
        """page#anchor, or page, of every finding that is made here."""
        for function in ast.walk(self.tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.keyword) and node.arg == "reference":
                    yield from (self._place(anchor) for anchor in self._anchors(node.value, function))
                elif isinstance(node, ast.Call) and _name(node.func) == "reference" and _is_text(node.args[0]):
                    yield f"hazards.md#{ast.literal_eval(node.args[0])}"

    def _place(self, anchor: str) -> str:
        return f"{self.page()}#{anchor}" if anchor else self.page()

    def _anchors(self, value: ast.expr, function: ast.FunctionDef, unless: str = "") -> set[str]:
        """unless: an argument that takes its place where it is given."""
        if isinstance(value, ast.BoolOp):
            given, otherwise = value.values
            return self._anchors(otherwise, function, _name(given))
        if isinstance(value, ast.Call) and _name(value.func) == "reference":
            return self._values(value.args[0], function)
        if _name(value) == "DOCS":
            return {""}
        assert isinstance(value, ast.JoinedStr) and len(value.values) in (2, 3), f"{self.path}: {ast.unparse(value)}"
        last = value.values[-1]
        if isinstance(last, ast.FormattedValue):
            return self._values(last.value, function, unless)
        return {str(ast.literal_eval(last)).lstrip("#")}

    def _values(self, value: ast.expr, function: ast.FunctionDef, unless: str = "") -> set[str]:
        if ast.unparse(value) == "self.id":
            return IDS[self.path.name]
        name = _name(value)
        if name in self.constants:
            return {str(self.constants[name])}
        return set(self._arguments(function, name, unless))

    def _arguments(self, function: ast.FunctionDef, name: str, unless: str) -> Iterator[str]:
        """What the function is called with under that name, in its own file; a default counts."""
        names = [one.arg for one in function.args.args]
        default = dict(zip(reversed(names), reversed(function.args.defaults), strict=False)).get(name)
        if default is not None:
            yield str(ast.literal_eval(default))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _name(node.func) == function.name:
                given = dict(zip(names, node.args, strict=False))
                given.update({str(one.arg): one.value for one in node.keywords})
                if name in given and unless not in given:
                    yield str(ast.literal_eval(given[name]))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _file_of(module: str) -> Path:
    return (ROOT / module.partition(".checkpoint.")[2].replace(".", "/")).with_suffix(".py")


def anchors(page: str) -> set[str]:
    """Those that are written, and those that a heading has on the hub."""
    text = (ROOT / "docs" / page).read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"></a>', text))


PLACES = sorted({place for path in SOURCES for place in Source(path).places()})


def test_all_of_them_were_found() -> None:
    """One of each way in which a finding is given its place."""
    assert {
        "drain.md",
        "hazards.md#busy",
        "hazards.md#uvm_managed",
        "hazards.md#running_without_gpu",
        "images.md#image_file_size",
        "images.md#lives",
        "preflight.md#criu_too_old",
        "schedulers.md#slurm_step",
        "units.md#unit_active",
        "units.md#unit_hold",
    } <= set(PLACES)


@pytest.mark.parametrize("place", PLACES)
def test_the_place_is_there(place: str) -> None:
    page, _hash, anchor = place.partition("#")
    assert (ROOT / "docs" / page).is_file()
    assert not anchor or anchor in anchors(page)
