# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A snapshot as a whole, and as plain data."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Iterable, Tuple

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuProcess, GpuSnapshot, NvmlError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_host
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import (
    Mapping,
    ProcessSnapshot,
    ThreadSnapshot,
    read_process,
)

UUID = "GPU-00000000-0000-4000-8000-000000000000"
GPU = GpuSnapshot(
    0, UUID, "NVIDIA H200", 100, 40, 60, False, None, (GpuProcess(7, 30, "compute"), GpuProcess(8, None, "mps"))
)


def snapshot() -> _snapshot.Snapshot:
    own = read_process(os.getpid())
    assert own is not None
    full = replace(
        own,
        threads=(ThreadSnapshot(1, "a", "S"),),
        device_files=("/dev/nvidiactl",),
        device_mappings=(Mapping("/dev/nvidia0", 1, 2),),
        unix_peers=((3, "x"),),
        environment={"WORLD_SIZE": "2"},
    )
    unknown = replace(own, device_files=None, device_mappings=None, unix_peers=None, environment=None)
    return _snapshot.Snapshot(read_host(), (GPU,), (full, unknown))


def test_to_json_and_back() -> None:
    before = snapshot()
    assert _snapshot.from_data(json.loads(json.dumps(_snapshot.to_data(before)))) == before


def test_data_of_another_shape_is_refused() -> None:
    data = _snapshot.to_data(snapshot())
    del data["processes"][0]["uvm_socket"]
    with pytest.raises((KeyError, TypeError)):
        _snapshot.from_data(data)


def test_looking_up() -> None:
    seen = snapshot()
    assert seen.process(os.getpid()) is seen.processes[0] and seen.process(1 << 23) is None
    assert seen.gpu(UUID) is seen.gpus[0] and seen.gpu("GPU-x") is None
    assert seen.device_bytes(7) == {UUID: 30}
    assert seen.device_bytes(8) == {UUID: None}, "listed, but NVML can't tell how much"
    assert seen.device_bytes(9) == {}


def test_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def processes(pids: Iterable[int], everything: bool) -> Tuple[ProcessSnapshot, ...]:
        asked.append((tuple(pids), everything))
        return ()

    monkeypatch.setattr(_snapshot, "read_gpus", lambda: (GPU,))
    monkeypatch.setattr(_snapshot, "list_processes", processes)
    assert _snapshot.read_snapshot([5], everything=True).gpus == (GPU,)
    assert asked == [((5,), True)]


def test_nvmls_error_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Tuple[GpuSnapshot, ...]:
        raise NvmlError("reading the GPUs", "GPU is lost", 15)

    monkeypatch.setattr(_snapshot, "read_gpus", fails)
    with pytest.raises(NvmlError, match="GPU is lost"):
        _snapshot.read_snapshot([])


CUDA = {
    "uvm_socket": True,
    "device_files": ("/dev/nvidia0",),
    "device_mappings": (Mapping("/dev/nvidia-uvm", 1, 2 << 20),),
}


@pytest.mark.parametrize(
    "fields, expected",
    [
        # may_be_cuda, has_devices, looks_suspended
        ({}, (True, True, False)),
        ({"device_files": (), "device_mappings": ()}, (True, False, True)),
        ({"device_files": ("/dev/nvidiactl",), "device_mappings": ()}, (True, False, True)),  # exported memory
        ({"device_files": ("/dev/nvidiactl", "/dev/nvidia0"), "device_mappings": ()}, (True, True, False)),
        (
            {"uvm_socket": False, "device_mappings": (Mapping("/dev/nvidia0", 1, 2),)},
            (False, True, False),
        ),  # forked child
        ({"uvm_socket": False, "device_files": (), "device_mappings": ()}, (False, False, False)),
        ({"uvm_socket": False}, (True, True, False)),  # a driver without that socket
        ({"device_files": None, "device_mappings": None}, (True, None, None)),
        ({"uvm_socket": None, "device_files": None, "device_mappings": None}, (None, None, None)),
        ({"uvm_socket": None, "device_files": (), "device_mappings": ()}, (None, False, None)),
        ({"uvm_socket": False, "device_files": None, "device_mappings": None}, (None, None, False)),
    ],
)
def test_what_a_process_looks_like(fields: "dict[str, object]", expected: "tuple[object, ...]") -> None:
    seen = replace(snapshot().processes[0], **{**CUDA, **fields})  # type: ignore[arg-type]
    assert (seen.may_be_cuda, seen.has_devices, seen.looks_suspended) == expected
