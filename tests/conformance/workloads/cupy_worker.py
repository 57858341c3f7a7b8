# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""cupy_worker.py OUT MIB: CuPy, the protocol of gpusim-workload (OUT counts, OUT.verify, OUT.sum, OUT.pid)."""

import importlib
import os
import sys
import time

cupy = importlib.import_module("cupy")

out, mib = sys.argv[1], int(sys.argv[2])
memory = cupy.arange(mib * 1024 * 1024 // 8, dtype=cupy.int64) * 2654435761
counter = cupy.zeros(1, dtype=cupy.int64)
with open(out + ".pid", "w") as stream:
    stream.write(f"{os.getpid()}\n")
stream = open(out, "w")
while True:
    counter += 1
    stream.seek(0)
    stream.write(f"{int(counter[0])}\n")
    stream.flush()
    if os.path.exists(out + ".verify"):
        with open(out + ".sum.partial", "w") as answer:
            answer.write(f"{int(memory.sum()) & 0xFFFFFFFFFFFFFFFF:x}\n")
        os.rename(out + ".sum.partial", out + ".sum")
        os.unlink(out + ".verify")
    time.sleep(0.02)
