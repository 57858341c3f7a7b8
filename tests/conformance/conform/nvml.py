# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs and their memory through NVML, read in a child so that the reader itself holds no device."""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional

from .child import ask

MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    total: int
    used: int
    free: int
    pids: Dict[int, int]


@dataclass(frozen=True)
class Reading:
    driver: str
    cuda: str
    gpus: List[Gpu]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def _ok(result: int, what: str) -> None:
    if result != 0:
        raise RuntimeError(f"NVML: {what} gave {result}")


def _processes(lib: Any, device: Any) -> Dict[int, int]:
    for count in (64, 1024):
        number = ctypes.c_uint(count)
        table = (_Process * count)()
        result = lib.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(number), table)
        if result == 7:  # NVML_ERROR_INSUFFICIENT_SIZE
            continue
        _ok(result, "nvmlDeviceGetComputeRunningProcesses_v3")
        return {int(table[i].pid): int(table[i].used) for i in range(number.value)}
    raise RuntimeError("NVML: more than 1024 processes on one GPU")


def _read(path: str) -> Dict[str, Any]:
    lib = ctypes.CDLL(path)
    _ok(lib.nvmlInit_v2(), "nvmlInit_v2")
    try:
        text = ctypes.create_string_buffer(96)
        _ok(lib.nvmlSystemGetDriverVersion(text, 96), "nvmlSystemGetDriverVersion")
        driver = text.value.decode()
        version = ctypes.c_int(0)
        _ok(lib.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)), "nvmlSystemGetCudaDriverVersion_v2")
        count = ctypes.c_uint(0)
        _ok(lib.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount_v2")
        gpus = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            _ok(lib.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)), "nvmlDeviceGetHandleByIndex_v2")
            _ok(lib.nvmlDeviceGetUUID(device, text, 96), "nvmlDeviceGetUUID")
            uuid = text.value.decode()
            _ok(lib.nvmlDeviceGetName(device, text, 96), "nvmlDeviceGetName")
            memory = _Memory()
            _ok(lib.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)), "nvmlDeviceGetMemoryInfo")
            gpus.append(
                {
                    "index": index,
                    "uuid": uuid,
                    "name": text.value.decode(),
                    "total": memory.total,
                    "used": memory.used,
                    "free": memory.free,
                    "pids": {str(pid): used for pid, used in _processes(lib, device).items()},
                }
            )
        return {"driver": driver, "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}", "gpus": gpus}
    finally:
        lib.nvmlShutdown()


def read(path: str = "libnvidia-ml.so.1", seconds: float = 30) -> Optional[Reading]:
    """None when NVML gave no answer in time or is not there."""
    try:
        data = ask(lambda: _read(path), seconds)
    except RuntimeError:
        return None
    if data is None:
        return None
    gpus = [Gpu(**{**gpu, "pids": {int(pid): used for pid, used in gpu["pids"].items()}}) for gpu in data["gpus"]]
    return Reading(data["driver"], data["cuda"], gpus)


def as_data(reading: Optional[Reading]) -> Optional[Dict[str, Any]]:
    return None if reading is None else asdict(reading)
