# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of NVIDIA's driver without NVML: its kernel module, its library, the GPUs and what drives them."""

from __future__ import annotations

import os
import re
from typing import List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import _files
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import DriverFacts, PciGpu, ProcGpu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines, natural

LIBRARY = "libcuda.so.1"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class of VGA, 3D and other display controllers
_CACHED = re.compile(rb"(/[^\0]*/libcuda\.so\.1)\0")
_VERSIONED = re.compile(r"^libcuda\.so\.(\d+(?:\.\d+)+)$")
_DIRECTORIES = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
_ELF64 = b"\x7fELF\x02"


def parse_information(address: str, text: str) -> ProcGpu:
    """/proc/driver/nvidia/gpus/ADDRESS/information."""
    values = {}
    for line in kernel_lines(text):
        name, separator, value = line.partition(":")
        if separator:
            values[name.strip()] = value.strip()
    minor = values.get("Device Minor", "")
    uuid = values.get("GPU UUID", "")
    # A GPU that does not answer has question marks there.
    return ProcGpu(
        address=address,
        uuid=uuid if "?" not in uuid else "",
        name=values.get("Model", ""),
        minor=natural(minor),
    )


def _proc_gpus(proc: str) -> Tuple[ProcGpu, ...]:
    directory = os.path.join(proc, "driver/nvidia/gpus")
    return tuple(
        parse_information(address, _files.text(os.path.join(directory, address, "information")) or "")
        for address in _files.names(directory)
    )


def _pci_gpus(sys: str) -> Tuple[PciGpu, ...]:
    directory = os.path.join(sys, "bus/pci/devices")
    found = []
    for address in _files.names(directory):
        device = os.path.join(directory, address)
        if (_files.text(os.path.join(device, "vendor")) or "").strip() != _NVIDIA:
            continue
        if (_files.text(os.path.join(device, "class")) or "").startswith(_DISPLAY):
            found.append(PciGpu(address, _files.link(os.path.join(device, "driver"))))
    return tuple(found)


def find_library(cache: str = "/etc/ld.so.cache", directories: Optional[Tuple[str, ...]] = None) -> str:
    """The 64-bit libcuda.so.1 that the loader would take, without loading it; "" for none."""
    candidates: List[str] = []
    for directory in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if os.path.isabs(directory):
            candidates.append(os.path.join(directory, LIBRARY))
    candidates += [found.decode(errors="replace") for found in _CACHED.findall(_files.data(cache) or b"")]
    candidates += [
        os.path.join(directory, LIBRARY) for directory in (_DIRECTORIES if directories is None else directories)
    ]
    return next((path for path in candidates if _files.data(path, len(_ELF64)) == _ELF64), "")


def library_version(path: str) -> str:
    """By the name of the file that it leads to, "" where that tells none."""
    match = _VERSIONED.match(os.path.basename(os.path.realpath(path))) if path else None
    return match.group(1) if match else ""


def read_driver(proc: str = "/proc", sys: str = "/sys") -> DriverFacts:
    """proc, sys: where those file systems are mounted."""
    library = find_library()
    return DriverFacts(
        loaded=os.path.exists(os.path.join(proc, "driver/nvidia/version")),
        library=library,
        library_version=library_version(library),
        nouveau=os.path.isdir(os.path.join(sys, "module/nouveau")),
        pci_gpus=_pci_gpus(sys),
        gpus=_proc_gpus(proc),
    )
