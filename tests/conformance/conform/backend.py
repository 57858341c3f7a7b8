# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two ways to drive a CUDA process. Every call is a process of its own: it may never come back."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
import uuid as uuids
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from .child import Child

STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed", 4: "checkpointing", 5: "restoring"}
STATE_OPS = ("lock", "checkpoint", "restore", "unlock")
FUNCTIONS = {
    "state": "cuCheckpointProcessGetState",
    "tid": "cuCheckpointProcessGetRestoreThreadId",
    "lock": "cuCheckpointProcessLock",
    "checkpoint": "cuCheckpointProcessCheckpoint",
    "restore": "cuCheckpointProcessRestore",
    "unlock": "cuCheckpointProcessUnlock",
}
DeviceMap = Tuple[Tuple[str, str], ...]


@dataclass(frozen=True)
class Request:
    """One call. `args`: zeroed (the default), null (NULL in place of the struct or of the result), reserved (a
    reserved byte set), no_pairs (count 1 without pairs), no_count (pairs with count 0)."""

    op: str
    pid: int
    timeout_ms: Optional[int] = None
    device_map: Optional[DeviceMap] = None
    uid: Optional[int] = None
    args: str = "zeroed"
    env: Optional[Dict[str, str]] = None


@dataclass(frozen=True)
class Reply:
    """`result` is what is recorded, `ok` whether the tool claims success, `value` the state or the thread id."""

    result: Any
    ok: bool
    value: Union[str, int, None] = None
    seconds: float = 0.0


class Pending:
    """A call on its way."""

    def __init__(self, pid: int, wait: Callable[[float], Optional[Reply]], kill: Callable[[], None]) -> None:
        self.pid = pid
        self._wait = wait
        self._kill = kill
        self.reply: Optional[Reply] = None

    def wait(self, seconds: float) -> Optional[Reply]:
        if self.reply is None:
            self.reply = self._wait(seconds)
        return self.reply

    def kill(self) -> None:
        """Cut the call: only for the cases that are about that, and for the end of a case."""
        if self.reply is None:
            self._kill()


class GpuPair(ctypes.Structure):
    _fields_ = [("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16)]


class RestoreArgs(ctypes.Structure):
    _fields_ = [("pairs", ctypes.POINTER(GpuPair)), ("count", ctypes.c_uint), ("reserved", ctypes.c_ubyte * 52)]


class LockArgs(ctypes.Structure):
    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_ubyte * 60)]


class OtherArgs(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


def uuid_bytes(text: str) -> bytes:
    return uuids.UUID(text[4:] if text.startswith("GPU-") else text).bytes


def _pairs(device_map: DeviceMap) -> Any:
    table = (GpuPair * max(1, len(device_map)))()
    for index, (old, new) in enumerate(device_map):
        ctypes.memmove(table[index].old, uuid_bytes(old), 16)
        ctypes.memmove(table[index].new, uuid_bytes(new), 16)
    return table


def _struct(request: Request) -> Any:
    if request.op == "lock":
        lock = LockArgs(timeout_ms=request.timeout_ms or 0)
        if request.args == "reserved":
            lock.reserved[59] = 1
        return lock
    if request.op == "restore":
        restore = RestoreArgs()
        if request.device_map is not None:
            restore.pairs = _pairs(request.device_map)
            restore.count = 0 if request.args == "no_count" else len(request.device_map)
        if request.args == "no_pairs":
            restore.count = 1
        if request.args == "reserved":
            restore.reserved[51] = 1
        return restore
    other = OtherArgs()
    if request.args == "reserved":
        other.reserved[63] = 1
    return other


def libcuda_call(path: str, request: Request) -> List[int]:
    """[result, value]; runs in a child. No cuInit: these functions need none."""
    library = ctypes.CDLL(path)
    function = getattr(library, FUNCTIONS[request.op])
    function.restype = ctypes.c_int
    if request.op in ("state", "tid"):
        function.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
        value = ctypes.c_int(-1)
        result = function(request.pid, None if request.args == "null" else ctypes.byref(value))
        return [int(result), int(value.value)]
    function.argtypes = [ctypes.c_int, ctypes.c_void_p]
    struct = None if request.args == "null" else _struct(request)
    result = function(request.pid, None if struct is None else ctypes.cast(ctypes.byref(struct), ctypes.c_void_p))
    return [int(result), 0]


class Libcuda:
    name = "libcuda"

    def __init__(self, path: str) -> None:
        self.path = path

    def start(self, request: Request) -> Pending:
        child = Child(lambda: libcuda_call(self.path, request), request.uid)

        def wait(seconds: float) -> Optional[Reply]:
            if not child.wait(seconds):
                return None
            took = time.monotonic() - child.started
            if child.died:
                return Reply(f"the caller died: {child.died}", False, None, took)
            result, number = child.value
            value: Union[str, int, None] = None
            if result == 0 and request.op == "state":
                value = STATES.get(number, f"state {number}")
            if result == 0 and request.op == "tid":
                value = number
            return Reply(str(result), result == 0, value, took)

        return Pending(child.pid, wait, child.kill)


class Cli:
    name = "cli"

    def __init__(self, path: str) -> None:
        self.path = path

    def argv(self, request: Request) -> List[str]:
        pid = ["--pid", str(request.pid)]
        if request.op == "state":
            return [self.path, "--get-state", *pid]
        if request.op == "tid":
            return [self.path, "--get-restore-tid", *pid]
        if request.op == "toggle":
            return [self.path, "--toggle", *pid]
        argv = [self.path, "--action", request.op, *pid]
        if request.timeout_ms is not None:
            argv += ["--timeout", str(request.timeout_ms)]
        if request.device_map is not None:
            argv += ["--device-map", ",".join(f"{old}={new}" for old, new in request.device_map)]
        return argv

    def start(self, request: Request) -> Pending:
        return self.start_argv(self.argv(request)[1:], request)

    def start_argv(self, arguments: List[str], request: Optional[Request] = None) -> Pending:
        """`request` only says what the output means."""
        started = time.monotonic()
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        uid = request.uid if request else None
        ids: Dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        process = subprocess.Popen(
            [self.path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "LC_ALL": "C", **((request.env if request else None) or {})},
            start_new_session=True,
            cwd="/",
            **ids,
        )

        def wait(seconds: float) -> Optional[Reply]:
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            out.seek(0)
            err.seek(0)
            text, noise = out.read().decode(errors="replace"), err.read().decode(errors="replace")
            out.close()
            err.close()
            result: Dict[str, Any] = {"rc": code}
            if text.strip():
                result["out"] = text.strip()
            if noise.strip():
                result["err"] = noise.strip()
            value: Union[str, int, None] = None
            if request and code == 0:
                if request.op == "state":
                    value = text.strip()
                elif request.op == "tid" and text.strip().isdigit():
                    value = int(text)
            return Reply(result, code == 0, value, time.monotonic() - started)

        def kill() -> None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            out.close()
            err.close()

        return Pending(process.pid, wait, kill)


Backend = Union[Libcuda, Cli]


def make(name: str, libcuda: str, cli: str) -> Backend:
    if name == "libcuda":
        return Libcuda(libcuda)
    if name == "cli":
        return Cli(cli)
    raise ValueError(f"no backend {name!r}: libcuda or cli")
