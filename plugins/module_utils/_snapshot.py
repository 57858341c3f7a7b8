# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One reading of host, GPUs and processes, and its form as plain data."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import cached_property
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around import Around, from_plain
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import CgroupSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuSnapshot, read_gpus
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import from_data as gpus_from_data
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import HostSnapshot, read_host
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import (
    Identity,
    Mapping,
    ProcessSnapshot,
    ThreadSnapshot,
    list_processes,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._units import Unit


@dataclass(frozen=True)
class Snapshot:
    """processes: by PID; all that has to do with CUDA, and what was named. taken: when, unix seconds, 0 for unknown.

    around: what lies around those that are meant, None where nobody looked; units: the systemd units that they are in.
    """

    host: HostSnapshot
    gpus: Tuple[GpuSnapshot, ...]
    processes: Tuple[ProcessSnapshot, ...]
    taken: float = 0.0
    around: Optional[Tuple[Around, ...]] = None
    units: Tuple[Unit, ...] = ()

    @cached_property
    def _by_pid(self) -> Dict[int, ProcessSnapshot]:
        return {one.pid: one for one in reversed(self.processes)}

    @cached_property
    def _around_by_pid(self) -> Dict[int, Around]:
        return {one.pid: one for one in reversed(self.around or ())}

    def process(self, pid: int) -> Optional[ProcessSnapshot]:
        return self._by_pid.get(pid)

    def gpu(self, uuid: str) -> Optional[GpuSnapshot]:
        return next((one for one in self.gpus if one.uuid == uuid), None)

    def around_of(self, pid: int) -> Optional[Around]:
        """None: nobody looked, or it has ended before."""
        return self._around_by_pid.get(pid)

    def unit(self, name: str) -> Optional[Unit]:
        return next((one for one in self.units if one.name == name), None)

    def device_bytes(self, pid: int) -> Dict[str, Optional[int]]:
        """GPU UUID -> bytes that NVML counts for the process; None where it can't tell. Empty: not listed."""
        return {gpu.uuid: one.used_bytes for gpu in self.gpus for one in gpu.processes if one.pid == pid}


def read_snapshot(
    pids: Iterable[int] = (),
    everything: bool = False,
    gpus: Optional[Callable[[], Tuple[GpuSnapshot, ...]]] = None,
) -> Snapshot:
    """Reads host, GPUs, and in one pass over /proc what has CUDA or is named (`everything`: every process).

    GPUs are read last: a process that NVML lists and /proc does not is new. gpus: reads them, by default `read_gpus`.
    Raises NvmlMissing, NvmlError (`_gpu`).
    """
    host = read_host()
    processes = list_processes(pids, everything)
    return Snapshot(host, (gpus or read_gpus)(), processes, time.time())


def to_data(snapshot: Snapshot) -> Dict[str, Any]:
    """Plain data for JSON."""
    return asdict(snapshot)


def _process_from_data(data: Dict[str, Any]) -> ProcessSnapshot:
    def texts(name: str) -> Any:
        return None if data[name] is None else tuple(data[name])

    values = dict(data)
    for name in (
        "command",
        "pids_in_namespaces",
        "cgroup_paths",
        "device_files",
        "libraries",
        "unix_names",
        "unix_peer_names",
        "tcp_peers",
        "tcp_remote",
        "anon_inodes",
        "shm_files",
        "unreadable",
    ):
        values[name] = texts(name)
    values["identity"] = Identity(**data["identity"])
    values["threads"] = tuple(ThreadSnapshot(**one) for one in data["threads"])
    values["cgroups"] = tuple(
        CgroupSnapshot(**dict(one, unreadable=tuple(one["unreadable"]))) for one in data["cgroups"]
    )
    mappings = data["device_mappings"]
    values["device_mappings"] = None if mappings is None else tuple(Mapping(**one) for one in mappings)
    peers = data["unix_peers"]
    values["unix_peers"] = None if peers is None else tuple((int(pid), str(name)) for pid, name in peers)
    return ProcessSnapshot(**values)


def from_data(data: Dict[str, Any]) -> Snapshot:
    """The inverse of `to_data`, also after JSON. Raises KeyError or TypeError for what is not such data."""
    around = data.get("around")
    return Snapshot(
        HostSnapshot(**dict(data["host"], unreadable=tuple(data["host"]["unreadable"]))),
        gpus_from_data(data["gpus"]),
        tuple(_process_from_data(one) for one in data["processes"]),
        data.get("taken", 0.0),
        None if around is None else tuple(from_plain(Around, one) for one in around),
        tuple(Unit(**dict(one, oomd=tuple(one["oomd"]))) for one in data.get("units", ())),
    )
