# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""guard.py PROGRAM...: runs it when whoever started this has died without saying that all is well.

Its standard input is a pipe from there: a byte means that all is well, an end of file without one that it was killed.
"""

from __future__ import annotations

import subprocess
import sys


def main() -> int:
    if sys.stdin.buffer.read(1):
        return 0
    return subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
