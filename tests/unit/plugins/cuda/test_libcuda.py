# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's functions through ctypes: what is passed, what comes back, and what is missing."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import libcuda
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.call import ThreadCall
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.libcuda import Libcuda, Probe
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import text

A, B = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"
Result = Callable[[int, int], int]
_Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


Children = Callable[[], list[psutil.Process]]


class FakeLibrary:
    """Stands for libcuda.so.1. calls: function, PID and the 64 bytes of its arguments (4 for the queries)."""

    def __init__(
        self, results: "dict[str, Result] | None" = None, missing: tuple[str, ...] = (), version: int = 13000
    ) -> None:
        self.calls: list[tuple[str, int, bytes]] = []
        for name in libcuda.FUNCTIONS:
            if name not in missing:
                setattr(self, name, self._function(name, (results or {}).get(name)))
        self.version = version

    def _function(self, name: str, result: "Result | None") -> Any:
        def function(pid: int, pointer: int) -> int:
            size = 4 if name in ("cuCheckpointProcessGetState", "cuCheckpointProcessGetRestoreThreadId") else 64
            self.calls.append((name, pid, ctypes.string_at(pointer, size)))
            return result(pid, pointer) if result else 0

        return _Function(function)

    def cuDriverGetVersion(self, pointer: Any) -> int:
        pointer._obj.value = self.version
        return 0


def put(value: int, code: int = 0) -> Result:
    def result(pid: int, pointer: int) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = value
        return code

    return result


# CUprocessState of cuda.h
STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed", 4: "checkpointing", 5: "restoring"}


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeLibrary], FakeLibrary]:
    def install(library: FakeLibrary) -> FakeLibrary:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
        return library

    return install


Use = Callable[[FakeLibrary], FakeLibrary]


@pytest.mark.parametrize("number,state", sorted(STATES.items()))
def test_states(number: int, state: str, use: Use) -> None:
    library = use(FakeLibrary({"cuCheckpointProcessGetState": put(number)}))
    reply = Libcuda().state(7).wait(30)
    assert reply is not None
    assert (reply.ok, reply.code, reply.state) == (True, 0, state)
    assert [call[:2] for call in library.calls] == [("cuCheckpointProcessGetState", 7)]


def test_a_state_of_a_later_driver_is_not_guessed(use: Use) -> None:
    use(FakeLibrary({"cuCheckpointProcessGetState": put(6)}))
    reply = Libcuda().state(7).wait(30)
    assert reply is not None
    assert (reply.ok, reply.state) == (False, None)
    assert reply.text == "the driver reports the state 6, which is not known here"


def test_a_refused_query_has_no_state(use: Use) -> None:
    use(FakeLibrary({"cuCheckpointProcessGetState": put(2, 3), "cuCheckpointProcessGetRestoreThreadId": put(9, 304)}))
    state, thread = Libcuda().state(7).wait(30), Libcuda().restore_thread(7).wait(30)
    assert state is not None and (state.ok, state.code, state.text, state.state) == (
        False,
        3,
        "initialization error",
        None,
    )
    assert thread is not None and (thread.ok, thread.code, thread.tid) == (False, 304, None)


def test_the_restore_thread(use: Use) -> None:
    use(FakeLibrary({"cuCheckpointProcessGetRestoreThreadId": put(4711)}))
    reply = Libcuda().restore_thread(7).wait(30)
    assert reply is not None and (reply.ok, reply.tid) == (True, 4711)


def test_arguments_are_64_bytes_and_zero_but_for_what_is_named(use: Use) -> None:
    library = use(FakeLibrary())
    backend = Libcuda()
    calls: tuple[Callable[[], ThreadCall], ...] = (
        lambda: backend.lock(7, 0),
        lambda: backend.lock(7, 0x01020304),
        lambda: backend.checkpoint(7),
        lambda: backend.restore(7, ()),
        lambda: backend.unlock(7),
    )
    for call in calls:
        reply = call().wait(30)
        assert reply is not None and (reply.ok, reply.code, reply.text) == (True, 0, "no error")
    zero = bytes(64)
    assert library.calls == [
        ("cuCheckpointProcessLock", 7, zero),
        ("cuCheckpointProcessLock", 7, bytes((4, 3, 2, 1)) + bytes(60)),
        ("cuCheckpointProcessCheckpoint", 7, zero),
        ("cuCheckpointProcessRestore", 7, zero),
        ("cuCheckpointProcessUnlock", 7, zero),
    ]
    sizes = [
        ctypes.sizeof(each) for each in (libcuda.LockArgs, libcuda.RestoreArgs, libcuda.EmptyArgs, libcuda.GpuPair)
    ]
    assert sizes == [64, 64, 64, 32]


def test_a_device_map_is_pairs_of_uuids(use: Use) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def restore(pid: int, pointer: int) -> int:
        arguments = libcuda.RestoreArgs.from_address(pointer)
        seen.extend((bytes(arguments.pairs[i].old), bytes(arguments.pairs[i].new)) for i in range(arguments.count))
        assert bytes(arguments.reserved) == bytes(52)
        return 0

    use(FakeLibrary({"cuCheckpointProcessRestore": restore}))
    reply = Libcuda().restore(7, [(A, B), (B, A)]).wait(30)
    assert reply is not None and reply.ok, reply
    low, high = bytes(range(16)), bytes(range(0xF0, 0x100))
    assert seen == [(low, high), (high, low)]


@pytest.mark.parametrize("code", [1, 2, 3, 304, 401, 600, 801, 999, 12345])
@pytest.mark.parametrize("function,call", [
    ("Lock", lambda backend: backend.lock(7, 500)),
    ("Checkpoint", lambda backend: backend.checkpoint(7)),
    ("Restore", lambda backend: backend.restore(7, ())),
    ("Unlock", lambda backend: backend.unlock(7)),
])  # fmt: skip
def test_refusals_keep_their_number_and_words(code: int, function: str, call: Any, use: Use) -> None:
    use(FakeLibrary({f"cuCheckpointProcess{function}": lambda pid, pointer: code}))
    reply = call(Libcuda()).wait(30)
    assert (reply.ok, reply.code, reply.text) == (False, code, text(code))


def test_a_call_that_hangs_hangs_alone(use: Use) -> None:
    gate = threading.Event()

    def lock(pid: int, pointer: int) -> int:
        gate.wait(30)
        return 0

    use(FakeLibrary({"cuCheckpointProcessLock": lock, "cuCheckpointProcessGetState": put(0)}))
    backend = Libcuda()
    hung = backend.lock(7, 500)
    assert hung.wait(0.1) is None
    other = backend.state(8).wait(30)
    assert other is not None and other.state == "running"
    assert hung.poll() is None
    gate.set()
    reply = hung.wait(30)
    assert reply is not None and reply.ok


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda backend: backend.state(0), "0 is no PID"),
        (lambda backend: backend.checkpoint(-1), "-1 is no PID"),
        (lambda backend: backend.lock(7, -1), "-1 ms is not between 0 and 4294967295"),
        (lambda backend: backend.lock(7, 1 << 32), "4294967296 ms is not between"),
        (lambda backend: backend.restore(7, [("0", B)]), "'0' is no GPU UUID"),
        (lambda backend: backend.restore(7, [("MIG-00010203-0405-0607-0809-0a0b0c0d0e0f", B)]), "is no GPU UUID"),
        (lambda backend: backend.restore(7, [("GPU-12", B)]), "badly formed"),
    ],
)
def test_arguments_that_are_none_never_reach_the_driver(call: Any, words: str, use: Use) -> None:
    library = use(FakeLibrary())
    with pytest.raises(ValueError, match=words):
        call(Libcuda())
    assert not library.calls


def test_a_device_map_where_the_driver_takes_none(use: Use) -> None:
    library = use(FakeLibrary())
    reply = Libcuda(can_map=False).restore(7, [(A, A)]).wait(30)
    assert reply is not None and (reply.ok, reply.code) == (False, None)
    assert reply.text == "this driver takes no device map; drivers from 580 on do"
    assert not library.calls


def test_a_library_that_cannot_be_loaded_is_a_reply() -> None:
    reply = Libcuda("libdoes-not-exist.so.1").checkpoint(7).wait(30)
    assert reply is not None and (reply.ok, reply.code) == (False, None)
    assert reply.text.startswith("OSError: libdoes-not-exist.so.1: cannot open shared object file")


def test_a_function_that_is_missing_is_a_reply() -> None:
    reply = Libcuda("libc.so.6").lock(7, 0).wait(30)
    assert reply is not None and (reply.ok, reply.code) == (False, None)
    assert "undefined symbol: cuCheckpointProcessGetState" in reply.text


# The probe: real libraries where one will do.


def test_probe_of_no_library() -> None:
    assert libcuda.probe("libdoes-not-exist.so.1") == Probe(
        False, "libdoes-not-exist.so.1: cannot open shared object file: No such file or directory"
    )


def test_probe_of_a_library_without_the_functions() -> None:
    assert libcuda.probe("libc.so.6") == Probe(
        False, "libc.so.6 has no cuCheckpointProcess functions, which drivers from 570 on have"
    )


def test_probe_of_a_library_that_lacks_one(use: Use) -> None:
    use(FakeLibrary(missing=("cuCheckpointProcessGetRestoreThreadId",)))
    assert libcuda.probe() == Probe(
        False, "libcuda.so.1 has no cuCheckpointProcessGetRestoreThreadId, which drivers from 570 on have"
    )


def test_probe_loads_nothing_into_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(name: str) -> FakeLibrary:
        loaded.append(os.getpid())
        return FakeLibrary(version=12080)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert libcuda.probe() == Probe(True, "", 12080)
    assert not loaded


def test_probe_of_a_library_that_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(library: str) -> Probe:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    monkeypatch.setattr(libcuda, "_look", die)
    assert libcuda.probe().why == "loading libcuda.so.1 ended the process that tried it, by signal 9"


def test_probe_that_fails_in_another_way(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(library: str) -> Probe:
        raise RuntimeError("odd")

    monkeypatch.setattr(libcuda, "_look", fail)
    assert libcuda.probe().why == "loading libcuda.so.1 ended the process that tried it, without an answer"
    assert capfd.readouterr() == ("", "")


def test_probe_of_a_library_that_hangs(monkeypatch: pytest.MonkeyPatch, new_children: Children) -> None:
    def hang(library: str) -> Probe:
        time.sleep(1000)
        raise AssertionError

    monkeypatch.setattr(libcuda, "_look", hang)
    assert libcuda.probe(seconds=0.2) == Probe(False, "libcuda.so.1 could not be loaded within 0.2 s")
    assert new_children() == []


def test_probe_where_children_are_not_waited_for(use: Use) -> None:
    use(FakeLibrary())
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert libcuda.probe() == Probe(True, "", 13000)
    finally:
        signal.signal(signal.SIGCHLD, before)
