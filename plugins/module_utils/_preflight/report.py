# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_preflight returns. Pure, but for user names. Sizes are bytes, times seconds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List, Mapping, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import drivers, estimate
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.capabilities import Capability
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import CAPABILITIES, Concern
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.driver_findings import version_of
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import HostFacts
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import places
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject, user_name


@dataclass(frozen=True)
class Report:
    facts: HostFacts
    subjects: Sequence[Subject]
    concerns: Sequence[Concern]
    capabilities: Sequence[Capability]
    work: estimate.Work


def result(report: Report, full_command: bool) -> Dict[str, Any]:
    return {
        "ready": all(one.ready for one in report.capabilities if one.required),
        "capabilities": {one.name: _capability(one) for one in report.capabilities},
        "findings": [_finding(one) for one in report.concerns],
        "host": _host(report.facts),
        "gpus": _gpus(report.facts),
        "capacity": _capacity(report),
        "estimate": _estimate(report.work),
        "processes": [
            dict(
                _process(report, subject, estimated, load),
                **({"command": list(subject.process.command)} if full_command else {}),
            )
            for subject, estimated, load in zip(report.subjects, report.work.estimates, report.work.each)
        ],
    }


def _capability(one: Capability) -> Dict[str, Any]:
    return {
        "required": one.required,
        "ready": one.ready,
        "blocking": list(one.blocking),
        "warnings": list(one.warnings),
    }


def _finding(concern: Concern) -> Dict[str, Any]:
    return dict(asdict(concern.finding), capabilities=[name for name in CAPABILITIES if name in concern.capabilities])


def _host(facts: HostFacts) -> Dict[str, Any]:
    version = version_of(facts)
    return {
        "architecture": facts.host.machine,
        "kernel": facts.host.kernel,
        "root": facts.rights.uid == 0 and facts.rights.initial_user_namespace,
        "transparent_huge_pages": facts.host.thp or None,
        "driver": {
            "version": facts.host.driver_version or None,
            "library": facts.driver.library or None,
            "library_version": facts.driver.library_version or None,
            "measured": facts.host.driver_version in drivers.MEASURED,
            "features": [one.name for one in drivers.features(version)],
        },
        "backend": facts.backend.name or None,
        "nvml": facts.nvml.gpus is not None,
        "criu": {
            "path": facts.criu.path or None,
            "version": facts.criu.version or None,
            "check": None if facts.criu.check is None else facts.criu.check == 0,
        },
    }


def _gpus(facts: HostFacts) -> List[Dict[str, Any]]:
    """By NVML, else what the kernel module tells of them."""
    if facts.nvml.gpus is not None:
        return [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "total_bytes": gpu.total_bytes,
                "used_bytes": gpu.used_bytes,
                "free_bytes": gpu.free_bytes,
                "mig": gpu.mig,
                "persistence": gpu.persistence,
            }
            for gpu in facts.nvml.gpus
        ]
    unknown = dict.fromkeys(("index", "total_bytes", "used_bytes", "free_bytes", "mig", "persistence"))
    return [dict(unknown, uuid=gpu.uuid or None, name=gpu.name or None) for gpu in facts.driver.gpus]


def _capacity(report: Report) -> Dict[str, Any]:
    """What there is, beside what suspending those that run, and resuming those that are suspended, would take."""
    facts, store = report.facts, report.facts.store
    running = [load for load in report.work.each if not load.suspended]
    needed: Dict[str, int] = {}
    for subject, load in zip(report.subjects, report.work.each):
        for uuid, held in (subject.device_bytes or {}).items() if load.suspended else ():
            needed[uuid] = needed.get(uuid, 0) + held
    return {
        "memory": {
            "needed_bytes": sum(estimate.host_memory(load.device) for load in running if load.device is not None),
            "available_bytes": facts.host.memory_available,
        },
        "disk": {
            "path": None if store is None else store.path,
            "needed_bytes": report.work.image,
            "available_bytes": None if store is None else store.free,
        },
        "gpus": [
            {"uuid": gpu.uuid, "needed_bytes": needed.get(gpu.uuid, 0), "available_bytes": gpu.free_bytes}
            for gpu in facts.nvml.gpus or ()
        ],
        "unknown": report.work.unknown,
    }


def _estimate(work: estimate.Work) -> Dict[str, Any]:
    return {
        "device_bytes": work.device,
        "image_bytes": work.image,
        "unknown": work.unknown,
        "seconds": _rounded(work.seconds),
        "in_turn_seconds": _rounded(work.in_turn),
        "total_seconds": _rounded(estimate.of_capabilities(work.seconds)),
        "rates": {
            phase: {"gib_per_second": round(rate.bytes_per_second / estimate.GIB, 3), "measured_steps": rate.measured}
            for phase, rate in work.rates.items()
        },
    }


def _rounded(seconds: Mapping[str, float]) -> Dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()}


def _process(report: Report, subject: Subject, estimated: estimate.Estimate, load: estimate.Load) -> Dict[str, Any]:
    index = {gpu.uuid: gpu.index for gpu in report.facts.nvml.gpus or ()}
    process = subject.process
    shown: Dict[str, Any] = {
        "pid": subject.pid,
        "identity": asdict(process.identity),
        "executable": process.executable,
        "user": user_name(process.uid),
        "suspended": load.suspended,
        "parked": subject.parked,
        "gpus": [
            {"uuid": uuid, "index": index.get(uuid), "bytes": held}
            for uuid, held in sorted((subject.device_bytes or {}).items())
        ],
        "device_bytes": load.device,
        "image_bytes": estimated.image,
        "seconds": _rounded(estimated.seconds),
        "ready": {
            name: not any(
                one.finding.pid == subject.pid and one.finding.severity == BLOCKING and name in one.capabilities
                for one in report.concerns
            )
            for name in CAPABILITIES
        },
        "findings": list(dict.fromkeys(finding.id for finding in subject.findings)),
        "warnings": list(subject.notes),
    }
    shown["cgroup"], shown["unit"], shown["slurm_job"], shown["container"] = places(process)
    return shown
