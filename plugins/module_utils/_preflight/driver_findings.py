# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's driver and its library can't do. Pure."""

from __future__ import annotations

from typing import List

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, WARNING
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import comma
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import drivers
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import (
    EVERYTHING,
    MIGRATE,
    Concern,
    HostHazard,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import DriverFacts, HostFacts

HOST = "this host"
_VERSION_FILE = "/proc/driver/nvidia/version"
_X86 = ("x86_64", "amd64")


def version_of(facts: HostFacts) -> drivers.Version:
    """Of the kernel module; () where none is loaded, or its version is not known."""
    return drivers.parse(facts.host.driver_version) if facts.driver.loaded else ()


def _addresses(driver: DriverFacts, kernel_module: str) -> List[str]:
    return [gpu.address for gpu in driver.pci_gpus if gpu.driver == kernel_module]


class Architecture(HostHazard):
    """Reported: arm64 refuses the checkpoint with 801."""

    id = "architecture"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        if facts.host.machine in _X86:
            return []
        return [
            self.concern(
                HOST,
                f"its architecture is {facts.host.machine or 'unknown'}",
                "NVIDIA's driver checkpoints on x86-64 only; elsewhere it refuses (801)",
                "Use a host with x86-64",
            )
        ]


class DriverMissing(HostHazard):
    id = "driver_missing"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        driver = facts.driver
        if driver.loaded or _runs_nouveau(driver):
            return []
        seen = [f"NVIDIA's kernel module is not loaded ({_VERSION_FILE} is not there)"]
        idle = _addresses(driver, "")
        foreign = [f"{gpu.address} ({gpu.driver})" for gpu in driver.pci_gpus if gpu.driver]
        if idle:
            seen.append(f"no module drives the GPU {comma(idle)}")
        if foreign:
            seen.append(f"another module drives the GPU {comma(foreign)}")
        if driver.library:
            seen.append(f"its library is installed ({driver.library})")
        return [
            self.concern(
                HOST,
                "; ".join(seen),
                "CUDA processes are suspended by the driver",
                "Load it (modprobe nvidia; dmesg says why it fails)"
                if driver.library
                else "Install NVIDIA's driver, 570 or later, with its kernel module",
            )
        ]


def _runs_nouveau(driver: DriverFacts) -> bool:
    return driver.nouveau and (bool(_addresses(driver, "nouveau")) or not driver.pci_gpus)


class Nouveau(HostHazard):
    id = "nouveau"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        driver = facts.driver
        held = _addresses(driver, "nouveau")
        if not _runs_nouveau(driver) or (driver.loaded and not held):
            return []
        return [
            self.concern(
                HOST,
                "the kernel module nouveau is loaded" + (f" and drives the GPU {comma(held)}" if held else ""),
                "While nouveau has a GPU, NVIDIA's driver can't use it, and CUDA can't either",
                "Keep nouveau from being loaded (`blacklist nouveau` in /etc/modprobe.d, then a new initial RAM disk) "
                "and reboot",
                severity=WARNING if driver.loaded else BLOCKING,
            )
        ]


class DriverUnknown(HostHazard):
    id = "driver_unknown"
    capabilities = EVERYTHING
    severity = WARNING

    def detect(self, facts: HostFacts) -> List[Concern]:
        if not facts.driver.loaded or version_of(facts):
            return []
        return [
            self.concern(
                HOST,
                f"the version of the driver can't be read out of {_VERSION_FILE}",
                "What it can do, and whether it is one to be avoided, is not known",
                f"Look at {_VERSION_FILE}; another user may not be let read it",
            )
        ]


class DriverTooOld(HostHazard):
    id = "driver_too_old"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        version = version_of(facts)
        if not version or version >= drivers.OLDEST:
            return []
        return [
            self.concern(
                HOST,
                f"its driver is {facts.host.driver_version}",
                f"Drivers before {drivers.show(drivers.OLDEST)} can't suspend CUDA processes",
                "Install driver 570 or later",
            )
        ]


class DriverDenied(HostHazard):
    id = "driver_denied"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        return [
            self.concern(
                HOST,
                f"its driver is {facts.host.driver_version}, and {drivers.show(one.version)} is on the list of "
                "versions not to be used",
                f"{one.why} ({one.source})",
                "Install another version of the driver",
            )
            for one in drivers.denied(version_of(facts))
        ]


#: NVML_ERROR_LIB_RM_VERSION_MISMATCH
_MISMATCH = 18
#: Where the packages cuda-compat-* put a newer library for an older kernel module.
_COMPATIBLE = "/compat/"


class DriverMismatch(HostHazard):
    """After an upgrade without a reboot: programs that run go on with what they have loaded, new ones fail."""

    id = "driver_mismatch"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        driver, module = facts.driver, facts.host.driver_version
        seen = []
        if driver.loaded and module and driver.library_version and driver.library_version != module:
            seen.append(f"the kernel module is {module}, the library {driver.library} is {driver.library_version}")
        if facts.nvml.code == _MISMATCH:
            seen.append(f"NVML says: {facts.nvml.words}")
        if not seen:
            return []
        if _COMPATIBLE in driver.library and facts.nvml.code != _MISMATCH:
            return [
                self.concern(
                    HOST,
                    "; ".join(seen),
                    "That is how NVIDIA's forward compatibility package works, but suspending with it was never tried",
                    "Use a driver of the library's own version, or try it with a program that may be lost",
                    severity=WARNING,
                )
            ]
        return [
            self.concern(
                HOST,
                "; ".join(seen),
                "Driver calls of the library fail then, also those by which a process is suspended and resumed",
                "Reboot, or unload and load the kernel module while no process uses a GPU",
            )
        ]


class NoBackend(HostHazard):
    """Not said where the driver itself is missing or too old: that is why."""

    id = "no_backend"
    capabilities = EVERYTHING

    def detect(self, facts: HostFacts) -> List[Concern]:
        version = version_of(facts)
        explained = not facts.driver.loaded or (version and version < drivers.OLDEST)
        if facts.backend.name or explained or facts.host.machine not in _X86:
            return []
        return [
            self.concern(
                HOST,
                f"{facts.backend.problem}: {facts.backend.evidence}",
                "The driver's functions are called through its library, from 570 on, or through NVIDIA's tool",
                facts.backend.remedy,
            )
        ]


class Unparked(HostHazard):
    id = "unparked"
    capabilities = EVERYTHING
    option = "unparked"

    def detect(self, facts: HostFacts) -> List[Concern]:
        if not facts.backend.name or facts.backend.can_hold:
            return []
        return [
            self.concern(
                HOST,
                f"its driver is {facts.host.driver_version or 'of an unknown version'}, and its tool knows --toggle "
                "only, so no process can be held or parked",
                drivers.feature(drivers.ACTIONS).without,
                "Install driver 570 or later; consent only where the programs are known to survive",
            )
        ]


class NoDeviceMap(HostHazard):
    id = "no_device_map"
    capabilities = frozenset((MIGRATE,))

    def detect(self, facts: HostFacts) -> List[Concern]:
        version = version_of(facts)
        if not version or version < drivers.OLDEST or not facts.backend.name:
            return []
        if facts.backend.can_map and drivers.has(version, drivers.DEVICE_MAP):
            return []
        return [
            self.concern(
                HOST,
                f"its driver is {facts.host.driver_version}, the backend {facts.backend.name} takes "
                f"{'a' if facts.backend.can_map else 'no'} device map",
                drivers.feature(drivers.DEVICE_MAP).without,
                "Install driver 580 or later, the same on both hosts",
            )
        ]
