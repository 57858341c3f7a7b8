# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test fleet: real hosts on this machine. `fleet --help` says the rest."""

import sys

if sys.version_info < (3, 10):
    sys.exit(f"fleet: needs Python 3.10 or newer, this is {sys.version.split()[0]} ({sys.executable})")

from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpufleet_testfleet.cli import main

sys.exit(main(sys.argv[1:]))
