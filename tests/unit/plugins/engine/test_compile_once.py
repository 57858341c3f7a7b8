# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports from a zip file like Ansible's: every file is compiled once, and modules are what they are without it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Dict

import pytest

PLUGINS = Path(__file__).resolve().parents[4] / "plugins"
PLACE = "ansible_collections/gpufleet/checkpoint/plugins/module_utils"
NAME = PLACE.replace("/", ".")
FILES = {"_one.py": "from . import _two\n", "_two.py": "from ._below import _three\n", "_below/_three.py": "x = 3\n"}
PROGRAM = f"""
import builtins, importlib, json, sys
sys.path.insert(0, sys.argv[1])
compiled, real = [], builtins.compile
def count(source, filename, *rest, **more):
    compiled.append(filename)
    return real(source, filename, *rest, **more)
# zipimport is frozen: it looks up the builtin when it calls it.
builtins.compile = count
once = importlib.import_module("{NAME}._compile_once")
if sys.argv[2] == "once":
    once.install()
    once.install()
del compiled[:]
importlib.import_module("{NAME}._one")
def told(name):
    module = sys.modules["{NAME}." + name]
    spec = module.__spec__
    paths = list(getattr(module, "__path__", []))
    return [module.__file__, spec.origin, spec.name, spec.parent, module.__package__, paths, spec.has_location]
try:
    importlib.import_module("{NAME}._nothing")
    missing = ""
except ModuleNotFoundError as error:
    missing = error.name
finders = sum(type(one).__module__.startswith("ansible_collections") for one in sys.meta_path)
names = ("_one", "_two", "_below", "_below._three")
print(json.dumps(dict(compiled=compiled, told=[told(name) for name in names], missing=missing, finders=finders)))
"""


@pytest.fixture(name="archive")
def archive_of(tmp_path: Path) -> Path:
    path = tmp_path / "payload.zip"
    with zipfile.ZipFile(path, "w") as archive:
        parts = PLACE.split("/")
        for depth in range(1, len(parts) + 1):
            archive.writestr("/".join([*parts[:depth], "__init__.py"]), "")
        archive.writestr(f"{PLACE}/_below/__init__.py", "")
        archive.write(PLUGINS / "module_utils/_compile_once.py", f"{PLACE}/_compile_once.py")
        for name, text in FILES.items():
            archive.writestr(f"{PLACE}/{name}", text)
    return path


def imported(archive: Path, how: str) -> Dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, str(archive), how], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: Dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_file_is_compiled_once(archive: Path) -> None:
    files = [*FILES, "_below/__init__.py"]
    assert sorted(imported(archive, "once")["compiled"]) == sorted(f"{archive}/{PLACE}/{file}" for file in files)


def test_modules_are_what_they_are_without_it(archive: Path) -> None:
    usual, once = imported(archive, "usual"), imported(archive, "once")
    assert once["told"] == usual["told"]
    assert once["missing"] == usual["missing"] == f"{NAME}._nothing"
    assert (usual["finders"], once["finders"]) == (0, 1)
