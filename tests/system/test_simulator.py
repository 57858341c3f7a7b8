# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated driver on real hosts: what each version offers, and that its processes go through a real CRIU."""

from collections.abc import Iterator

import pytest

from tests.system.hosts import Host, host


@pytest.fixture(scope="module")
def h1() -> Iterator[Host]:
    with host("--gpus", "2", "--vram", "2048") as one:
        yield one


def dump(h1: Host, pid: str, images: str, rc: int = 0) -> str:
    h1.sh(f"mkdir -p {images} /root/no-plugins")
    return h1.sh(f"criu dump -t {pid} -D {images} --shell-job --libdir /root/no-plugins -o dump.log; rc=$?; "
                 f"grep Error {images}/dump.log; exit $rc", rc=rc)  # fmt: skip


def test_criu_refuses_before_and_takes_after_a_suspend(h1: Host) -> None:
    pid = h1.start("job", "--vram", "128")
    before = h1.checksum("job")
    assert "Can't dump file" in dump(h1, pid, "running", rc=1)
    assert h1.state(pid) == "running" and h1.counts("job")

    h1.act("lock", pid)
    h1.act("checkpoint", pid)
    counted = h1.counter("job")
    dump(h1, pid, "suspended")
    h1.sh(f"while [ -e /proc/{pid} ]; do sleep 0.05; done")
    assert "No running processes" in h1.run("nvidia-smi")
    h1.run(
        "criu", "restore", "-D", "suspended", "--shell-job", "--libdir", "/root/no-plugins", "-d", "-o", "restore.log"
    )
    assert h1.state(pid) == "checkpointed" and h1.counter("job") == counted and not h1.counts("job")
    h1.act("restore", pid)
    assert h1.state(pid) == "locked"
    h1.act("unlock", pid)
    assert h1.counts("job") and h1.counter("job") > counted
    assert h1.checksum("job") == before
    h1.run("kill", pid)


def test_polling_workload_dies_of_a_plain_suspend(h1: Host) -> None:
    job = "gpusim-workload --vram 32 --kind polling --out poll; echo $? >poll.rc"
    h1.sh(f"setsid -f sh -c '{job}' </dev/null >poll.log 2>&1")
    pid = h1.sh("until [ -s poll ]; do sleep 0.05; done; cat poll.pid")
    h1.act("lock", pid)
    assert h1.sh("sleep 1; ls poll.rc 2>/dev/null || echo alive") == "alive"
    # the process may die before or after the answer: either status is right, its end is asserted below
    h1.sh(f"cuda-checkpoint --action checkpoint --pid {pid} 2>/dev/null || true")
    assert h1.sh("until [ -s poll.rc ]; do sleep 0.05; done; cat poll.rc") == "139"  # 128 + SIGSEGV


def test_vram_is_accounted(h1: Host) -> None:
    used = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 1".split()
    assert int(h1.run(*used)) == 0
    pid = h1.start("big", "--vram", "1500", "--gpu", "1")
    assert int(h1.run(*used)) >= 1500
    assert pid in h1.run("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader", "-i", "1")
    refused = h1.run("gpusim-workload", "--vram", "600", "--gpu", "1", "--out", "more", rc=3)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in refused
    h1.act("lock", pid)
    h1.act("checkpoint", pid)
    assert int(h1.run(*used)) == 0
    other = h1.start("other", "--vram", "600", "--gpu", "1")
    h1.act("restore", pid, rc=1)
    assert h1.state(pid) == "checkpointed"
    h1.run("kill", other, pid)
    h1.sh(f"while [ -e /proc/{pid} ] || [ -e /proc/{other} ]; do sleep 0.05; done")
    assert int(h1.run(*used)) == 0


# What `cuda-checkpoint --help` offers, whether libcuda has the checkpoint functions, and its CUDA version.
TOGGLE = {"--toggle", "--pid", "--help"}
ACTION = TOGGLE | {"--action", "--get-state", "--get-restore-tid", "--timeout"}
VERSIONS: list[tuple[str, set[str] | None, bool, int]] = [
    ("535", None, False, 12020),
    ("550", TOGGLE, False, 12040),
    ("555", ACTION, False, 12050),
    ("570", ACTION, True, 12080),
    ("580", ACTION | {"--device-map"}, True, 13000),
    ("590", ACTION | {"--device-map", "--launch-job"}, True, 13010),
]

PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
version = ctypes.c_int()
cuda.cuDriverGetVersion(ctypes.byref(version))
print(version.value, hasattr(cuda, "cuCheckpointProcessLock"))
"""


@pytest.mark.parametrize(("driver", "options", "functions", "cuda"), VERSIONS, ids=[v[0] for v in VERSIONS])
def test_driver_version(driver: str, options: set[str] | None, functions: bool, cuda: int) -> None:
    with host("--gpus", "1", "--vram", "1024", "--driver", driver) as h1:
        version = h1.run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        assert version.startswith(f"{driver}.")
        assert version in h1.run("cat", "/proc/driver/nvidia/version")
        assert h1.run("python3", "-c", PROBE) == f"{cuda} {functions}"
        pid = h1.start("job", "--vram", "64")
        if options is None:
            h1.run("cuda-checkpoint", "--toggle", "--pid", pid, rc=1)
            assert h1.counts("job")
            return
        help_text = h1.run("cuda-checkpoint", "--help")
        assert {word.split("|")[0].strip("[],") for word in help_text.split() if word.startswith("--")} == options
        before = h1.checksum("job")
        h1.run("cuda-checkpoint", "--toggle", "--pid", pid)
        assert "No running processes" in h1.run("nvidia-smi") and not h1.counts("job")
        h1.run("cuda-checkpoint", "--toggle", "--pid", pid)
        assert h1.counts("job") and h1.checksum("job") == before
        h1.run("cuda-checkpoint", "--get-state", "--pid", pid, rc=0 if "--get-state" in options else 1)
