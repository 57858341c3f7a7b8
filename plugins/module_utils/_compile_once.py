# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiles each file of this collection once when Ansible's zip file is imported from.

zipimport compiles a file to tell its name, and again to run it (https://github.com/python/cpython/issues/141276): half
of the time that loading this collection takes. Here a file's name is told by its place in the zip file. To be called
before the other imports of a module; imports from elsewhere are left to Python.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Optional, Sequence
from zipimport import zipimporter

PREFIX = __name__.rpartition(".")[0] + "."


class ZippedFinder:
    """Finds the modules next to this one, and below, in zip files."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if not fullname.startswith(PREFIX):
            return None
        for entry in path or ():
            importer = pkgutil.get_importer(entry)
            if not isinstance(importer, zipimporter):
                return None  # what comes first in the path is not this finder's to find
            try:
                package = importer.is_package(fullname)
            except ImportError:
                continue
            file = os.path.join(entry, fullname.rpartition(".")[2])
            return spec_from_file_location(
                fullname, os.path.join(file, "__init__.py") if package else file + ".py", loader=importer
            )
        return None


def install() -> None:
    """Right before the finder whose work it does. Safe to be called twice."""
    if not any(isinstance(one, ZippedFinder) for one in sys.meta_path):
        place = next((index for index, one in enumerate(sys.meta_path) if one is PathFinder), len(sys.meta_path))
        sys.meta_path.insert(place, ZippedFinder())
