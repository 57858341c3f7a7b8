# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""torch_worker.py OUT MIB: PyTorch."""

import importlib
import sys

from protocol import serve

torch = importlib.import_module("torch")

out, mib = sys.argv[1], int(sys.argv[2])
memory = torch.arange(mib * 1024 * 1024 // 8, dtype=torch.int64, device="cuda") * 2654435761
counter = torch.zeros(1, dtype=torch.int64, device="cuda")


def count() -> int:
    counter.add_(1)
    return int(counter.item())


serve(out, count, lambda: int(memory.sum().item()))
