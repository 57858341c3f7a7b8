# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was seen of a host: plain values, no decision. Sizes are bytes, times seconds; "" and None are unknown."""

from __future__ import annotations

from dataclasses import field
from typing import Mapping, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import HostSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass


@dataclass(frozen=True)
class PciGpu:
    """A display device of NVIDIA's on the PCI bus. driver: the kernel module that drives it, "" for none."""

    address: str
    driver: str


@dataclass(frozen=True)
class ProcGpu:
    """A GPU as the kernel module tells of it, without NVML (/proc/driver/nvidia/gpus). minor: of /dev/nvidiaN."""

    address: str
    uuid: str
    name: str
    minor: Optional[int]


@dataclass(frozen=True)
class DriverFacts:
    """loaded: the kernel module is (its version is HostSnapshot.driver_version). library: path of libcuda.so.1 as the
    loader would find it. library_version: by the name of the file that it leads to. nouveau: that module is loaded."""

    loaded: bool
    library: str
    library_version: str
    nouveau: bool
    pci_gpus: Tuple[PciGpu, ...]
    gpus: Tuple[ProcGpu, ...]


@dataclass(frozen=True)
class NvmlFacts:
    """gpus: None where NVML did not answer. missing: the Python package is. words, code: NVML's own refusal."""

    gpus: Optional[Tuple[GpuSnapshot, ...]]
    missing: bool = False
    words: str = ""
    code: Optional[int] = None


@dataclass(frozen=True)
class RightsFacts:
    """capabilities: mask of CapEff. initial_user_namespace: no mapping of user ids. hidepid: of /proc's mount."""

    uid: int
    capabilities: Optional[int]
    initial_user_namespace: bool
    hidepid: str


@dataclass(frozen=True)
class KernelFacts:
    """checkpoint_restore: CONFIG_CHECKPOINT_RESTORE, and by what it was told. io_uring_disabled: the sysctl; None where
    the kernel has none."""

    checkpoint_restore: Optional[bool]
    told_by: str
    io_uring_disabled: Optional[int]


@dataclass(frozen=True)
class PluginFacts:
    """CRIU's own CUDA plugin. hooks: how many it was built for; None where the file does not tell."""

    path: str
    hooks: Optional[int]


@dataclass(frozen=True)
class CriuFacts:
    """path: "" for not found; why: what was looked for, or what kept it from starting. version: "4.1.1".
    check: exit status of `criu check`; None where it was not run. words: what it said."""

    path: str
    why: str = ""
    version: str = ""
    check: Optional[int] = None
    words: Tuple[str, ...] = ()
    plugin: Optional[PluginFacts] = None


@dataclass(frozen=True)
class StoreFacts:
    """Where images are to lie. place: the directory itself, or where it is missing the one above that exists.
    problem: why it can't be one. free: what the caller may use there. kind: of the file system. open_to: a directory on
    the way that others may write."""

    path: str
    place: str
    problem: str
    free: Optional[int]
    kind: str
    read_only: bool
    open_to: str


@dataclass(frozen=True)
class BackendFacts:
    """The way to the driver that the modules would take. problem, evidence, remedy: why there is none."""

    name: str
    can_hold: bool = False
    can_map: bool = False
    problem: str = ""
    evidence: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class JournalFacts:
    """subject "" for a journal that can be read, or is not there yet."""

    path: str
    subject: str = ""
    evidence: str = ""
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Moved:
    """What would be moved. image: bytes on disk of all processes together, at least. unknown: processes of which nobody
    knows how much they hold. count: processes. seconds: by capability, there and back. window: how long they may be
    away; None for not asked."""

    image: int = 0
    unknown: int = 0
    count: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    window: Optional[float] = None


@dataclass(frozen=True)
class HostFacts:
    """Everything that the host's detectors look at. mps: (PID, name) of the multi-process service's own processes."""

    host: HostSnapshot
    driver: DriverFacts
    nvml: NvmlFacts
    rights: RightsFacts
    kernel: KernelFacts
    criu: CriuFacts
    backend: BackendFacts
    journal: JournalFacts
    store: Optional[StoreFacts] = None
    mps: Tuple[Tuple[int, str], ...] = ()
    moved: Moved = field(default_factory=Moved)

    @property
    def gpu_count(self) -> int:
        """By NVML, else by the kernel module."""
        return len(self.driver.gpus if self.nvml.gpus is None else self.nvml.gpus)
