# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's own functions, through ctypes: driver 570 and later.

None of them needs cuInit, a context or GPU memory in the caller. The library is loaded by `prepare` or the first call.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time
import uuid
from dataclasses import asdict
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.call import ThreadCall, not_made
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import STATES, Reply, text
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._record import dataclass

LIBRARY = "libcuda.so.1"
PROBE_SECONDS = 30.0
# cuDriverGetVersion from which the restore arguments hold GPU pairs; before that these bytes had to be zero.
FIRST_WITH_PAIRS = 13000

_STATE = "cuCheckpointProcessGetState"
_TID = "cuCheckpointProcessGetRestoreThreadId"
_LOCK = "cuCheckpointProcessLock"
_CHECKPOINT = "cuCheckpointProcessCheckpoint"
_RESTORE = "cuCheckpointProcessRestore"
_UNLOCK = "cuCheckpointProcessUnlock"
FUNCTIONS = (_STATE, _TID, _LOCK, _CHECKPOINT, _RESTORE, _UNLOCK)


# Every argument structure is 64 bytes, all zero but for what is named (CUDA 13.0, cuda.h); anything else gives 1.
class LockArgs(ctypes.Structure):
    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_ubyte * 60)]


class GpuPair(ctypes.Structure):
    _fields_ = [("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16)]


class RestoreArgs(ctypes.Structure):
    _fields_ = [("pairs", ctypes.POINTER(GpuPair)), ("count", ctypes.c_uint), ("reserved", ctypes.c_ubyte * 52)]


class EmptyArgs(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


def uuid_bytes(name: str) -> bytes:
    """The 16 bytes of "GPU-...". Raises ValueError for anything else."""
    if not name.startswith("GPU-"):
        raise ValueError(f"{name!r} is no GPU UUID: it does not start with GPU-")
    return uuid.UUID(name[4:]).bytes


@dataclass(frozen=True)
class Probe:
    """Whether the library can be used. why: what is missing. version: of cuDriverGetVersion, 13000 for CUDA 13.0."""

    usable: bool
    why: str
    version: int = 0


def _look(library: str) -> Probe:
    try:
        loaded = ctypes.CDLL(library)
    except OSError as error:
        return Probe(False, str(error))
    missing = [name for name in FUNCTIONS if not hasattr(loaded, name)]
    if missing:
        names = ", ".join(missing) if len(missing) < len(FUNCTIONS) else "cuCheckpointProcess functions"
        return Probe(False, f"{library} has no {names}, which drivers from 570 on have")
    version = ctypes.c_int(0)
    try:
        loaded.cuDriverGetVersion(ctypes.byref(version))
    except AttributeError:
        pass
    return Probe(True, "", version.value)


def probe(library: str = LIBRARY, seconds: float = PROBE_SECONDS) -> Probe:
    """Loads the library in a child and looks for its functions: the caller itself stays without it.

    Makes no driver call on any process. Raises nothing: what goes wrong is the answer.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            os.write(writer, json.dumps(asdict(_look(library))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        if not select.select([reader], [], [], seconds)[0]:
            _end(child)
            return Probe(False, f"{library} could not be loaded within {seconds:g} s")
        answer = os.read(reader, 65536)
    finally:
        os.close(reader)
    status = _status(child)
    if not answer:
        how = f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "without an answer"
        return Probe(False, f"loading {library} ended the process that tried it, {how}")
    return Probe(**json.loads(answer))


def _status(child: int) -> int:
    try:
        return os.waitpid(child, 0)[1]
    except ChildProcessError:  # where SIGCHLD is ignored
        return 0


def _end(child: int) -> None:
    """Of a child that loads a library, and has called nothing. One that the kernel does not let go is left."""
    os.kill(child, signal.SIGKILL)
    for _attempt in range(100):
        try:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.01)


class Libcuda:
    """can_map: restore takes a device map."""

    name = "libcuda"
    can_lock = True
    can_hold = True

    def __init__(self, library: str = LIBRARY, can_map: bool = True) -> None:
        self.library = library
        self.can_map = can_map
        self._functions: Dict[str, Callable[..., int]] = {}

    def prepare(self) -> None:
        """Loads the library, which starts no thread as long as cuInit is not called; forked workers have it, too."""
        self._function(_STATE)

    def _function(self, name: str) -> Callable[..., int]:
        if not self._functions:
            loaded = ctypes.CDLL(self.library)
            functions: Dict[str, Callable[..., int]] = {}
            for each in FUNCTIONS:
                function = getattr(loaded, each)
                function.restype = ctypes.c_int
                function.argtypes = [ctypes.c_int, ctypes.c_void_p]
                functions[each] = function
            self._functions = functions
        return self._functions[name]

    def _start(self, function: str, pid: int, argument: Any, read: Optional[Callable[[], Reply]] = None) -> ThreadCall:
        _check_pid(pid)

        def work() -> Reply:
            code = int(self._function(function)(pid, ctypes.addressof(argument)))
            if code == 0 and read is not None:
                return read()
            return Reply(ok=code == 0, code=code, text=text(code), seconds=0.0)

        return ThreadCall(work, f"{function} {pid}")

    def state(self, pid: int) -> ThreadCall:
        value = ctypes.c_int(-1)

        def read() -> Reply:
            if value.value not in STATES:
                return Reply(False, None, f"the driver reports the state {value.value}, which is not known here", 0.0)
            return Reply(True, 0, text(0), 0.0, state=STATES[value.value])

        return self._start(_STATE, pid, value, read)

    def restore_thread(self, pid: int) -> ThreadCall:
        value = ctypes.c_int(-1)

        def read() -> Reply:
            return Reply(True, 0, text(0), 0.0, tid=value.value)

        return self._start(_TID, pid, value, read)

    def lock(self, pid: int, timeout_ms: int) -> ThreadCall:
        """timeout_ms: 0 waits for ever."""
        if not 0 <= timeout_ms < 1 << 32:
            raise ValueError(f"timeout of a lock: {timeout_ms} ms is not between 0 and {(1 << 32) - 1}")
        return self._start(_LOCK, pid, LockArgs(timeout_ms=timeout_ms))

    def checkpoint(self, pid: int) -> ThreadCall:
        return self._start(_CHECKPOINT, pid, EmptyArgs())

    def restore(self, pid: int, device_map: Sequence[Tuple[str, str]]) -> ThreadCall:
        """device_map: GPU UUIDs, old and new, every GPU of the host; empty for a plain restore."""
        if device_map and not self.can_map:
            return ThreadCall(lambda: not_made("this driver takes no device map; drivers from 580 on do"), "no map")
        return self._start(_RESTORE, pid, _restore_args(device_map))

    def unlock(self, pid: int) -> ThreadCall:
        return self._start(_UNLOCK, pid, EmptyArgs())


def _check_pid(pid: int) -> None:
    if pid <= 0:
        raise ValueError(f"{pid} is no PID")


def _restore_args(device_map: Sequence[Tuple[str, str]]) -> RestoreArgs:
    arguments = RestoreArgs()
    if device_map:
        table: List[GpuPair] = []
        for old, new in device_map:
            pair = GpuPair()
            pair.old[:] = uuid_bytes(old)
            pair.new[:] = uuid_bytes(new)
            table.append(pair)
        # The structure keeps the array alive; a count without pairs ends the caller (measured).
        arguments.pairs = (GpuPair * len(table))(*table)
        arguments.count = len(table)
    return arguments
