# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The protocol of gpusim-workload for a framework: OUT counts, OUT.pid, OUT.verify is answered by OUT.sum."""

import os
import time
from typing import Callable, NoReturn


def serve(out: str, count: Callable[[], int], checksum: Callable[[], int]) -> NoReturn:
    """`count` increments a counter on the GPU and returns it; `checksum` is taken over the whole device memory."""
    with open(out + ".pid", "w") as stream:
        stream.write(f"{os.getpid()}\n")
    with open(out, "w") as stream:
        while True:
            stream.seek(0)
            stream.write(f"{count()}\n")
            stream.flush()
            if os.path.exists(out + ".verify"):
                with open(out + ".sum.partial", "w") as answer:
                    answer.write(f"{checksum() & 0xFFFFFFFFFFFFFFFF:x}\n")
                os.rename(out + ".sum.partial", out + ".sum")
                os.unlink(out + ".verify")
            time.sleep(0.02)
