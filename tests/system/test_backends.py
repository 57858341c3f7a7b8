# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ways to the driver, with drivers 535 to 580: whole cycles of real processes, and each refusal in its words."""

import base64
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pytest

from tests.system.hosts import ROOT, Host, host

SCRIPT = "/opt/backend.py"
MODULES = "ansible_collections/gpufleet/checkpoint/plugins/module_utils"
MIB = 1 << 20

ILLEGAL = (401, "the operation cannot be performed in the present state")
NO_CUDA = (3, "initialization error")
NO_ACCESS = (304, "OS call failed or operation not supported on this OS")
NOT_READY = (600, "device not ready")
NOT_SUPPORTED = (801, "operation not supported")
NO_MEMORY = (2, "out of memory")
BAD_ARGUMENT = (1, "invalid argument")
UNKNOWN = (999, "unknown error")
OK = (0, "no error")


@dataclass
class Machine:
    """A host with the collection's modules, and the UUIDs of its GPUs."""

    host: Host
    gpus: list[str]

    def told(
        self, wanted: str, *calls: tuple[Any, ...], seconds: float = 60, at_once: bool = False, user: str = ""
    ) -> Any:
        asked = {"wanted": wanted, "calls": calls, "seconds": seconds, "at_once": at_once}
        prefix = ("runuser", "-u", user, "--") if user else ()
        done = self.host.ssh(*prefix, "python3", SCRIPT, stdin=json.dumps(asked))
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def calls(self, wanted: str, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
        told = self.told(wanted, *calls, **options)
        assert told.get("name") == wanted, told
        assert told["devices"] == []  # the caller needs no GPU
        replies: list[Any] = told["replies"]
        return replies

    def used_mib(self, gpu: int) -> int:
        return int(self.host.run(*f"nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i {gpu}".split()))

    def end(self, *pids: int) -> None:
        for pid in pids:
            self.host.sh(f"kill -CONT {pid}; kill -KILL {pid}; while [ -e /proc/{pid} ]; do sleep 0.02; done")


def bundle() -> str:
    """The modules as a base64 text of a tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path in sorted((ROOT / "plugins/module_utils").rglob("*.py")):
            archive.add(path, f"{MODULES}/{path.relative_to(ROOT / 'plugins/module_utils')}")
    return base64.b64encode(out.getvalue()).decode()


def machine(one: Host) -> Machine:
    one.run("sh", "-c", "base64 -d | tar xz -C /opt", stdin=bundle())
    one.put(SCRIPT, Path(__file__).with_name("inside").joinpath("backend.py").read_text(), "755")
    listed = one.ssh("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
    return Machine(one, listed.stdout.split() if listed.returncode == 0 else [])


@pytest.fixture(scope="module")
def machines() -> Iterator[Callable[[str], Machine]]:
    """A host with two GPUs for each driver, when it is first asked for."""
    up: dict[str, Machine] = {}
    with ExitStack() as stack:

        def get(driver: str) -> Machine:
            if driver not in up:
                up[driver] = machine(stack.enter_context(host("--gpus", "2", "--vram", "1024", "--driver", driver)))
            return up[driver]

        yield get


Machines = Callable[[str], Machine]
WAYS = [("555", "cli"), ("570", "cli"), ("570", "libcuda"), ("580", "cli"), ("580", "libcuda")]
every_way = pytest.mark.parametrize(("driver", "backend"), WAYS, ids=[f"{driver}-{way}" for driver, way in WAYS])


def numbers(replies: list[Any]) -> list[Any]:
    """(code, text) of each reply; a success is one with nothing but 0."""
    for reply in replies:
        assert reply["ok"] == (reply["code"] == 0), reply
        assert 0 <= reply["seconds"] < 60
    return [(reply["code"], reply["text"]) for reply in replies]


# What a driver offers


LACKS = "libcuda.so.1 has no cuCheckpointProcess functions, which drivers from 570 on have"
CHOICES: list[tuple[str, str, Optional[str], list[bool], tuple[str, ...]]] = [
    ("550", "auto", "toggle", [False, False, False], ()),
    ("550", "toggle", "toggle", [False, False, False], ()),
    ("550", "cli", None, [], ("the driver is 550.", "not --action, which drivers from 555 on have")),
    ("550", "libcuda", None, [], ("the driver is 550.", LACKS, "`backend: auto`")),
    ("555", "auto", "cli", [True, True, False], ()),
    ("555", "cli", "cli", [True, True, False], ()),
    ("555", "libcuda", None, [], ("the driver is 555.", LACKS)),
    ("555", "toggle", None, [], ("backend toggle is refused", "--action", "turns round when it is repeated")),
    ("570", "auto", "libcuda", [True, True, False], ()),
    ("570", "cli", "cli", [True, True, False], ()),
    ("570", "toggle", None, [], ("backend toggle is refused",)),
    ("580", "auto", "libcuda", [True, True, True], ()),
    ("580", "cli", "cli", [True, True, True], ()),
    ("580", "toggle", None, [], ("backend toggle is refused",)),
]  # fmt: skip


@pytest.mark.parametrize(("driver", "wanted", "name", "can", "words"), CHOICES, ids=[f"{c[0]}-{c[1]}" for c in CHOICES])
def test_what_each_driver_gets(
    driver: str, wanted: str, name: Optional[str], can: list[bool], words: tuple[str, ...], machines: Machines
) -> None:
    told = machines(driver).told(wanted)
    if name is None:
        assert all(word in told["error"] for word in words), told
    else:
        assert (told["name"], told["can"]) == (name, can)
        assert told["after_choice"] == {"threads": 1, "libraries": [], "devices": []}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--driver", "535"), ("the driver is 535.", LACKS, "this driver can't checkpoint", "Use driver 550 or later")),
        (("--gpus", "0"), ("no NVIDIA driver is loaded", "libcuda.so.1: cannot open shared object file")),
    ],
    ids=["driver 535", "no driver"],
)
def test_a_host_that_can_not(options: tuple[str, ...], words: tuple[str, ...]) -> None:
    with host(*options) as one:
        error = machine(one).told("auto")["error"]
        assert error.startswith("no way to suspend CUDA processes: ")
        assert all(word in error for word in words), error


# Whole cycles


@every_way
def test_a_whole_cycle(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("job", "--vram", "128"))
    before, free = m.host.checksum("job"), m.used_mib(0)
    steps = ("state", "restore_thread", ("lock", 2000), "state", "checkpoint", "state", "restore_thread")
    suspend = m.calls(backend, *[(step, pid) if isinstance(step, str) else (step[0], pid, step[1]) for step in steps])
    assert numbers(suspend) == [OK] * 7
    assert [reply["state"] for reply in suspend] == ["running", None, None, "locked", None, "checkpointed", None]
    threads = m.host.run("ls", f"/proc/{pid}/task").split()
    assert suspend[1]["tid"] == suspend[6]["tid"] and str(suspend[1]["tid"]) in threads
    assert m.used_mib(0) < free - 120
    counted = m.host.counter("job")
    assert not m.host.counts("job")
    resume = m.calls(backend, ("restore", pid, []), ("state", pid), ("unlock", pid), ("state", pid))
    assert numbers(resume) == [OK] * 4
    assert [reply["state"] for reply in resume] == [None, "locked", None, "running"]
    assert m.host.counts("job") and m.host.counter("job") > counted
    assert m.host.checksum("job") == before and m.used_mib(0) == free
    m.end(pid)


def test_a_whole_cycle_of_toggles(machines: Machines) -> None:
    m = machines("550")
    pid = int(m.host.start("job", "--vram", "128"))
    before = m.host.checksum("job")
    suspend = m.calls(
        "toggle", ("state", pid), ("checkpoint", pid), ("state", pid), ("checkpoint", pid), ("state", pid)
    )
    assert numbers(suspend)[1:4:2] == [OK, ILLEGAL]
    assert [reply["state"] for reply in suspend] == ["running", None, "checkpointed", None, "checkpointed"]
    assert not m.host.counts("job")
    resume = m.calls("toggle", ("restore", pid, []), ("state", pid), ("restore", pid, []), ("state", pid))
    assert [numbers(resume)[0], numbers(resume)[2]] == [OK, ILLEGAL]
    assert [reply["state"] for reply in resume] == [None, "running", None, "running"]
    assert m.host.counts("job") and m.host.checksum("job") == before
    m.end(pid)


# Refusals


@every_way
def test_401_in_every_other_state(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("job", "--vram", "16"))
    lock, checkpoint, unlock = ("lock", pid, 1000), ("checkpoint", pid), ("unlock", pid)
    restore: tuple[Any, ...] = ("restore", pid, [])
    replies = m.calls(
        backend,
        checkpoint, restore, unlock,
        lock, lock, restore,
        checkpoint, lock, checkpoint, unlock,
        restore, lock, restore,
        unlock, checkpoint, restore, unlock,
    )  # fmt: skip
    x = ILLEGAL
    assert numbers(replies) == [x, x, x, OK, x, x, OK, x, x, x, OK, x, x, OK, x, x, x]
    assert m.host.counts("job")
    m.end(pid)


@every_way
def test_3_and_304_of_what_is_no_cuda_process(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    plain = int(m.host.sh("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"))
    dead = int(m.host.sh("true & echo $!; wait"))
    for pid, expected in ((plain, NO_CUDA), (dead, NO_ACCESS)):
        replies = m.calls(
            backend, ("state", pid), ("lock", pid, 100), ("checkpoint", pid), ("restore", pid, []), ("unlock", pid)
        )
        assert numbers(replies) == [expected] * 5
        (thread,) = m.calls(backend, ("restore_thread", pid))
        assert not thread["ok"] and thread["tid"] is None
        if backend == "cli":
            assert (thread["code"], thread["text"]) == (None, f"Could not find restore thread for process ID {pid}")
        else:
            assert (thread["code"], thread["text"]) == expected
    m.end(plain)


@every_way
def test_304_of_another_owner(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("job", "--vram", "16"))
    replies = m.calls(backend, ("state", pid), ("lock", pid, 100), ("unlock", pid), user="nobody")
    assert numbers(replies) == [NO_ACCESS] * 3
    assert m.calls(backend, ("state", pid))[0]["state"] == "running"
    m.end(pid)


@every_way
def test_600_while_a_kernel_runs(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("long", "--vram", "16", "--kind", "longkernel", "--kernel-ms", "4000"))
    (reply,) = m.calls(backend, ("lock", pid, 300))
    assert numbers([reply]) == [NOT_READY] and reply["seconds"] >= 0.3
    assert m.calls(backend, ("state", pid))[0]["state"] == "running"
    (reply,) = m.calls(backend, ("lock", pid, 0))  # without end: it waits for the kernel
    assert numbers([reply]) == [OK]
    assert numbers(m.calls(backend, ("unlock", pid))) == [OK]
    m.end(pid)


@every_way
def test_801_of_managed_memory_and_999_ever_after(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("managed", "--vram", "16", "--kind", "managed"))
    before = m.host.checksum("managed")
    first = m.calls(backend, ("lock", pid, 1000), ("checkpoint", pid), ("state", pid), ("unlock", pid))
    assert numbers(first) == [OK, NOT_SUPPORTED, OK, OK] and first[2]["state"] == "locked"
    later = m.calls(backend, ("lock", pid, 1000), ("checkpoint", pid), ("unlock", pid), ("state", pid))
    assert numbers(later) == [OK, UNKNOWN, OK, OK] and later[3]["state"] == "running"
    assert m.host.counts("managed") and m.host.checksum("managed") == before
    m.end(pid)


@every_way
def test_801_of_an_mps_client(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("mps", "--vram", "16", "--kind", "mps"))
    try:
        replies = m.calls(backend, ("lock", pid, 1000), ("state", pid))
        assert numbers(replies) == [NOT_SUPPORTED, OK] and replies[1]["state"] == "running"
        assert m.host.counts("mps")
    finally:
        m.end(pid)
        m.host.sh("echo quit | nvidia-cuda-mps-control; while pgrep nvidia-cuda-mps; do sleep 0.02; done")


@every_way
def test_2_without_host_memory(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("job", "--vram", "64"))
    before = m.host.checksum("job")
    held = int(m.host.sh(f"awk '/^VmData/ {{ print $2 }}' /proc/{pid}/status")) * 1024
    m.host.run("prlimit", "--pid", str(pid), f"--data={held + 32 * MIB}:")
    replies = m.calls(backend, ("lock", pid, 1000), ("checkpoint", pid), ("state", pid), ("unlock", pid))
    assert numbers(replies) == [OK, NO_MEMORY, OK, OK] and replies[2]["state"] == "locked"
    assert m.host.counts("job") and m.host.checksum("job") == before
    m.end(pid)


@every_way
def test_2_without_room_on_the_gpu_and_304_ever_after(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("job", "--vram", "512"))
    assert numbers(m.calls(backend, ("lock", pid, 1000), ("checkpoint", pid))) == [OK, OK]
    other = int(m.host.start("other", "--vram", "800"))
    replies = m.calls(backend, ("restore", pid, []), ("state", pid), ("restore", pid, []))
    assert numbers(replies) == [NO_MEMORY, OK, NO_ACCESS] and replies[1]["state"] == "checkpointed"
    m.end(other)
    assert numbers(m.calls(backend, ("restore", pid, []), ("unlock", pid))) == [NO_ACCESS, ILLEGAL]
    m.end(pid)


@pytest.mark.parametrize("backend", ["cli", "libcuda"])
def test_1_for_a_device_map_that_misses_a_gpu(backend: str, machines: Machines) -> None:
    m = machines("580")
    one, two = m.gpus
    pid = int(m.host.start("job", "--vram", "16"))
    before = m.host.checksum("job")
    replies = m.calls(
        backend,
        ("lock", pid, 1000), ("checkpoint", pid),
        ("restore", pid, [(one, one)]), ("state", pid),
        ("restore", pid, []), ("unlock", pid),
    )  # fmt: skip
    assert numbers(replies) == [OK, OK, BAD_ARGUMENT, OK, OK, OK] and replies[3]["state"] == "checkpointed"
    assert m.host.counts("job") and m.host.checksum("job") == before
    assert two not in m.host.run("nvidia-smi", "--query-compute-apps=gpu_uuid", "--format=csv,noheader")
    m.end(pid)


@pytest.mark.parametrize("backend", ["cli", "libcuda"])
def test_a_device_map_moves_a_process(backend: str, machines: Machines) -> None:
    m = machines("580")
    one, two = m.gpus
    pid = int(m.host.start("job", "--vram", "64"))
    before = m.host.checksum("job")
    swap = [(one, two), (two, one)]
    replies = m.calls(backend, ("lock", pid, 1000), ("checkpoint", pid), ("restore", pid, swap), ("unlock", pid))
    assert numbers(replies) == [OK] * 4
    assert m.host.run("nvidia-smi", "--query-compute-apps=gpu_uuid", "--format=csv,noheader") == two
    assert m.host.counts("job") and m.host.checksum("job") == before
    m.end(pid)


@pytest.mark.parametrize(
    ("driver", "backend", "words"),
    [
        ("550", "toggle", "takes no device map; drivers from 580 on do"),
        ("555", "cli", "has no --device-map"),
        ("570", "cli", "has no --device-map"),
        ("570", "libcuda", "this driver takes no device map; drivers from 580 on do"),
    ],
)
def test_a_device_map_where_there_is_none(driver: str, backend: str, words: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("job", "--vram", "16"))
    suspend: list[tuple[Any, ...]] = [("lock", pid, 1000)] if backend != "toggle" else []
    replies = m.calls(
        backend, *suspend, ("checkpoint", pid), ("restore", pid, [(uuid, uuid) for uuid in m.gpus]), ("state", pid)
    )
    assert not replies[-2]["ok"] and replies[-2]["code"] is None and words in replies[-2]["text"]
    assert replies[-1]["state"] == "checkpointed"
    assert m.calls(backend, ("restore", pid, []))[0]["ok"]
    m.end(pid)


# Toggle alone


def test_toggle_of_managed_memory_leaves_it_locked(machines: Machines) -> None:
    """Which evidence does not show, and nothing of that driver undoes: why the hazard has to be seen before."""
    m = machines("550")
    pid = int(m.host.start("managed", "--vram", "16", "--kind", "managed"))
    replies = m.calls("toggle", ("checkpoint", pid), ("state", pid), ("checkpoint", pid), ("unlock", pid))
    assert [(reply["code"], reply["text"]) for reply in replies[:3:2]] == [NOT_SUPPORTED, ILLEGAL]
    assert replies[1]["state"] == "running"
    assert not replies[3]["ok"] and replies[3]["text"].endswith("has no unlock of its own: a restore does both")
    assert not m.host.counts("managed")
    m.end(pid)


def test_toggle_refusals(machines: Machines) -> None:
    m = machines("550")
    plain = int(m.host.sh("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"))
    dead = int(m.host.sh("true & echo $!; wait"))
    for pid, expected in ((plain, NO_CUDA), (dead, NO_ACCESS)):
        assert numbers(m.calls("toggle", ("state", pid), ("checkpoint", pid), ("restore", pid, []))) == [expected] * 3
    job = int(m.host.start("job", "--vram", "512"))
    assert numbers(m.calls("toggle", ("state", job), ("checkpoint", job), user="nobody")) == [NO_ACCESS] * 2
    assert numbers(m.calls("toggle", ("checkpoint", job))) == [OK]
    other = int(m.host.start("other", "--vram", "800"))
    replies = m.calls("toggle", ("restore", job, []), ("state", job), ("restore", job, []))
    assert numbers(replies[:1]) == [NO_MEMORY]
    for reply in replies[1:]:
        assert not reply["ok"] and reply["text"].endswith("resume failed, and it can't be resumed any more")
    m.end(plain, other, job)


def test_two_toggles_at_once_never_turn_round(machines: Machines) -> None:
    m = machines("550")
    m.host.sh("cp /run/gpusim/host /run/gpusim/host.before; echo copy_mib_per_s=100 >>/run/gpusim/host")
    try:
        pid = int(m.host.start("slow", "--vram", "64"))
    finally:
        m.host.sh("mv /run/gpusim/host.before /run/gpusim/host")
    replies = m.calls("toggle", *[("checkpoint", pid)] * 4, at_once=True)
    assert sum(reply["ok"] for reply in replies) == 1
    refused = [reply["text"] for reply in replies if not reply["ok"]]
    assert set(refused) == {f"another toggle of process {pid} is on its way"}
    assert m.calls("toggle", ("state", pid))[0]["state"] == "checkpointed"
    m.end(pid)


# What does not come back, and what is left when the caller dies


@every_way
def test_two_checkpoints_at_once(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pid = int(m.host.start("job", "--vram", "64"))
    assert numbers(m.calls(backend, ("lock", pid, 1000))) == [OK]
    replies = m.calls(backend, ("checkpoint", pid), ("checkpoint", pid), at_once=True)
    assert sorted(numbers(replies)) == [OK, ILLEGAL]
    assert numbers(m.calls(backend, ("restore", pid, []), ("unlock", pid))) == [OK, OK]
    assert m.host.counts("job")
    m.end(pid)


@every_way
def test_a_stopped_process_gives_no_answer_and_the_caller_ends_all_the_same(
    driver: str, backend: str, machines: Machines
) -> None:
    m = machines(driver)
    pid = int(m.host.start("job", "--vram", "16"))
    m.host.sh(f"kill -STOP {pid}")
    hung, thread = m.calls(backend, ("state", pid), ("restore_thread", pid), seconds=1)
    assert hung is None and thread["ok"]
    m.host.sh(f"kill -CONT {pid}")
    assert m.calls(backend, ("state", pid))[0]["state"] == "running"
    m.end(pid)


def test_a_stopped_process_that_can_only_be_toggled(machines: Machines) -> None:
    m = machines("550")
    pid = int(m.host.start("job", "--vram", "16"))
    m.host.sh(f"kill -STOP {pid}")
    state, hung = m.calls("toggle", ("state", pid), ("checkpoint", pid), seconds=1)
    assert state["state"] == "running" and hung is None
    (refused,) = m.calls("toggle", ("checkpoint", pid))  # the first is on its way still
    assert refused["text"] == f"another toggle of process {pid} is on its way"
    m.host.sh(f"kill -CONT {pid}; while pgrep -x cuda-checkpoint; do sleep 0.02; done")
    assert m.calls("toggle", ("state", pid))[0]["state"] == "checkpointed"
    m.end(pid)


@pytest.mark.parametrize(
    ("driver", "backend"), [("550", "toggle"), ("555", "cli"), ("580", "libcuda")], ids=["toggle", "cli", "libcuda"]
)
def test_a_checkpoint_outlives_its_caller(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    m.host.sh("cp /run/gpusim/host /run/gpusim/host.before; echo copy_mib_per_s=32 >>/run/gpusim/host")
    try:
        pid = int(m.host.start("slow", "--vram", "64"))
    finally:
        m.host.sh("mv /run/gpusim/host.before /run/gpusim/host")
    before = m.host.checksum("slow")
    if backend != "toggle":
        assert numbers(m.calls(backend, ("lock", pid, 1000))) == [OK]
    asked = json.dumps({"wanted": backend, "calls": [("checkpoint", pid)], "seconds": 60, "at_once": False})
    m.host.put("/run/asked", asked)
    caller = m.host.sh(f"setsid python3 {SCRIPT} </run/asked >/run/told 2>&1 & echo $!")
    m.host.sh(f"until [ $(awk '/^RssAnon/ {{ print $2 }}' /proc/{pid}/status) -gt {32 * 1024} ]; do sleep 0.01; done")
    m.host.sh(f"kill -KILL -{caller}")
    assert m.host.run("cat", "/run/told") == ""
    m.host.sh(f"until ! ls -l /proc/{pid}/fd | grep -q /dev/nvidia; do sleep 0.02; done")
    m.host.sh("while pgrep -x cuda-checkpoint; do sleep 0.02; done")
    assert m.calls(backend, ("state", pid))[0]["state"] == "checkpointed"
    back: list[tuple[Any, ...]] = [("restore", pid, [])] + ([("unlock", pid)] if backend != "toggle" else [])
    assert all(code == 0 for code, _text in numbers(m.calls(backend, *back)))
    assert m.host.counts("slow") and m.host.checksum("slow") == before
    m.end(pid)


@every_way
def test_many_at_once_from_one_process(driver: str, backend: str, machines: Machines) -> None:
    m = machines(driver)
    pids = [int(m.host.start(f"job{number}", "--vram", "32", "--gpu", str(number % 2))) for number in range(6)]
    for call in ("lock", "checkpoint", "restore", "unlock"):
        arguments = {"lock": (1000,), "restore": ([],)}.get(call, ())
        replies = m.calls(backend, *[(call, pid, *arguments) for pid in pids], at_once=True)
        assert numbers(replies) == [OK] * 6
    assert all(m.host.counts(f"job{number}") for number in range(6))
    m.end(*pids)


def test_the_tool_s_help_is_the_recorded_one(machines: Machines) -> None:
    """The unit tests play recordings: they are of the same options as what runs here."""
    recordings = ROOT / "tests/unit/plugins/cuda/recordings"
    for driver in ("550", "555", "570", "580"):
        (path,) = recordings.glob(f"{driver}.*.json")
        recorded = " ".join(json.loads(path.read_text())["help"])
        done = machines(driver).host.ssh("cuda-checkpoint", "--help")
        assert isinstance(done, subprocess.CompletedProcess) and done.returncode == 0
        options = [
            {word for word in text.replace("|", " ").split() if word.startswith("--")}
            for text in (recorded, done.stdout)
        ]
        assert options[0] == options[1], driver
