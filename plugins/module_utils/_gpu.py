# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of the host, through NVML and its Python binding `pynvml` (package nvidia-ml-py).

NVML opens `/dev/nvidia*` in the process that calls it and may hang on a GPU that is lost. So it is asked in a child,
with a deadline, and the caller itself never looks like a user of the GPU.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import time
import traceback
from dataclasses import asdict
from typing import Any, Callable, Dict, List, Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

SECONDS = 60.0


@dataclass(frozen=True)
class GpuProcess:
    """A process that NVML lists. pid: as the reader's PID namespace numbers it. used_bytes: None where NVML can't tell.
    kind: "compute", "graphics" or "mps" (a client of the multi-process service)."""

    pid: int
    used_bytes: Optional[int]
    kind: str


@dataclass(frozen=True)
class GpuSnapshot:
    """One GPU. Sizes are bytes. uuid: "GPU-...". persistence: None where NVML can't tell."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    mig: bool
    persistence: Optional[bool]
    processes: Tuple[GpuProcess, ...]


class NvmlMissing(Exception):
    """The Python package is not there. `library`: its name for missing_required_lib(); `trace`: of the import."""

    library = "nvidia-ml-py"

    def __init__(self, trace: str) -> None:
        super().__init__("the Python package nvidia-ml-py (module pynvml) can't be imported")
        self.trace = trace


class NvmlError(Exception):
    """NVML did not answer. `words`: NVML's own; `code`: its nvmlReturn_t, None for none (timeout, died)."""

    def __init__(self, what: str, words: str, code: Optional[int] = None) -> None:
        super().__init__(f"NVML: {what}: {words}")
        self.what = what
        self.words = words
        self.code = code


def from_data(data: List[Dict[str, Any]]) -> Tuple[GpuSnapshot, ...]:
    """The inverse of dataclasses.asdict over the snapshots."""
    return tuple(
        GpuSnapshot(**dict(gpu, processes=tuple(GpuProcess(**one) for one in gpu["processes"]))) for gpu in data
    )


def _optional(nvml: Any, call: Any, *arguments: Any) -> Any:
    """None where the GPU or the driver does not know the question."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return None
        raise


def _processes(nvml: Any, device: Any) -> Tuple[GpuProcess, ...]:
    kinds: Dict[int, GpuProcess] = {}
    for kind, call in (
        ("graphics", nvml.nvmlDeviceGetGraphicsRunningProcesses),
        ("compute", nvml.nvmlDeviceGetComputeRunningProcesses),
        ("mps", nvml.nvmlDeviceGetMPSComputeRunningProcesses),
    ):
        for one in _optional(nvml, call, device) or ():
            pid, used = int(one.pid), one.usedGpuMemory
            kinds[pid] = GpuProcess(pid, None if used is None else int(used), kind)
    return tuple(kinds[pid] for pid in sorted(kinds))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def collect(nvml: Any) -> Tuple[GpuSnapshot, ...]:
    """Asks NVML in this process, which has initialised it. `nvml`: the module pynvml, or what stands for it. Raises its
    NVMLError."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        mig = _optional(nvml, nvml.nvmlDeviceGetMigMode, device)
        persistence = _optional(nvml, nvml.nvmlDeviceGetPersistenceMode, device)
        found.append(
            GpuSnapshot(
                index=index,
                uuid=_text(nvml.nvmlDeviceGetUUID(device)),
                name=_text(nvml.nvmlDeviceGetName(device)),
                total_bytes=int(memory.total),
                used_bytes=int(memory.used),
                free_bytes=int(memory.free),
                mig=bool(mig and mig[0]),
                persistence=None if persistence is None else bool(persistence),
                processes=_processes(nvml, device),
            )
        )
    return tuple(found)


def _guarded(nvml: Any, ask: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    try:
        return ask()
    except nvml.NVMLError as error:
        return {"words": str(error), "code": int(error.value)}
    except Exception:
        return {"words": traceback.format_exc(), "code": None}


def _child(requests: int, answers: int) -> None:
    """Initialises NVML at once, then answers each byte with a line, until there are no more."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    nvml: Any = None
    refused: Dict[str, Any] = {}
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        refused = {"missing": traceback.format_exc()}

    def initialise() -> Dict[str, Any]:
        nvml.nvmlInit()
        return {}

    refused = refused or _guarded(nvml, initialise)
    while os.read(requests, 1):
        answer = refused or _guarded(nvml, lambda: {"gpus": [asdict(gpu) for gpu in collect(nvml)]})
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(answers, data) :]


def _reap(pid: int, seconds: float) -> None:
    """A child inside the kernel may not end at once; then it is left to init."""
    end, pause = time.monotonic() + seconds, 0.0002
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


class GpuReader:
    """Asks NVML as often as wanted, in a child of its own: NVML starts threads, keeps files open and may hang, none of
    which may happen to its caller. The child imports the binding and initialises NVML while the caller does something
    else.
    """

    def __init__(self) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._buffer = b""
        self._asked = False
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._requests)
                os.close(self._answers)
                # Whoever reads what the caller prints must not wait for this child.
                null = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(null, number)
                _child(requests, answers)
            finally:
                os._exit(0)
        os.close(requests)
        os.close(answers)

    def __enter__(self) -> GpuReader:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """The child ends. Safe to be called twice."""
        if self._pid:
            os.close(self._requests)
            os.close(self._answers)
            os.kill(self._pid, signal.SIGKILL)
            _reap(self._pid, 1)
            self._pid = 0

    def ask(self) -> None:
        """From now on NVML looks; `read` waits for what it sees. Raises NvmlError."""
        try:
            os.write(self._requests, b"?")
        except OSError:
            self.close()
            raise NvmlError("reading the GPUs", "the process that asked it died") from None
        self._asked = True

    def read(self, seconds: float = SECONDS) -> Tuple[GpuSnapshot, ...]:
        """Every GPU of the host as it is now, or was when `ask` was called before, in NVML's order. seconds: how long
        NVML may take.

        Raises NvmlMissing without the Python package; NvmlError when NVML is not there, refuses, or is silent too long.
        """
        if not self._asked:
            self.ask()
        self._asked = False
        answer = json.loads(self._line(time.monotonic() + seconds, seconds).decode())
        if "missing" in answer:
            raise NvmlMissing(answer["missing"])
        if "gpus" not in answer:
            raise NvmlError("reading the GPUs", answer["words"], answer["code"])
        return from_data(answer["gpus"])

    def _line(self, end: float, seconds: float) -> bytes:
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                return line
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                self.close()
                raise NvmlError("reading the GPUs", f"no answer within {seconds:g} s")
            piece = os.read(self._answers, 65536)
            if not piece:
                self.close()
                raise NvmlError("reading the GPUs", "the process that asked it died")
            self._buffer += piece


def read_gpus(seconds: float = SECONDS) -> Tuple[GpuSnapshot, ...]:
    """`GpuReader.read` once. Raises NvmlMissing, NvmlError."""
    with GpuReader() as reader:
        return reader.read(seconds)
