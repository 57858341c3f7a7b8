# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""torch_loader.py OUT MIB: PyTorch and the worker of its DataLoader, OUT.child, forked after CUDA had begun."""

import importlib
import os
import sys
from typing import Any, Iterator

from protocol import serve

torch = importlib.import_module("torch")
data = importlib.import_module("torch.utils.data")

out, mib = sys.argv[1], int(sys.argv[2])
memory = torch.arange(mib * 1024 * 1024 // 8, dtype=torch.int64, device="cuda") * 2654435761
counter = torch.zeros(1, dtype=torch.int64, device="cuda")


def begin(_worker: int) -> None:
    with open(f"{out}.child.pid", "w") as stream:
        stream.write(f"{os.getpid()}\n")
    with open(f"{out}.child", "w") as stream:
        stream.write("1\n")


def batches() -> Iterator[Any]:
    loader = data.DataLoader(
        range(1 << 40),
        batch_size=1,
        num_workers=1,
        worker_init_fn=begin,
        multiprocessing_context="fork",
        sampler=iter(range(1 << 40)),
    )
    return iter(loader)


ones = batches()


def count() -> int:
    counter.add_(next(ones).numel())
    return int(counter.item())


serve(out, count, lambda: int(memory.sum().item()))
