# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does an image fit to a host?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import target as target_module
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.fit import OPTIONS, Target, fit, read_target
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import Manifest, ManifestGpu, Member
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.target import (
    Holder,
    numbers_of,
    own_run,
    read_holders,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tool import Criu
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.tree import OpenRegular
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuProcess, GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import HostSnapshot

GIB = 1 << 30
BOOT = "6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11"
LATER = "aaaaaaaa-1d5b-4b3c-9a3e-0b9d3f0a7c11"
FIRST, SECOND = "GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a", "GPU-9f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a"
H200 = "NVIDIA H200"
CRIU = Criu("/usr/sbin/criu", (4, 1, 1), "")

HOST = HostSnapshot(
    boot_id=BOOT,
    kernel="6.12.48",
    machine="x86_64",
    driver_version="580.159.04",
    memory_total=128 * GIB,
    memory_available=100 * GIB,
    swap_free=0,
    overcommit_memory=0,
    commit_limit=None,
    committed=None,
    thp="madvise",
    yama_ptrace_scope=0,
    effective_uid=0,
    pid_namespace="4026531836",
)


def gpu(index: int, uuid: str, free: int = 140 * GIB, name: str = H200, holders: tuple[int, ...] = ()) -> GpuSnapshot:
    processes = tuple(GpuProcess(pid, GIB, "compute") for pid in holders)
    return GpuSnapshot(index, uuid, name, 140 * GIB, 140 * GIB - free, free, False, True, processes)


def make(pid: int, parent: int, **fields: Any) -> Member:
    one = Member(pid, parent, 4711, 4711, 100 + pid, "sh", "/bin/sh", 0, (pid,), False, {}, "", False)
    return replace(one, **fields)


def manifest(**fields: Any) -> Manifest:
    worker = make(4712, 4711, cuda=True, threads=(4712, 4713), device_bytes={FIRST: 8 * GIB}, state_before="running")
    one = Manifest(
        lineage="5b1d7c0e",
        created=0.0,
        hostname="gpu07",
        kernel="6.12.48",
        boot_id=BOOT,
        machine="x86_64",
        driver="580.159.04",
        gpus=(ManifestGpu(FIRST, 0, H200, 140 * GIB), ManifestGpu(SECOND, 1, H200, 140 * GIB)),
        criu="4.1.1",
        options=(),
        root=4711,
        tree=(make(4711, 1), worker),
        host_bytes=10 * GIB,
        files=(OpenRegular("/data/log", 12, writable=True), OpenRegular("/data/gone", 3, deleted=True)),
        chunks=(),
        snapshot=False,
        compressed="",
        run_id="r",
        name="train",
    )
    return replace(one, **fields)


def target(**fields: Any) -> Target:
    one = Target(HOST, (gpu(0, FIRST), gpu(1, SECOND)), (4, 1, 1), (), {"/data/log": 12}, 4194304)
    return replace(one, **fields)


def host(**fields: Any) -> Target:
    return target(host=replace(HOST, **fields))


def only(found: tuple[Finding, ...], identifier: str, severity: str = "blocking") -> Finding:
    assert [(one.id, one.severity) for one in found] == [(identifier, severity)], found
    (one,) = found
    assert one.reference.endswith(f"docs/images.md#{identifier}")
    assert one.option == (identifier if identifier in OPTIONS else "")
    assert one.subject == "image of train" and one.reason and one.remedy
    return one


def test_it_fits_where_it_was_made() -> None:
    assert fit(manifest(), target()) == ()


# Host, CRIU, driver


def test_architecture() -> None:
    one = only(fit(manifest(), host(machine="aarch64", kernel="6.1")), "image_architecture")
    assert one.evidence == "it was made on x86_64, and this host is aarch64" and not one.option


def test_kernel_is_a_warning() -> None:
    only(fit(manifest(), host(kernel="6.18.1")), "image_kernel", "warning")


@pytest.mark.parametrize(
    ("made", "here", "severity"),
    [
        ("4.1.1", (4, 1, 1), ""),
        ("4.1.1", (4, 2), ""),
        ("4.1.1", (5, 0), ""),
        ("4.1.1", (4, 1), "warning"),
        ("4.2", (4, 1, 1), "blocking"),
        ("5.0", (4, 9), "blocking"),
    ],
)
def test_criu(made: str, here: tuple[int, ...], severity: str) -> None:
    found = fit(manifest(criu=made), target(criu=here))
    if not severity:
        assert found == ()
        return
    one = only(found, "image_criu", severity)
    assert made in one.evidence and f"Install CRIU {made}" in one.remedy


@pytest.mark.parametrize(("here", "words"), [("580.82.07", "here is 580.82.07"), ("", "here none is loaded")])
def test_driver(here: str, words: str) -> None:
    one = only(fit(manifest(), host(driver_version=here)), "image_driver")
    assert one.evidence == f"it was made under driver 580.159.04, and {words}"


def test_without_cuda_no_gpu_counts() -> None:
    plain = manifest(tree=(make(4711, 1),))
    assert fit(plain, replace(host(driver_version=""), gpus=())) == ()


# GPUs


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ((gpu(0, FIRST),), "2 x NVIDIA H200, and here is 1 x NVIDIA H200"),
        ((gpu(0, FIRST), gpu(1, SECOND, name="NVIDIA H100")), "here are 1 x NVIDIA H100, 1 x NVIDIA H200"),
    ],
)
def test_other_gpus(gpus: tuple[GpuSnapshot, ...], words: str) -> None:
    assert words in only(fit(manifest(), target(gpus=gpus)), "image_gpu").evidence


def test_no_gpu_at_all() -> None:
    found = fit(manifest(), target(gpus=()))
    assert [one.id for one in found] == ["image_gpu", "gpu_missing"]
    assert "here are no GPU" in found[0].evidence
    assert f"8.0 GiB of it belong to GPU {FIRST} (NVIDIA H200), which is not here" == found[1].evidence


def test_no_room() -> None:
    full = target(gpus=(gpu(0, FIRST, 8 * GIB - 1, holders=(77, 78)), gpu(1, SECOND)))
    one = only(fit(manifest(), full), "vram_short")
    assert one.evidence == f"GPU 0 ({FIRST}) has 8.0 GiB free, and it needs 8.0 GiB"
    assert "in use by PID 77, PID 78" in one.remedy and "device_map: auto" in one.remedy
    assert fit(manifest(), target(gpus=(gpu(0, FIRST, 8 * GIB), gpu(1, SECOND)))) == ()


def test_another_gpu_has_room() -> None:
    full = target(gpus=(gpu(0, FIRST, 0), gpu(1, SECOND)))
    assert fit(manifest(), full, "auto") == ()
    assert fit(manifest(), full, {"0": "1", "1": "0"}) == ()
    one = only(fit(manifest(), target(gpus=(gpu(0, FIRST, 0), gpu(1, SECOND, 0))), "auto"), "device_map")
    assert one.remedy and not one.option


def test_a_map_that_is_none() -> None:
    assert "is missing among" in only(fit(manifest(), target(), {"0": "0"}), "device_map").evidence


# Memory


def test_host_memory() -> None:
    one = only(fit(manifest(), host(memory_available=10 * GIB)), "host_memory")
    assert one.evidence == "it needs 10.1 GiB of host memory, and 10.0 GiB are available"
    assert fit(manifest(), host(memory_available=11 * GIB)) == ()


def test_strict_overcommit() -> None:
    strict = host(overcommit_memory=2, commit_limit=60 * GIB, committed=55 * GIB)
    assert "5.0 GiB are left to promise" in only(fit(manifest(), strict), "host_memory").evidence


def test_unknown_memory() -> None:
    assert "can't be read" in only(fit(manifest(), host(memory_available=None)), "host_memory").evidence


# Files


def test_a_missing_file() -> None:
    one = only(fit(manifest(), target(files={"/data/log": None})), "image_file_missing")
    assert one.evidence == "no longer there: /data/log" and "its boot" not in one.remedy
    rebooted = replace(host(boot_id=LATER), files={"/data/log": None})
    assert "went with its boot" in only(fit(manifest(), rebooted), "image_file_missing").remedy


def test_a_file_of_another_size() -> None:
    one = only(fit(manifest(), target(files={"/data/log": 20})), "image_file_size")
    assert one.evidence == "of another size: /data/log (20 bytes, and 12 in the image)"
    assert "truncate -s 12 /data/log" in one.remedy
    assert "truncate" not in only(fit(manifest(), target(files={"/data/log": 2})), "image_file_size").remedy


def test_a_log_that_may_grow() -> None:
    log = manifest(files=(OpenRegular("/data/log", -1, writable=True),))
    assert fit(log, target(files={"/data/log": 99999})) == ()
    only(fit(log, target(files={"/data/log": None})), "image_file_missing")


def test_names_are_made_printable() -> None:
    odd = manifest(files=(OpenRegular("/data/a\n\udcff", 1),))
    one = only(fit(odd, target(files={})), "image_file_missing")
    assert one.evidence == "no longer there: /data/a\\n\\udcff"


# PIDs


def holder(number: int, kind: str = "process", **fields: Any) -> Holder:
    one = Holder(number, kind, 4713, "cron", 1796000000.0, 5, 1, "systemd")
    return replace(one, **fields)


def test_a_process_has_the_number() -> None:
    one = only(fit(manifest(), target(holders=(holder(4713),))), "pid_busy")
    assert one.evidence == "4713 of it is in use by PID 4713 (cron, since 2026-11-30 00:53:20 UTC)"
    assert one.pid == 4713 and "End PID 4713" in one.remedy and "pid_namespace: new" in one.remedy and not one.option


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("thread", "4712 (a thread there), 4713 (a thread there) of it are in use by PID 99 (cron"),
        ("group", "4712 (a process group there, without its leader), 4713 (a process group there"),
        ("session", "4712 (a session there, without its leader)"),
    ],
)
def test_what_else_can_have_it(kind: str, words: str) -> None:
    one = only(fit(manifest(), target(holders=(holder(4712, kind, pid=99), holder(4713, kind, pid=99)))), "pid_busy")
    assert one.evidence.startswith(words)


def test_a_zombie() -> None:
    found = target(holders=(holder(4713, "zombie", parent=7, parent_name="runner"),))
    one = only(fit(manifest(), found), "pid_busy")
    assert "4713 (a zombie there)" in one.evidence
    assert one.remedy == "It has ended, but PID 7 (runner) has not reaped it: make that do so, or end it"


def test_the_original() -> None:
    original = holder(4712, pid=4712, start_ticks=4812)
    assert "the image was made of" in only(fit(manifest(), target(holders=(original,))), "pid_busy").remedy
    rebooted = replace(host(boot_id=LATER), holders=(original,))
    assert "the image was made of" not in only(fit(manifest(), rebooted), "pid_busy").remedy


def test_kernel_threads_stay() -> None:
    one = only(fit(manifest(), target(holders=(holder(4713, parent=2),))), "pid_busy")
    assert one.remedy == (
        "It is the host's own: boot again, so that it gets another PID; or restore into a PID namespace of its own: "
        "pid_namespace: new (gpu_restore_pid_namespace or gpu_drain_pid_namespace where a role does it)"
    )


@pytest.mark.parametrize("name", ["sshd", "sshd-session"])
def test_the_connection_of_this_very_run(name: str) -> None:
    """Ending it, which is what helps against others, would end the run; Ansible's ControlPersist keeps it."""
    found = target(holders=(holder(4713, name=name),), own=frozenset((4713,)))
    one = only(fit(manifest(), found), "pid_busy")
    assert one.evidence == (
        f"4713 of it is in use by PID 4713 ({name}, since 2026-11-30 00:53:20 UTC), the SSH connection of this very run"
    )
    assert "meta: reset_connection" in one.remedy and "End PID" not in one.remedy
    assert "gpu_drain_pid_namespace" in one.remedy
    assert "this very run" not in only(fit(manifest(), replace(found, own=frozenset())), "pid_busy").evidence


def test_another_process_of_this_very_run() -> None:
    one = only(fit(manifest(), target(holders=(holder(4713, name="sh"),), own=frozenset((4713,)))), "pid_busy")
    assert one.evidence.endswith(", which is part of this very run") and one.remedy.startswith("Run again")


def test_what_belongs_to_this_run() -> None:
    """Itself, what it descends from, and what shares its session, if that can be seen; not a session beside it."""
    beside = subprocess.Popen(["sleep", "60"])
    elsewhere = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        own = own_run()
        assert {os.getpid(), os.getppid()} - {0, 1} <= own and elsewhere.pid not in own
        assert (beside.pid in own) == (os.getsid(0) != 0)
    finally:
        for one in (beside, elsewhere):
            one.kill()
            one.wait()


@pytest.mark.parametrize("session", [154, 0])
def test_the_server_that_listens_is_no_connection(session: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """0: what leads the session is outside the PID namespace, as for whatever `docker exec` starts."""
    chain = {70: (1, "sshd"), 151: (70, "sshd-session"), 153: (151, "sshd-session"), 154: (153, "python3")}

    def read(path: str) -> SimpleNamespace | None:
        pid = int(path.split("/")[2])
        return SimpleNamespace(parent=chain[pid][0], name=chain[pid][1], session=pid) if pid in chain else None

    monkeypatch.setattr(target_module, "own_ancestors", lambda: set(chain))
    monkeypatch.setattr(target_module, "read_stat", read)
    monkeypatch.setattr(os, "getsid", lambda pid: session)
    monkeypatch.setattr(os, "listdir", lambda path: ["self", *map(str, chain), "99"])
    assert own_run() == {151, 153, 154}


def test_in_a_namespace_of_its_own_only_the_original_is_in_the_way() -> None:
    """It lives on in spite of its image: nowhere may it get a second life."""
    others = (holder(4713), holder(4711, "thread", pid=99), holder(4712, "zombie", pid=98))
    assert fit(manifest(), target(holders=others), new_namespace=True) == ()
    original = holder(4712, pid=4712, start_ticks=4812)
    found = fit(manifest(), target(holders=(*others, original)), new_namespace=True)
    assert [(one.id, one.pid) for one in found] == [("pid_busy", 4712)]
    assert "the image was made of" in found[0].remedy
    rebooted = replace(host(boot_id=LATER), holders=(original,))
    assert "pid_busy" not in [one.id for one in fit(manifest(), rebooted, new_namespace=True)]


def test_one_finding_for_each_holder() -> None:
    found = fit(
        manifest(), target(holders=(holder(4711, pid=4711), holder(4713, "thread", pid=4711), holder(4712, pid=9)))
    )
    assert [(one.id, one.pid) for one in found] == [("pid_busy", 4711), ("pid_busy", 9)]


def test_fewer_pids_than_the_image_needs() -> None:
    one = only(fit(manifest(), target(pid_max=4713)), "pid_max")
    assert one.evidence == "it holds PID 4713, and kernel.pid_max is 4713 here"
    assert fit(manifest(), target(pid_max=4714)) == ()


def test_what_blocks_comes_first() -> None:
    found = fit(manifest(), replace(host(kernel="6.18"), files={"/data/log": None}))
    assert [one.severity for one in found] == ["blocking", "warning"]


def test_numbers_that_have_to_be_free() -> None:
    """Groups and sessions without a leader in the tree get one, unless they become CRIU's own."""
    assert numbers_of(manifest()) == (4711, 4712, 4713)
    job = (make(4711, 1, session=40, group=50), make(4712, 4711, session=40, group=60))
    assert numbers_of(manifest(tree=job)) == (40, 50, 60, 4711, 4712)
    assert numbers_of(manifest(tree=job, options=("--shell-job",))) == (60, 4711, 4712)


# Evidence


@contextmanager
def program(text: str) -> Iterator[tuple[int, str]]:
    """Its PID, and the first line that it says."""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().decode().strip()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_numbers_of_this_host() -> None:
    text = (
        "import threading, time; thread = threading.Thread(target=time.sleep, args=(99,), daemon=True); "
        "thread.start(); print(thread.native_id, flush=True); time.sleep(99)"
    )
    free = next(number for number in range(4194000, 1, -1) if not os.path.exists(f"/proc/{number}"))
    with program(text) as (pid, said):
        found = read_holders((pid, int(said), free))
    assert [(one.number, one.kind, one.pid) for one in found] == [(pid, "process", pid), (int(said), "thread", pid)]
    assert abs(found[0].since - time.time()) < 60 and found[0].name.startswith("python")
    assert found[0].parent == os.getpid()


def test_a_zombie_of_this_host() -> None:
    text = (
        "import os, time; pid = os.fork(); pid or os._exit(0); time.sleep(0.2); print(pid, flush=True); time.sleep(99)"
    )
    with program(text) as (pid, said):
        (found,) = read_holders((int(said),))
    assert (found.kind, found.parent) == ("zombie", pid) and found.parent_name.startswith("python")


def test_a_group_and_a_session_without_their_leaders() -> None:
    """Their numbers can't be had while a member lives."""
    text = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); session = os.getpid(); out, into = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        os.close(into); os.read(out, 1)\n"
        "        print(session, os.getpid(), flush=True); time.sleep(99)\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(99)\n"
    )
    with program(text) as (_pid, said):
        session, member = (int(word) for word in said.split())
        try:
            end = time.monotonic() + 20
            while os.path.exists(f"/proc/{session}") and time.monotonic() < end:
                time.sleep(0.01)
            (found,) = read_holders((session,))
        finally:
            os.kill(member, signal.SIGKILL)
    assert (found.number, found.kind, found.pid) == (session, "session", member)


def test_files_of_this_host(tmp_path: Path) -> None:
    there, folder = tmp_path / "there", tmp_path / "folder"
    there.write_bytes(b"12345")
    folder.mkdir()
    names = [there, folder, tmp_path / "gone", Path("/proc/self/status")]
    files = tuple(OpenRegular(str(one), 5) for one in names)
    odd = (OpenRegular("/a\0b", 1), OpenRegular(str(there) + "-deleted", 1, deleted=True))
    seen = read_target(manifest(files=files + odd, tree=(make(os.getpid(), 1),)), [gpu(0, FIRST)], CRIU)
    assert seen.files == {str(there): 5, str(folder): None, str(tmp_path / "gone"): None, "/a\0b": None}
    assert (os.getpid(), "process") in [(one.number, one.kind) for one in seen.holders]
    assert seen.criu == (4, 1, 1) and seen.gpus[0].uuid == FIRST
    assert seen.pid_max == int(Path("/proc/sys/kernel/pid_max").read_text())
    assert seen.host.kernel == os.uname().release
