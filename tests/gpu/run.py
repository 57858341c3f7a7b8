# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection against the GPUs of this machine: see README.md beside this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "conformance"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gputest.main import main

if __name__ == "__main__":
    sys.exit(main())
