# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""cupy_worker.py OUT MIB: CuPy."""

import importlib
import sys

from protocol import serve

cupy = importlib.import_module("cupy")

out, mib = sys.argv[1], int(sys.argv[2])
memory = cupy.arange(mib * 1024 * 1024 // 8, dtype=cupy.int64) * 2654435761
counter = cupy.zeros(1, dtype=cupy.int64)


def count() -> int:
    counter[0] += 1
    return int(counter[0])


serve(out, count, lambda: int(memory.sum()))
