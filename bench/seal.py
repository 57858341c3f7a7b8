# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long an image takes to be sealed and verified: see README.md beside this file."""

import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def _package(name: str, *paths: Path) -> None:
    module = ModuleType(name)
    module.__path__ = [str(path) for path in paths]
    sys.modules[name] = module


if __name__ == "__main__":
    # The collection under the name by which it is imported, in a bare checkout: without build/tree and without Ansible.
    _package("ansible_collections")
    _package("ansible_collections.gpufleet")
    _package("ansible_collections.gpufleet.checkpoint", ROOT)
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))

    from gputest.bench_seal import main

    sys.exit(main())
