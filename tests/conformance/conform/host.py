# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host has, and so which cases it can show."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from . import cgroup, criu, nvml
from .child import ask
from .options import Options
from .registry import source_hash


@dataclass(frozen=True)
class Host:
    driver: str
    cuda: str
    gpus: Tuple[Tuple[str, str, int], ...]  # UUID, model, MiB
    criu_version: str
    memory: Optional[cgroup.Controller]
    freezer: Optional[cgroup.Controller]
    lacking: Dict[str, str] = field(default_factory=dict)

    def lacks(self, requirement: str) -> str:
        """ "" when the requirement is met, else the reason."""
        if requirement.startswith("gpus>="):
            wanted = int(requirement[6:])
            have = len(self.gpus)
            return "" if have >= wanted else f"needs {wanted} GPUs, the host has {have}"
        return self.lacking.get(requirement, "")


def _loads(name: str) -> bool:
    def work() -> bool:
        try:
            ctypes.CDLL(name, mode=os.RTLD_LAZY)  # its own libraries may be missing symbols until libcuda is there
        except OSError:
            return False
        return True

    return bool(ask(work, 30))


def _has_checkpoint_functions(path: str) -> bool:
    def work() -> bool:
        return hasattr(ctypes.CDLL(path), "cuCheckpointProcessGetState")

    return bool(ask(work, 30))


def _is_kernel_thread(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


def _python_has(python: str, module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(0 if importlib.util.find_spec({module!r}) else 1)"
    try:
        return subprocess.run([python, "-c", code], stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _can(argv: list[str]) -> bool:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def probe(options: Options, scratch: Path) -> Host:
    reading = nvml.read(options.nvml)
    if reading is None:
        raise RuntimeError(f"NVML ({options.nvml}) does not answer: no GPU to test here")
    lacking: Dict[str, str] = {}
    root = os.geteuid() == 0
    if not root:
        lacking["root"] = "needs root"
    version = criu.version(options.criu) if options.criu else ""
    if not version:
        lacking["criu"] = "needs CRIU"
    memory = cgroup.find("memory", scratch) if root else None
    freezer = cgroup.find("freezer", scratch) if root else None
    if memory is None:
        lacking["memory_cgroup"] = "needs a control group with a memory limit"
    if freezer is None:
        lacking["freezer_cgroup"] = "needs a control group freezer"
    if not _loads(os.environ.get("GPUSIM_NCCL", "libnccl.so.2")):
        lacking["nccl"] = "needs NCCL"
    if shutil.which("nvidia-cuda-mps-control") is None:
        lacking["mps"] = "needs nvidia-cuda-mps-control"
    if shutil.which("nvidia-smi") is None:
        lacking["smi"] = "needs nvidia-smi"
    if not options.cli or shutil.which(options.cli) is None:
        lacking["cli"] = "needs cuda-checkpoint"
    if not _has_checkpoint_functions(options.libcuda):
        lacking["checkpoint_functions"] = "needs a libcuda of driver 570 or newer"
    if Path("/run/gpusim/host").exists():
        lacking["real_gpu"] = "needs a real GPU"
    if not _is_kernel_thread(2):
        lacking["kernel_threads"] = "needs a PID namespace that shows kernel threads"
    if not _can(["unshare", "--pid", "--fork", "true"]):
        lacking["pidns"] = "needs PID namespaces"
    trial = scratch / "tmpfs-trial"
    trial.mkdir(parents=True, exist_ok=True)
    if _can(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(trial)]):
        subprocess.run(["umount", str(trial)], check=False)
    else:
        lacking["mount"] = "needs mount"
    for module, name in (("torch", "PyTorch"), ("jax", "JAX"), ("cupy", "CuPy")):
        if not _python_has(options.python, module):
            lacking[module] = f"needs {name}"
    if not options.allow_sysctl:
        lacking["sysctl"] = "sets vm.overcommit_memory of the whole machine; needs --allow-sysctl"
    gpus = tuple((gpu.uuid, gpu.name, gpu.total >> 20) for gpu in reading.gpus)
    return Host(reading.driver, reading.cuda, gpus, version, memory, freezer, lacking)


def release(host: Host) -> None:
    for controller in (host.memory, host.freezer):
        if controller is not None:
            cgroup.release(controller)


def meta(host: Host, options: Options) -> Dict[str, Any]:
    program = shutil.which(options.workload) or options.workload
    return {
        "driver": host.driver,
        "cuda": host.cuda,
        "gpus": [gpu[1] for gpu in host.gpus],
        "kernel": platform.release(),
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "criu": host.criu_version,
        "recorder": source_hash(),
        "workload": hashlib.sha256(Path(program).read_bytes()).hexdigest()[:16],
        "profile": options.profile,
    }


def to_json(host: Host) -> Dict[str, Any]:
    def controller(one: Optional[cgroup.Controller]) -> Optional[Dict[str, Any]]:
        return None if one is None else {"name": one.name, "version": one.version, "root": str(one.root)}

    return {
        "driver": host.driver,
        "cuda": host.cuda,
        "gpus": [list(gpu) for gpu in host.gpus],
        "criu_version": host.criu_version,
        "memory": controller(host.memory),
        "freezer": controller(host.freezer),
        "lacking": host.lacking,
    }


def from_json(data: Dict[str, Any]) -> Host:
    def controller(one: Optional[Dict[str, Any]]) -> Optional[cgroup.Controller]:
        return None if one is None else cgroup.Controller(one["name"], one["version"], Path(one["root"]))

    return Host(
        data["driver"],
        data["cuda"],
        tuple((gpu[0], gpu[1], gpu[2]) for gpu in data["gpus"]),
        data["criu_version"],
        controller(data["memory"]),
        controller(data["freezer"]),
        data["lacking"],
    )


def limit_gpus(host: Host, count: int) -> Host:
    """For cases that count GPUs only; device maps go on naming every GPU of the host."""
    lacking = dict(host.lacking)
    return Host(host.driver, host.cuda, host.gpus[:count], host.criu_version, host.memory, host.freezer, lacking)
