# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that is fit for everything, and ways to spoil it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import HostSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import Concern
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import (
    BackendFacts,
    CriuFacts,
    DriverFacts,
    HostFacts,
    JournalFacts,
    KernelFacts,
    Moved,
    NvmlFacts,
    PciGpu,
    ProcGpu,
    RightsFacts,
    StoreFacts,
)

GIB = 1 << 30
VERSION = "580.159.04"
UUIDS = ("GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b")
ADDRESSES = ("0000:06:00.0", "0000:07:00.0")


def gpu(index: int, **fields: Any) -> GpuSnapshot:
    known: dict[str, Any] = {
        "index": index,
        "uuid": UUIDS[index],
        "name": "NVIDIA H200",
        "total_bytes": 140 * GIB,
        "used_bytes": 0,
        "free_bytes": 140 * GIB,
        "mig": False,
        "persistence": True,
        "processes": (),
    }
    return GpuSnapshot(**{**known, **fields})


def fit_host() -> HostFacts:
    """x86-64, driver 580.159.04, two GPUs, CRIU 4.1.1, root, a store with room."""
    return HostFacts(
        host=HostSnapshot(
            boot_id="6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11",
            kernel="6.8.0-60-generic",
            machine="x86_64",
            driver_version=VERSION,
            memory_total=512 * GIB,
            memory_available=400 * GIB,
            swap_free=0,
            overcommit_memory=0,
            commit_limit=None,
            committed=None,
            thp="madvise",
            yama_ptrace_scope=1,
            effective_uid=0,
            pid_namespace="4026531836",
        ),
        driver=DriverFacts(
            loaded=True,
            library="/lib/x86_64-linux-gnu/libcuda.so.1",
            library_version=VERSION,
            nouveau=False,
            pci_gpus=tuple(PciGpu(address, "nvidia") for address in ADDRESSES),
            gpus=tuple(
                ProcGpu(address, uuid, "NVIDIA H200", index)
                for index, (address, uuid) in enumerate(zip(ADDRESSES, UUIDS, strict=True))
            ),
        ),
        nvml=NvmlFacts((gpu(0), gpu(1))),
        rights=RightsFacts(uid=0, capabilities=(1 << 41) - 1, initial_user_namespace=True, hidepid=""),
        kernel=KernelFacts(True, "/proc/sys/kernel/ns_last_pid", 2),
        criu=CriuFacts("/usr/sbin/criu", version="4.1.1", check=0, words=("Looks good.",)),
        backend=BackendFacts("libcuda", can_hold=True, can_map=True),
        journal=JournalFacts("/var/lib/gpufleet/checkpoint.db"),
        store=StoreFacts("/images", "/images", "", 900 * GIB, "ext4", False, ""),
        moved=Moved(image=8 * GIB, count=1, seconds={"suspend": 10.0, "dump": 25.0, "migrate": 25.0}, window=600.0),
    )


def spoilt(**fields: Any) -> HostFacts:
    """The fit host with other facts. "driver__loaded" reaches into one of its parts."""
    facts = fit_host()
    for name, value in fields.items():
        part, _separator, field = name.partition("__")
        facts = replace(facts, **{part: replace(getattr(facts, part), **{field: value}) if field else value})
    return facts


def no_gpu_host() -> HostFacts:
    """A virtual machine with nothing: no GPU, no driver, no pynvml, no CRIU."""
    return spoilt(
        host__driver_version="",
        driver=DriverFacts(False, "", "", False, (), ()),
        nvml=NvmlFacts(None, missing=True),
        criu=CriuFacts("", why="no executable criu in /usr/sbin, /usr/bin"),
        backend=BackendFacts(
            "", problem="no way to suspend CUDA processes", evidence="no driver", remedy="Install one"
        ),
    )


def said(concern: Concern) -> str:
    return concern.finding.message()
