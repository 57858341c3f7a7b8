# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a reading of a process to comparable evidence. Pure."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Sequence, Union

from .proc import Snapshot, device_names, how_often, uvm_extra

Value = Union[str, bool, Sequence[str]]


def rss_class(rss: int, baseline: int, size: int) -> str:
    """Does the host hold the device memory?"""
    grown = rss - baseline
    if grown >= size:
        return "holds the device memory"
    return "does not" if grown < size // 2 else "holds a part"


def of_process(
    seen: Snapshot,
    baseline: int,
    size: int,
    listed_on: Optional[Sequence[str]],
    counter: Optional[bool],
) -> Dict[str, Value]:
    """`listed_on`: names of the GPUs on which NVML lists it; `counter`: does it move."""
    found: Dict[str, Value] = {"life": seen.life}
    if listed_on is not None:
        found["nvml"] = list(listed_on)
    if seen.life == "alive":
        control = sum(1 for path in seen.descriptors if path == "/dev/nvidiactl")
        extra = uvm_extra(seen.mappings)
        found["run"] = seen.run_class
        found["open"] = device_names(list(seen.descriptors))
        # A simulated nvidiactl can be opened but not mapped.
        found["mapped"] = [name for name in device_names([m.path for m in seen.mappings]) if name != "nvidiactl"]
        found["nvidiactl"] = how_often(control)
        found["uvm_extra"] = how_often(len(extra))
        if extra:
            found["uvm_extra_size"] = "the workload's or more" if sum(extra) >= size else "less than the workload's"
        found["uvmfd"] = any(name.startswith("@cuda-uvmfd-") for name in seen.sockets)
        if size:
            found["rss"] = rss_class(seen.rss_anon, baseline, size)
    if counter is not None:
        found["counter"] = "moves" if counter else "stands"
    return found


def nccl_of(seen: Snapshot) -> Dict[str, Value]:
    return {
        "nccl_socket": any("nccl-socket" in name for name in seen.sockets),
        "nccl_shm": any("/dev/shm/nccl-" in path for path in seen.descriptors)
        or any("/dev/shm/nccl-" in m.path for m in seen.mappings),
    }


def raw(seen: Snapshot) -> Mapping[str, object]:
    """Uncompared, for people: everything that looks like NVIDIA's, and the threads."""
    return {
        "pid": seen.pid,
        "state": seen.state,
        "rss_anon_mib": seen.rss_anon >> 20,
        "threads": list(seen.threads),
        "nvidia_descriptors": [path for path in seen.descriptors if "nvidia" in path or "cuda" in path],
        "other_descriptors": [path for path in seen.descriptors if "nvidia" not in path][:40],
        "nvidia_mappings": [
            f"{m.start:x}-{m.end:x} {m.size} {m.path}"
            for m in seen.mappings
            if "/dev/nvidia" in m.path or "nccl-" in m.path
        ][:60],
        "sockets": list(seen.sockets),
    }
