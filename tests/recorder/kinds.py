# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts every kind of CUDA process that a hazard is about, one after the other, and records the evidence of each."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import NvmlError, NvmlMissing, read_gpus
from tests.conformance.conform import workload

from . import surroundings
from .bench import Bench, Unfit, limit_data, nccl_is_there
from .recording import save, scrubber, take

NOBODY = 65534
MIB = 1 << 20


@dataclass(frozen=True)
class Kind:
    """about: what is recorded, in a sentence. start: gives the PIDs that it is about. uid: who reads."""

    label: str
    about: str
    start: Callable[[Bench], List[int]]
    gpus: int = 1
    uid: Optional[int] = None


KINDS: Dict[str, Kind] = {}


def kind(label: str, about: str, gpus: int = 1, uid: Optional[int] = None) -> Callable[..., Callable[..., List[int]]]:
    def register(start: Callable[[Bench], List[int]]) -> Callable[[Bench], List[int]]:
        KINDS[label] = Kind(label, about, start, gpus, uid)
        return start

    return register


@kind("plain", "A process with device memory on one GPU.")
def plain(b: Bench) -> List[int]:
    return [b.start().pid]


@kind("plain-suspended", "The same, suspended.")
def plain_suspended(b: Bench) -> List[int]:
    one = b.start()
    b.suspend(one)
    return [one.pid]


@kind("plain-parked", "The same, suspended and stopped.")
def plain_parked(b: Bench) -> List[int]:
    one = b.start()
    b.suspend(one)
    b.stop(one)
    return [one.pid]


@kind("second-gpu", "A process on the second GPU of the host.", gpus=2)
def second_gpu(b: Bench) -> List[int]:
    return [b.start(gpu=1).pid]


@kind("multi-gpu", "A process that works on two GPUs.", gpus=2)
def multi_gpu(b: Bench) -> List[int]:
    return [b.start("multi_gpu").pid]


@kind("pinned", "A process with pinned host memory.")
def pinned(b: Bench) -> List[int]:
    return [b.start("pinned").pid]


@kind("vmm", "Device memory through virtual memory management, not exported.")
def vmm(b: Bench) -> List[int]:
    return [b.start("vmm").pid]


@kind("vmm-export", "Device memory exported to a file descriptor.")
def vmm_export(b: Bench) -> List[int]:
    return [b.start("vmm_export").pid]


@kind("vmm-export-suspended", "The same, suspended: the exported memory stays.")
def vmm_export_suspended(b: Bench) -> List[int]:
    one = b.start("vmm_export")
    b.suspend(one)
    return [one.pid]


@kind("managed", "Managed memory.")
def managed(b: Bench) -> List[int]:
    return [b.start("managed").pid]


@kind("managed-small", "Managed memory of 1 MiB, less than CUDA's own mapping.")
def managed_small(b: Bench) -> List[int]:
    return [b.start("managed", mib=1).pid]


@kind("ipc", "Exporter and importer of CUDA IPC memory.")
def ipc(b: Bench) -> List[int]:
    one = b.start("ipc")
    return [one.pid, b.part(one, ".importer").pid]


@kind("ipc-exported", "A process that has exported CUDA IPC memory which nobody imported.")
def ipc_exported(b: Bench) -> List[int]:
    return [b.start("ipc_export").pid]


@kind("nccl-one-rank", "An NCCL communicator of one rank.")
def nccl_one_rank(b: Bench) -> List[int]:
    nccl_is_there()
    return [b.start("nccl", options=["--ranks", "1"]).pid]


@kind("nccl-two-ranks", "An NCCL communicator of two ranks on two GPUs.", gpus=2)
def nccl_two_ranks(b: Bench) -> List[int]:
    nccl_is_there()
    one = b.start("nccl", options=["--ranks", "2"])
    return [one.pid, b.part(one, ".rank1").pid]


@kind("mps", "A client of the multi-process service.")
def mps(b: Bench) -> List[int]:
    return [b.mps().pid]


@kind("mps-beside", "A process that is no client, beside the multi-process service.")
def mps_beside(b: Bench) -> List[int]:
    b.mps()
    return [b.start(name="beside").pid]


@kind("fork", "A process and its forked child, which inherited the devices.")
def fork(b: Bench) -> List[int]:
    one = b.start("fork")
    return [one.pid, b.part(one, ".child", device=False).pid]


@kind("two-processes", "Two processes of one parent that share nothing.")
def two_processes(b: Bench) -> List[int]:
    return [b.start(name="a").pid, b.start(name="b").pid]


@kind("stopped", "Stopped by a SIGSTOP.")
def stopped(b: Bench) -> List[int]:
    one = b.start()
    b.stop(one)
    return [one.pid]


@kind("frozen", "In a frozen control group.")
def frozen(b: Bench) -> List[int]:
    group = b.group("freezer")
    one = b.start(group=group)
    b.freeze(group)
    return [one.pid]


@kind("traced", "Under ptrace, running.")
def traced(b: Bench) -> List[int]:
    one = b.start()
    b.trace(one)
    return [one.pid]


@kind("cgroup-small", "In a control group whose memory limit is below the device memory.")
def cgroup_small(b: Bench) -> List[int]:
    group = b.group("memory")
    one = b.start(mib=2048, group=group)
    group.limit(1536 * MIB)
    return [one.pid]


@kind("cgroup-roomy", "In a control group with room for the device memory.")
def cgroup_roomy(b: Bench) -> List[int]:
    group = b.group("memory")
    one = b.start(group=group)
    group.limit(8192 * MIB)
    return [one.pid]


@kind("cgroup-shared", "Two processes of which each fits into the limit of their control group, but not both.")
def cgroup_shared(b: Bench) -> List[int]:
    group = b.group("memory")
    both = [b.start(name=name, mib=1024, group=group).pid for name in ("a", "b")]
    group.limit(2048 * MIB)
    return both


@kind("rlimit-data", "RLIMIT_DATA is below the device memory.")
def rlimit_data(b: Bench) -> List[int]:
    one = b.start(mib=1024)
    limit_data(one.pid, 768 * MIB)
    return [one.pid]


@kind("vram-short", "Suspended, and its GPU has since been filled by another process.")
def vram_short(b: Bench) -> List[int]:
    one = b.start(mib=4096)
    b.suspend(one)
    free = read_gpus()[0].free_bytes // MIB
    b.start(name="filler", mib=free - 3072)
    return [one.pid]


@kind("other-owner", "A process of root, read by an ordinary user.", uid=NOBODY)
def other_owner(b: Bench) -> List[int]:
    return [b.start().pid]


@kind("own", "A process of an ordinary user, read by that user.", uid=NOBODY)
def own(b: Bench) -> List[int]:
    b.work.chmod(0o777)
    return [b.start(uid=NOBODY).pid]


@kind("no-cuda", "A process without CUDA.")
def no_cuda(b: Bench) -> List[int]:
    return [b.plain(["sleep", "60"]).pid]


@kind("zombie", "A process that has ended and was not collected.")
def zombie(b: Bench) -> List[int]:
    return [b.plain(["true"], zombie=True).pid]


@kind("torch", "PyTorch.")
def torch(b: Bench) -> List[int]:
    return [b.script("torch_worker.py", module="torch").pid]


@kind("torch-expandable-segments", "PyTorch with its allocator over virtual memory management.")
def torch_expandable_segments(b: Bench) -> List[int]:
    setting = "expandable_segments:True"
    env = {"PYTORCH_ALLOC_CONF": setting, "PYTORCH_CUDA_ALLOC_CONF": setting}
    return [b.script("torch_worker.py", module="torch", env=env).pid]


@kind("torch-suspended", "PyTorch, suspended.")
def torch_suspended(b: Bench) -> List[int]:
    one = b.script("torch_worker.py", module="torch")
    b.suspend(one)
    return [one.pid]


@kind("torch-nccl-one-rank", "PyTorch with an NCCL communicator of one rank.")
def torch_nccl_one_rank(b: Bench) -> List[int]:
    return [b.script("torch_ranks.py", module="torch").pid]


@kind("torch-nccl-two-ranks", "PyTorch with an NCCL communicator of two ranks on two GPUs.", gpus=2)
def torch_nccl_two_ranks(b: Bench) -> List[int]:
    one = b.script("torch_ranks.py", module="torch", env={"RANKS": "2"})
    return [one.pid, b.part(one, ".rank1").pid]


@kind("torch-loader", "PyTorch and the worker of its DataLoader, forked after CUDA had begun.")
def torch_loader(b: Bench) -> List[int]:
    one = b.script("torch_loader.py", module="torch")
    return [one.pid, b.part(one, ".child", device=False).pid]


@kind("jax", "JAX.")
def jax(b: Bench) -> List[int]:
    return [b.script("jax_worker.py", module="jax").pid]


@kind("cupy", "CuPy.")
def cupy(b: Bench) -> List[int]:
    return [b.script("cupy_worker.py", module="cupy").pid]


for name, (about, start) in surroundings.KINDS.items():
    kind(name, about)(start)


def record(one: Kind, bench: Bench, into: Path) -> str:
    """ "" or why it could not be recorded."""
    try:
        with bench:
            pids = one.start(bench)
            data = take(one.about, pids, bench.held, one.uid)
            save(into / f"{one.label}.json", scrubber(bench.work.parent, into)(data))
    except (Unfit, NvmlMissing) as error:
        return f"not here: {error}"
    except (RuntimeError, OSError, NvmlError, workload.NotReady):
        return traceback.format_exc()
    return ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="kinds", description=__doc__)
    parser.add_argument("--into", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--workload", default="gpusim-workload", help="the program of tests/sim/build")
    parser.add_argument("--cli", default="cuda-checkpoint")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has PyTorch, JAX, CuPy")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="of labels; may be repeated")
    parser.add_argument("--ready", type=float, default=90.0, metavar="SECONDS", help="for a workload to start")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(arguments)
    chosen = [one for one in KINDS.values() if not options.only or any(fnmatch(one.label, g) for g in options.only)]
    if options.list:
        print("\n".join(f"{one.label}: {one.about}" for one in chosen))
        return 0
    program = shutil.which(options.workload)
    if program is None:
        parser.error(f"--workload: there is no program {options.workload}")
    gpus = len(read_gpus())
    notes: Dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="gpufleet-recorder-", dir="/var/tmp") as scratch:
        Path(scratch).chmod(0o755)
        # A copy that an ordinary user can execute, too, wherever the original lies.
        copied = Path(scratch) / "gpusim-workload"
        shutil.copy(program, copied)
        copied.chmod(0o755)
        for one in chosen:
            begun = time.monotonic()
            bench = Bench(Path(scratch) / one.label, str(copied), options.cli, options.python, options.ready)
            if gpus < one.gpus:
                notes[one.label] = f"not here: needs {one.gpus} GPUs, the host has {gpus}"
            else:
                notes[one.label] = record(one, bench, options.into)
            print(f"{one.label}: {notes[one.label] or 'recorded'} ({time.monotonic() - begun:.1f} s)", flush=True)
    broken = {label: note for label, note in notes.items() if note and not note.startswith("not here")}
    absent = [f"{label}: {note}\n" for label, note in notes.items() if note]
    (options.into / "missing.txt").write_text("".join(absent))
    return 1 if broken else 0
