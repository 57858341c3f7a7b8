# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated NVML and nvidia-smi: compiled here, tried in namespaces of their own, through the binary interface."""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import shutil
import stat
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SIM = Path(__file__).resolve().parents[1] / "sim"
MIB = 1 << 20
UUIDS = ["GPU-00112233-4455-6677-8899-aabbccddeeff", "GPU-10112233-4455-6677-8899-aabbccddeeff"]
HOST = f"""driver=580.159.04
cuda=13000
gpus=2
model=NVIDIA H200
vram_mib=16384
context_mib=64
gpu0_uuid={UUIDS[0]}
gpu0_bus=00000000:00:06.0
gpu1_uuid={UUIDS[1]}
gpu1_bus=00000000:00:0b.0
"""
HOLDER = """
#include "vram.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) { /* GPU MIB [GPU MIB ...] */
    struct vram vram;
    if (open("/dev/nvidia0", O_RDWR) < 0) return 1;
    for (int i = 1; i + 1 < argc; i += 2)
        if (vram_allocate(atoi(argv[i]), strtoull(argv[i + 1], NULL, 10) << 20, &vram)) return 1;
    printf("%d\\n", (int)getpid());
    fflush(stdout);
    return getchar() != EOF;
}
"""
SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 1, 2, 3, 6, 7
DRIVER_NOT_LOADED, VERSION_MISMATCH = 9, 25
NO_INSTANCE = 0xFFFFFFFF


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]


class ProcessV1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]


class Process(ctypes.Structure):
    _fields_ = [*ProcessV1._fields_, ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


class Pci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "pci_device", "pci_subsystem")),
        ("bus_id", ctypes.c_char * 32),
    ]


def guarded(layout: Any, call: Callable[[Any], int]) -> tuple[int, Any, bool]:
    """The result, what was written, and whether not a byte was written behind it."""
    room = ctypes.sizeof(layout)
    buffer = ctypes.create_string_buffer(b"\xa5" * (room + 64), room + 64)
    ctypes.memset(buffer, 0, room)
    result = call(buffer)
    return result, layout.from_buffer_copy(buffer), buffer.raw[room:] == b"\xa5" * 64


def text(call: Callable[..., int], room: int = 96) -> tuple[int, str]:
    buffer = ctypes.create_string_buffer(room)
    return call(buffer, room), buffer.value.decode()


def number(call: Callable[..., int]) -> tuple[int, int]:
    value = ctypes.c_uint(77)
    return call(ctypes.byref(value)), value.value


def device(nvml: Any, index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == SUCCESS
    return handle


def listed(nvml: Any, function: str, index: int, room: int, layout: Any = Process) -> tuple[int, int, list[list[int]]]:
    """The result, the count, and the processes as lists of their fields."""
    count, table = ctypes.c_uint(room), (layout * (room + 1))()
    result = getattr(nvml, function)(device(nvml, index), ctypes.byref(count), table if room else None)
    rows = [[int(getattr(entry, field[0])) for field in layout._fields_] for entry in table[: count.value]]
    return result, count.value, rows if result == SUCCESS else []


class Namespace:
    """A host of its own: processes and /run that nobody else sees. It ends with this object, or with pytest."""

    def __init__(self, built: Path, host: str | None) -> None:
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "cat"]
        pipe = subprocess.PIPE
        self.built = built
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        try:
            self.process.stdin.write("ready\n")
        except BrokenPipeError:
            pass
        if self.process.stdout.readline() != "ready\n":
            pytest.fail(f"namespaces for a test host: {self.process.stderr.read()}")
        parent = self.process.pid
        self.pid = int(Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8"))
        for directory in ("/run", "/dev"):
            self.run("mount", "-t", "tmpfs", "tmpfs", directory, check=True)
        for node, minor in (("null", 3), ("nvidia0", 5)):
            os.mknod(f"/proc/{self.pid}/root/dev/{node}", stat.S_IFCHR | 0o666, os.makedev(1, minor))
        run = Path(f"/proc/{self.pid}/root/run/gpusim")
        if host:
            memory = Path(f"/proc/{self.pid}/root/dev/gpusim")
            memory.mkdir()
            (memory / ".ledger").touch()
            run.mkdir(parents=True)
            (run / "host").write_text(host, encoding="utf-8")

    def end(self) -> None:
        self.process.communicate()

    def enter(self, *command: str | Path) -> list[str | Path]:
        return ["nsenter", f"--target={self.pid}", "--mount", "--pid", *command]

    def run(self, *command: str | Path, check: bool = False) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.built), "LC_ALL": "C"}
        return subprocess.run(self.enter(*command), capture_output=True, text=True, check=check, env=environment)

    def smi(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.built / "nvidia-smi", *arguments)

    def csv(self, *arguments: str) -> list[str]:
        done = self.smi(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    def hold(self, *what: int, program: str = "holder") -> tuple[subprocess.Popen[str], int]:
        command = self.enter(self.built / program, *map(str, what))
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert holder.stdout
        return holder, int(holder.stdout.readline())

    def ask(self, question: Callable[[Any], Any], initialize: bool = True) -> Any:
        """What the question answers in a process that sees this host and has the library loaded."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                namespace = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY)
                assert ctypes.CDLL(None).setns(namespace, 0) == 0
                nvml = ctypes.CDLL(str(self.built / "libnvidia-ml.so.1"))
                nvml.nvmlErrorString.restype = ctypes.c_char_p
                assert not initialize or nvml.nvmlInit_v2() == SUCCESS
                os.write(writing, pickle.dumps(question(nvml)))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as answers:
            answer = answers.read()
        assert os.waitpid(child, 0)[1] == 0
        return pickle.loads(answer)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0:
        pytest.fail("the simulated NVML is tried in a mount namespace: run this test as root")
    out = tmp_path_factory.mktemp("nvml")
    (out / "holder.c").write_text(HOLDER, encoding="utf-8")
    nvml, smi, gpu = (sorted((SIM / part).glob("*.c")) for part in ("nvml", "tools/smi", "gpu"))
    library = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1", *nvml, *gpu]
    flags = ["-std=gnu17", "-Wall", "-Wextra", "-Werror", f"-I{SIM}/include", f"-I{SIM}/gpu"]
    compilers = [
        subprocess.Popen(["gcc", *flags, "-o", out / name, *arguments, "-ldl", "-lpthread"])
        for name, arguments in (
            ("libnvidia-ml.so.1", library),
            ("nvidia-smi", [SIM / "tools/nvidia-smi.c", *smi]),
            ("holder", [out / "holder.c", *gpu]),
        )
    ]
    assert [compiler.wait() for compiler in compilers] == [0, 0, 0]
    shutil.copy(out / "holder", out / "nvidia-cuda-mps-server")
    return out


@pytest.fixture(scope="module")
def host(built: Path) -> Iterator[Namespace]:
    namespace = Namespace(built, HOST)
    yield namespace
    namespace.end()


@pytest.fixture
def hold(host: Namespace) -> Iterator[Callable[..., int]]:
    holders = []

    def start(*what: int, program: str = "holder") -> int:
        holder, pid = host.hold(*what, program=program)
        holders.append(holder)
        return pid

    yield start
    for holder in holders:
        holder.communicate()


def test_without_a_driver(built: Path) -> None:
    bare = Namespace(built, None)
    try:
        results = bare.ask(lambda n: {n.nvmlInit_v2(), n.nvmlInit(), n.nvmlInitWithFlags(0)}, initialize=False)
        assert results == {DRIVER_NOT_LOADED}
        assert bare.ask(lambda n: n.nvmlErrorString(DRIVER_NOT_LOADED), initialize=False) == b"Driver Not Loaded"
        done = bare.smi("-L")
        assert done.returncode == DRIVER_NOT_LOADED
        assert done.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    finally:
        bare.end()


def test_initialization_is_counted(host: Namespace) -> None:
    def question(nvml: Any) -> list[int]:
        def count() -> int:
            return int(nvml.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint())))

        before = [count(), nvml.nvmlShutdown()]
        twice = [nvml.nvmlInit_v2(), nvml.nvmlInitWithFlags(0), nvml.nvmlShutdown(), count()]
        return [*before, *twice, nvml.nvmlShutdown(), count(), nvml.nvmlShutdown()]

    assert host.ask(question, initialize=False) == [1, 1, 0, 0, 0, 0, 0, 1, 1]


def test_system(host: Namespace) -> None:
    assert host.ask(lambda n: text(n.nvmlSystemGetDriverVersion)) == (SUCCESS, "580.159.04")
    assert host.ask(lambda n: text(n.nvmlSystemGetDriverVersion, 10)) == (INSUFFICIENT_SIZE, "")
    assert host.ask(lambda n: text(n.nvmlSystemGetNVMLVersion)) == (SUCCESS, "13.580.159.04")
    assert host.ask(lambda n: number(n.nvmlSystemGetCudaDriverVersion)) == (SUCCESS, 13000)
    assert host.ask(lambda n: number(n.nvmlSystemGetCudaDriverVersion_v2)) == (SUCCESS, 13000)
    assert host.ask(lambda n: text(lambda to, room: n.nvmlSystemGetProcessName(1, to, room))) == (SUCCESS, "cat")
    assert host.ask(lambda n: text(lambda to, room: n.nvmlSystemGetProcessName(1, to, room), 3)) == (SUCCESS, "ca")
    assert host.ask(lambda n: text(lambda to, room: n.nvmlSystemGetProcessName(99999, to, room)))[0] == NOT_FOUND


def test_handles(host: Namespace) -> None:
    def question(nvml: Any) -> list[Any]:
        def index_by(function: str, what: Any) -> tuple[int, int]:
            handle = ctypes.c_void_p()
            result = getattr(nvml, function)(what, ctypes.byref(handle))
            return (result, -1) if result else number(lambda to: nvml.nvmlDeviceGetIndex(handle, to))

        return [
            number(nvml.nvmlDeviceGetCount_v2),
            index_by("nvmlDeviceGetHandleByIndex_v2", 1),
            index_by("nvmlDeviceGetHandleByIndex_v2", 2),
            index_by("nvmlDeviceGetHandleByUUID", UUIDS[1].encode()),
            index_by("nvmlDeviceGetHandleByUUID", b"GPU-none"),
            index_by("nvmlDeviceGetHandleByPciBusId_v2", b"0000:00:0B.0"),
            index_by("nvmlDeviceGetHandleByPciBusId_v2", b"00:06.0"),
            index_by("nvmlDeviceGetHandleByPciBusId_v2", b"00:07.0"),
            index_by("nvmlDeviceGetHandleByPciBusId_v2", b"elsewhere"),
            nvml.nvmlDeviceGetHandleBySerial(b"1", ctypes.byref(ctypes.c_void_p())),
            number(lambda to: nvml.nvmlDeviceGetIndex(ctypes.c_void_p(4096), to))[0],
        ]

    none = -1
    assert host.ask(question) == [
        (SUCCESS, 2), (SUCCESS, 1), (INVALID_ARGUMENT, none), (SUCCESS, 1), (NOT_FOUND, none), (SUCCESS, 1),
        (SUCCESS, 0), (NOT_FOUND, none), (INVALID_ARGUMENT, none), NOT_SUPPORTED, INVALID_ARGUMENT,
    ]  # fmt: skip


def test_identity(host: Namespace) -> None:
    def question(nvml: Any) -> list[Any]:
        gpu = device(nvml, 1)
        result, pci, kept = guarded(Pci, lambda to: nvml.nvmlDeviceGetPciInfo_v3(gpu, to))
        return [
            text(lambda to, room: nvml.nvmlDeviceGetName(gpu, to, room)),
            text(lambda to, room: nvml.nvmlDeviceGetUUID(gpu, to, room)),
            text(lambda to, room: nvml.nvmlDeviceGetUUID(gpu, to, room), 40)[0],
            number(lambda to: nvml.nvmlDeviceGetMinorNumber(gpu, to)),
            (result, kept, pci.legacy, pci.domain, pci.bus, pci.device, hex(pci.pci_device), pci.bus_id),
        ]

    assert host.ask(question) == [
        (SUCCESS, "NVIDIA H200"),
        (SUCCESS, UUIDS[1]),
        INSUFFICIENT_SIZE,
        (SUCCESS, 1),
        (SUCCESS, True, b"0000:00:0B.0", 0, 0, 11, "0x233510de", b"00000000:00:0B.0"),
    ]


def test_what_is_the_same_on_every_gpu(host: Namespace) -> None:
    def question(nvml: Any) -> list[Any]:
        gpu = device(nvml, 0)
        one = [
            number(lambda to, name=name: getattr(nvml, f"nvmlDeviceGet{name}")(gpu, to))
            for name in ("PersistenceMode", "ComputeMode", "Architecture", "PerformanceState", "PowerUsage", "FanSpeed")
        ]
        pair = (ctypes.c_uint * 2)(7, 7)
        second = ctypes.byref(pair, 4)
        two = [
            (nvml.nvmlDeviceGetMigMode(gpu, pair, second), *pair),
            (nvml.nvmlDeviceGetCudaComputeCapability(gpu, pair, second), *pair),
            (nvml.nvmlDeviceGetUtilizationRates(gpu, pair), *pair),
        ]
        return [one, two, nvml.nvmlDeviceGetTemperature(gpu, 0, pair), nvml.nvmlDeviceSetPersistenceMode(gpu, 0)]

    assert host.ask(question) == [
        [(0, 1), (0, 0), (0, 9), (0, 0), (NOT_SUPPORTED, 77), (NOT_SUPPORTED, 77)],
        [(0, 0, 0), (0, 9, 0), (0, 0, 0)],
        NOT_SUPPORTED,
        NOT_SUPPORTED,
    ]


def test_memory(host: Namespace, hold: Callable[..., int]) -> None:
    hold(1, 1000, 1, 24)

    def question(nvml: Any) -> list[Any]:
        gpu = device(nvml, 1)

        def second(version: int) -> tuple[int, Any, bool]:
            def call(to: Any) -> int:
                MemoryV2.from_buffer(to).version = version
                return int(nvml.nvmlDeviceGetMemoryInfo_v2(gpu, to))

            return guarded(MemoryV2, call)

        first = guarded(Memory, lambda to: nvml.nvmlDeviceGetMemoryInfo(gpu, to))
        good, bad = second(0x02000028), second(0x01000028)
        return [
            (first[0], first[1].total // MIB, first[1].free // MIB, first[1].used // MIB, first[2]),
            (
                good[0],
                hex(good[1].version),
                *(getattr(good[1], name) // MIB for name in ("total", "reserved", "free", "used")),
                good[2],
            ),
            bad[0],
        ]

    assert host.ask(question) == [
        (SUCCESS, 16384, 15360, 1024, True),
        (SUCCESS, "0x2000028", 16384, 0, 15360, 1024, True),
        VERSION_MISMATCH,
    ]


def test_a_process_is_listed_with_all_it_holds_on_that_gpu(host: Namespace, hold: Callable[..., int]) -> None:
    both, one = hold(0, 100, 1, 64, 0, 20), hold(1, 300)
    name = "nvmlDeviceGetComputeRunningProcesses"
    v1 = [[both, 64 * MIB], [one, 300 * MIB]]
    v3 = [[*entry, NO_INSTANCE, NO_INSTANCE] for entry in v1]
    assert host.ask(lambda n: listed(n, name, 1, 8, ProcessV1)) == (SUCCESS, 2, v1)
    assert host.ask(lambda n: listed(n, f"{name}_v2", 1, 2)) == (SUCCESS, 2, v3)
    assert host.ask(lambda n: listed(n, f"{name}_v3", 1, 2)) == (SUCCESS, 2, v3)
    assert host.ask(lambda n: listed(n, f"{name}_v3", 0, 8)[2]) == [[both, 120 * MIB, NO_INSTANCE, NO_INSTANCE]]
    assert host.ask(lambda n: listed(n, f"{name}_v3", 1, 1)) == (INSUFFICIENT_SIZE, 2, [])
    assert host.ask(lambda n: listed(n, f"{name}_v3", 1, 0)) == (INSUFFICIENT_SIZE, 2, [])
    assert host.ask(lambda n: listed(n, "nvmlDeviceGetGraphicsRunningProcesses_v3", 1, 8)) == (SUCCESS, 0, [])


def test_nothing_is_left_of_a_process_that_ended(host: Namespace) -> None:
    holder = host.hold(0, 500)[0]
    query = ("--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0")
    assert host.csv(*query) == ["500"]
    holder.communicate()
    assert host.csv(*query) == ["0"]
    assert host.ask(lambda n: listed(n, "nvmlDeviceGetComputeRunningProcesses_v3", 0, 0)) == (SUCCESS, 0, [])


def test_mps_clients_are_not_claimed_to_be_none(host: Namespace, hold: Callable[..., int]) -> None:
    name = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
    assert host.ask(lambda n: listed(n, name, 0, 8)) == (SUCCESS, 0, [])
    hold(0, 64, program="nvidia-cuda-mps-server")
    assert host.ask(lambda n: listed(n, name, 0, 8)[0]) == NOT_SUPPORTED


def test_smi_lists(host: Namespace) -> None:
    lines = [f"GPU {i}: NVIDIA H200 (UUID: {uuid})" for i, uuid in enumerate(UUIDS)]
    assert host.csv("-L") == lines
    assert host.csv("-L", "-i", UUIDS[1]) == host.csv("-L", "--id=1") == host.csv("-L", "-i", "00:0B.0") == lines[1:]
    assert host.csv("-L", "-i", "1,0") == lines


def test_smi_queries_gpus(host: Namespace, hold: Callable[..., int]) -> None:
    hold(0, 1024)
    fields = "index,gpu_uuid,name,driver_version,persistence_mode,mig.mode.current,compute_mode,pci.bus_id"
    assert host.csv(f"--query-gpu={fields}", "--format=csv") == [
        "index, uuid, name, driver_version, persistence_mode, mig.mode.current, compute_mode, pci.bus_id",
        f"0, {UUIDS[0]}, NVIDIA H200, 580.159.04, Enabled, Disabled, Default, 00000000:00:06.0",
        f"1, {UUIDS[1]}, NVIDIA H200, 580.159.04, Enabled, Disabled, Default, 00000000:00:0B.0",
    ]
    assert host.csv("--query-gpu=memory.total,memory.used,memory.free,power.draw,fan.speed", "--format=csv") == [
        "memory.total [MiB], memory.used [MiB], memory.free [MiB], power.draw [W], fan.speed [%]",
        "16384 MiB, 1024 MiB, 15360 MiB, [N/A], [N/A]",
        "16384 MiB, 0 MiB, 16384 MiB, [N/A], [N/A]",
    ]
    query = "--query-gpu=count,memory.used,utilization.gpu,temperature.gpu,power.draw,compute_cap"
    assert host.csv(query, "--format=csv,nounits", "-i", "0") == [
        "count, memory.used [MiB], utilization.gpu [%], temperature.gpu, power.draw [W], compute_cap",
        "2, 1024, 0, [N/A], [N/A], 9.0",
    ]


def test_smi_queries_processes(host: Namespace, hold: Callable[..., int]) -> None:
    query = "--query-compute-apps=pid,used_memory,name"
    assert host.csv(query, "--format=csv") == ["pid, used_gpu_memory [MiB], process_name"]
    assert host.csv(query, "--format=csv,noheader") == []
    pid = hold(0, 776, 1, 10)
    assert host.csv(query, "--format=csv") == [
        "pid, used_gpu_memory [MiB], process_name",
        f"{pid}, 776 MiB, {host.built}/holder",
        f"{pid}, 10 MiB, {host.built}/holder",
    ]
    both = ("--query-compute-apps=gpu_uuid,used_gpu_memory,gpu_name", "--format=csv,noheader,nounits")
    assert host.csv(*both, "-i", "1") == [f"{UUIDS[1]}, 10, NVIDIA H200"]


TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H200                    On  |   00000000:00:06.0 Off |                  N/A |
| N/A   N/A    P0             N/A /  N/A  |     776MiB /  16384MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A {pid:>15}      C   {name:<36}    776MiB |
+-----------------------------------------------------------------------------------------+
"""
NOBODY = "|  No running processes found                                                             |"


def test_smi_table(host: Namespace, hold: Callable[..., int]) -> None:
    pid = hold(0, 776)
    name = f"...{str(host.built / 'holder')[-29:]}"
    date, shown = host.smi("-i", "0").stdout.split("\n", 1)
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}", date)
    assert shown == TABLE.format(pid=pid, name=name)
    assert NOBODY in host.smi("-i", "1").stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--query-gpu=index,no_such", "--format=csv"], 2, 'Field "no_such" is not a valid field to query.'),
        (["--query-compute-apps=memory.used", "--format=csv"], 2, 'Field "memory.used" is not a valid field to query.'),
        (["-L", "-i", "2"], 6, "No devices were found"),
        (["-L", "-i", "0,GPU-none"], 6, "No devices were found"),
        (["-pm", "1"], 2, "-pm: this option is not simulated"),
        (["-q"], 2, "-q: this option is not simulated"),
        (["-L", "-i"], 2, "-i: the value is missing"),
        (["--query-gpu=index"], 2, "a query needs --format=csv"),
        (["--query-gpu=index", "--format=xml"], 2, '"xml" is not known'),
    ],
)
def test_smi_refuses(host: Namespace, arguments: list[str], status: int, said: str) -> None:
    done = host.smi(*arguments)
    assert done.returncode == status
    assert said in done.stdout + done.stderr
