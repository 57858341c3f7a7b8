# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVML: what is asked, and what becomes of its errors and silences."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, List, Optional

import psutil
import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _gpu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuProcess, NvmlError, NvmlMissing

Children = Callable[[], list[psutil.Process]]


class Error(Exception):
    def __init__(self, value: int, words: str = "") -> None:
        super().__init__(words)
        self.value = value


class Record:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Nvml:
    """Stands for the module pynvml: two GPUs, the second without most features."""

    NVMLError = Error
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_FUNCTION_NOT_FOUND = 13

    def __init__(self, mps: bool = False) -> None:
        self.calls: List[str] = []
        self.mps = mps

    def nvmlInit(self) -> None:
        self.calls.append("init")

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, _device: int) -> Record:
        return Record(total=100, used=40, free=60)

    def nvmlDeviceGetUUID(self, device: int) -> object:
        return f"GPU-{device}" if device else b"GPU-0"  # older bindings give bytes

    def nvmlDeviceGetName(self, _device: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMigMode(self, device: int) -> List[int]:
        if device:
            raise Error(3)
        return [1, 1]

    def nvmlDeviceGetPersistenceMode(self, device: int) -> int:
        if device:
            raise Error(3)
        return 1

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> List[Record]:
        return [] if device else [Record(pid=7, usedGpuMemory=30), Record(pid=5, usedGpuMemory=None)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: int) -> List[Record]:
        if device:
            raise Error(13)
        return [Record(pid=9, usedGpuMemory=1)]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, device: int) -> List[Record]:
        return [Record(pid=7, usedGpuMemory=30)] if self.mps and not device else []


def test_collect() -> None:
    nvml = Nvml()
    first, second = _gpu.collect(nvml)
    assert (first.uuid, first.total_bytes, first.used_bytes, first.free_bytes) == ("GPU-0", 100, 40, 60)
    assert first.mig is True and first.persistence is True
    assert first.processes == (
        GpuProcess(5, None, "compute"),
        GpuProcess(7, 30, "compute"),
        GpuProcess(9, 1, "graphics"),
    )
    assert (second.index, second.mig, second.persistence, second.processes) == (1, False, None, ())
    assert nvml.calls == [], "that is for whoever asks, once"


def test_a_client_of_mps_is_one() -> None:
    assert GpuProcess(7, 30, "mps") in _gpu.collect(Nvml(mps=True))[0].processes


def install(monkeypatch: pytest.MonkeyPatch, nvml: Optional[object]) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


class Counting(Nvml):
    """Its free memory shrinks, and an error comes and goes."""

    looks = 0

    def nvmlDeviceGetMemoryInfo(self, _device: int) -> Record:
        self.looks += 1
        if self.looks == 3:
            raise Error(15, "GPU is lost")
        return Record(total=100, used=self.calls.count("init"), free=100 - self.looks)


def test_a_reader_initialises_once_and_looks_anew_each_time(
    monkeypatch: pytest.MonkeyPatch, new_children: Children
) -> None:
    install(monkeypatch, Counting())
    with _gpu.GpuReader() as reader:
        assert [gpu.free_bytes for gpu in reader.read()] == [99, 98]
        with pytest.raises(NvmlError, match="GPU is lost"):
            reader.read()
        again = reader.read()
        assert [gpu.free_bytes for gpu in again] == [96, 95]
        assert {gpu.used_bytes for gpu in again} == {1}, "initialised once"
    reader.close()
    assert new_children() == []


def test_read_gpus_asks_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    install(monkeypatch, nvml)
    assert _gpu.read_gpus() == _gpu.collect(Nvml())
    assert nvml.calls == [], "this process itself must not open a GPU"


def test_the_binding_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    with pytest.raises(NvmlMissing) as caught:
        _gpu.read_gpus()
    assert "nvidia-ml-py" in str(caught.value)
    assert (
        caught.value.library == "nvidia-ml-py" and "ImportError" in caught.value.trace
    ) or "ModuleNotFound" in caught.value.trace


def test_nvmls_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    nvml.nvmlInit = lambda: (none for none in ()).throw(Error(9, "Driver Not Loaded"))  # type: ignore
    install(monkeypatch, nvml)
    with pytest.raises(NvmlError) as caught:
        _gpu.read_gpus()
    assert (caught.value.words, caught.value.code) == ("Driver Not Loaded", 9)
    assert str(caught.value) == "NVML: reading the GPUs: Driver Not Loaded"


def test_silence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    nvml.nvmlInit = lambda: time.sleep(60)  # type: ignore
    install(monkeypatch, nvml)
    begun = time.monotonic()
    with pytest.raises(NvmlError, match=r"no answer within 0\.2 s") as caught:
        _gpu.read_gpus(seconds=0.2)
    assert caught.value.code is None and time.monotonic() - begun < 5


def test_death_of_the_child(monkeypatch: pytest.MonkeyPatch, new_children: Children) -> None:
    nvml = Nvml()
    nvml.nvmlInit = lambda: os._exit(9)  # type: ignore
    install(monkeypatch, nvml)
    with pytest.raises(NvmlError, match="the process that asked it died"):
        _gpu.read_gpus()
    assert new_children() == []
