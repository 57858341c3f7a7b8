# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""torch_ranks.py OUT MIB: PyTorch with an NCCL communicator of RANKS (environment, default 1), each on its own GPU.

The first starts the others: OUT.rank1, ...
"""

import importlib
import os
import subprocess
import sys

from protocol import serve

torch = importlib.import_module("torch")
distributed = importlib.import_module("torch.distributed")

out, mib = sys.argv[1], int(sys.argv[2])
ranks, rank = int(os.environ.get("RANKS", "1")), int(os.environ.get("RANK", "0"))
meeting = os.environ.get("MEETING", f"{out}.meeting")
if rank == 0:
    for other in range(1, ranks):
        subprocess.Popen(
            [sys.executable, __file__, f"{out}.rank{other}", str(mib)],
            env={**os.environ, "RANK": str(other), "MEETING": meeting},
        )
torch.cuda.set_device(rank)
distributed.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
memory = torch.arange(mib * 1024 * 1024 // 8, dtype=torch.int64, device="cuda") * 2654435761
counter = torch.zeros(1, dtype=torch.int64, device="cuda")
together = torch.zeros(1, dtype=torch.int64, device="cuda")


def count() -> int:
    together.fill_(1)
    distributed.all_reduce(together)
    counter.add_(1)
    return int(counter.item())


serve(out, count, lambda: int(memory.sum().item()))
