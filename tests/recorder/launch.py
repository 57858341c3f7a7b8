# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts the recorder: `launch.py record ...` or `launch.py kinds ...`. Needs no Ansible, only nvidia-ml-py."""

import importlib
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_importable() -> None:
    """The collection under its full name, and the tests as tests..., straight from the source tree."""
    for name, where in (
        ("ansible_collections", []),
        ("ansible_collections.gpufleet", []),
        ("ansible_collections.gpufleet.checkpoint", [str(ROOT)]),
    ):
        module = types.ModuleType(name)
        module.__path__ = where
        sys.modules[name] = module
    sys.path.insert(0, str(ROOT))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    make_importable()
    if len(sys.argv) < 2 or sys.argv[1] not in ("record", "kinds"):
        sys.exit("usage: launch.py record|kinds ...")
    sys.exit(importlib.import_module(f"tests.recorder.{sys.argv[1]}").main(sys.argv[2:]))
