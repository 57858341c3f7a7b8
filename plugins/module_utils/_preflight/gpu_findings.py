# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is the matter with a host's GPUs, and with looking at them. Pure."""

from __future__ import annotations

from typing import List

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import WARNING
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import comma, plural
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import (
    EVERYTHING,
    Concern,
    HostHazard,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.driver_findings import HOST
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import HostFacts

#: nvmlReturn_t of what driver_mismatch tells.
_MISMATCH = 18


class NoGpu(HostHazard):
    id = "no_gpu"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        if facts.gpu_count or (not facts.driver.loaded and facts.driver.pci_gpus):
            return []
        if not facts.driver.loaded:
            evidence = "there is no display device of NVIDIA's on its PCI bus"
        elif facts.nvml.gpus is not None:
            evidence = "the driver is loaded, and NVML lists no GPU"
        else:
            evidence = "the driver is loaded, and /proc/driver/nvidia/gpus lists no GPU"
        return [
            self.concern(
                HOST,
                evidence,
                "Without a GPU there is no CUDA process to suspend",
                "Leave the host out, or look into dmesg for why the driver does not see the GPU",
            )
        ]


class GpuSilent(HostHazard):
    """Counted, not compared by UUID: the kernel module learns a GPU's UUID only when somebody uses it."""

    id = "gpu_silent"
    capabilities = EVERYTHING
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        if facts.nvml.gpus is None or len(facts.driver.gpus) <= len(facts.nvml.gpus):
            return []
        listed = {gpu.uuid for gpu in facts.nvml.gpus}
        silent = [gpu.address for gpu in facts.driver.gpus if gpu.uuid and gpu.uuid not in listed]
        return [
            self.concern(
                HOST,
                f"the kernel module has {plural(len(facts.driver.gpus), 'GPU')}, NVML lists {len(facts.nvml.gpus)}"
                + (f"; not {comma(silent)}" if silent else ""),
                "A GPU that is lost takes its programs with it, and a device map has to name every GPU of the host",
                "Look into dmesg (Xid), reset the GPU or reboot the host",
            )
        ]


class PersistenceOff(HostHazard):
    """Reported: suspending fails with "operation not permitted"."""

    id = "persistence_off"
    capabilities = EVERYTHING
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        off = [str(gpu.index) for gpu in facts.nvml.gpus or () if gpu.persistence is False]
        if not off:
            return []
        return [
            self.concern(
                f"GPU {comma(off, 16)}",
                "persistence mode is off",
                "When its last process is suspended, the driver lets go of the GPU, which makes the restore slower; it "
                'is also reported to refuse then ("operation not permitted")',
                "Start nvidia-persistenced, or nvidia-smi -pm 1",
            )
        ]


class MigOn(HostHazard):
    """About the host; each process on such a GPU has its own finding, `mig`."""

    id = "mig_on"
    capabilities = EVERYTHING
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        split = [str(gpu.index) for gpu in facts.nvml.gpus or () if gpu.mig]
        if not split:
            return []
        return [
            self.concern(
                f"GPU {comma(split, 16)}",
                "MIG is on",
                "The driver can't checkpoint processes on a GPU that is split (reported: a misleading 'out of memory')",
                "Turn MIG off (nvidia-smi -mig 0), or leave its processes out",
            )
        ]


class MpsDaemon(HostHazard):
    """About the host; each client has its own finding, `mps_client`. Measured: case kind/mps."""

    id = "mps_daemon"
    capabilities = EVERYTHING
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        if not facts.mps:
            return []
        return [
            self.concern(
                HOST,
                f"the Multi-Process Service runs: {comma(f'PID {pid} ({name})' for pid, name in facts.mps)}",
                "The driver refuses to lock its clients (801)",
                "Stop it (echo quit | nvidia-cuda-mps-control) before programs are started that are to be suspended",
            )
        ]


class NvmlMissing(HostHazard):
    id = "nvml_missing"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        if not facts.nvml.missing:
            return []
        return [
            self.concern(
                HOST,
                "Python has no module pynvml. Not looked at: how much memory is free on the GPUs and how much each "
                "process holds, persistence mode, MIG, clients of MPS in NVML's list",
                "Without it neither room for a checkpoint nor room for a restore can be compared, and "
                "gpufleet.checkpoint.cuda_checkpoint does not run",
                "Install the Python package nvidia-ml-py for the interpreter that Ansible uses on this host",
            )
        ]


class NvmlSilent(HostHazard):
    id = "nvml_silent"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        nvml = facts.nvml
        if not nvml.words or not facts.driver.loaded or nvml.code == _MISMATCH:
            return []
        return [
            self.concern(
                HOST,
                f"NVML says: {nvml.words}. Not looked at: memory of GPUs and processes, persistence mode, MIG",
                "Without it neither room for a checkpoint nor room for a restore can be compared, and "
                "gpufleet.checkpoint.cuda_checkpoint does not run",
                "Look whether nvidia-smi works; a GPU that is lost is told in dmesg (Xid)",
            )
        ]
