# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a recording can't show: limits at their edge, sums over several processes, and evidence that may not be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Optional

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import CgroupSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuProcess
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.need import MARGIN
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import evaluate
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.freezer import _group_name
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Mapping, ThreadSnapshot
from tests.recorder.recording import Recording
from tests.unit.plugins.hazards.helpers import (
    GIB,
    blocking,
    changed,
    context,
    of,
    on_host,
    recording,
    target,
    the_only,
    with_gpus,
)

MIB = 1 << 20


def gpu_uuid(taken: Recording, index: int = 0) -> str:
    return taken.snapshot.gpus[index].uuid


def holding(taken: Recording, *sizes: Optional[int]) -> Dict[int, Dict[str, Optional[int]]]:
    """Each target so much on GPU 0."""
    return {pid: {gpu_uuid(taken): size} for pid, size in zip(taken.targets, sizes, strict=False)}


# Evidence that may not be read


@pytest.mark.parametrize(
    "fields, hazard, words",
    [
        ({"device_mappings": None}, "uvm_managed", "its mappings may not be read"),
        ({"unix_names": None}, "nccl_communicator", "its sockets may not be read"),
        ({"tcp_peers": None}, "nccl_communicator", "its sockets may not be read"),
        ({"device_files": None}, "vmm_export", "its descriptors or mappings may not be read"),
        ({"libraries": None}, "vmm_export", "its descriptors or mappings may not be read"),
        (
            {"data_limit_bytes": None, "unreadable": ("limits",)},
            "host_memory",
            "its limits (/proc/PID/limits) can't be read",
        ),
    ],
)
def test_unknown_blocks_where_a_process_could_be_lost(fields: Dict[str, object], hazard: str, words: str) -> None:
    finding = the_only(evaluate(context(changed(recording("plain"), **fields))), hazard)
    assert words in finding.evidence


@pytest.mark.parametrize(
    "fields, hazard, words",
    [
        ({"frozen": None, "cgroups": ()}, "stopped_or_frozen", "/proc/PID/cgroup can't be read"),
        ({"cgroups": (), "unreadable": ("cgroups",)}, "cgroup_memory", "their control groups can't be read"),
        (
            {"cgroups": (CgroupSnapshot(1, "memory", "/x", "", unreadable=("memory",)),)},
            "cgroup_memory",
            "the control group /x can't be seen here (not mounted, or outside the cgroup namespace)",
        ),
        (
            {"cgroups": (CgroupSnapshot(2, "", "/x", "/sys/fs/cgroup/x", unreadable=("memory",)),)},
            "cgroup_memory",
            "memory limits of /x can't be read, so that a memory limit can't be ruled out",
        ),
    ],
)
def test_unknown_warns_where_nothing_is_lost_by_it(fields: Dict[str, object], hazard: str, words: str) -> None:
    found = evaluate(context(changed(recording("plain"), **fields)))
    assert blocking(found) == []
    (finding,) = of(found, hazard)
    assert finding.severity == "warning" and words in finding.evidence


def test_unknown_bytes_block() -> None:
    taken = recording("plain")
    unknown: List[Dict[int, Dict[str, Optional[int]]]] = [{}, {target(taken).pid: {}}, holding(taken, None)]
    for sizes in unknown:
        finding = the_only(evaluate(context(taken, device_bytes=sizes)), "host_memory")
        assert "how much GPU memory it holds is not known" in finding.evidence


def test_a_process_of_which_nothing_can_be_seen_is_not_called_not_cuda() -> None:
    taken = changed(
        recording("plain"), uvm_socket=None, device_mappings=None, device_files=None, libraries=None, unix_names=None
    )
    assert of(evaluate(context(taken)), "not_cuda") == []
    assert {finding.id for finding in blocking(evaluate(context(taken)))} >= {"uvm_managed", "vmm_export"}


# Managed memory


def uvm(*sizes: int) -> "tuple[Mapping, ...]":
    return tuple(Mapping("/dev/nvidia-uvm", 0x200000000 + index, size) for index, size in enumerate(sizes))


@pytest.mark.parametrize(
    "sizes, gpus, managed",
    [
        ((2 * MIB,), 1, False),
        ((2 * MIB, 2 * MIB), 2, False),
        ((2 * MIB, 2 * MIB), 1, True),
        ((2 * MIB, 2 * MIB, 2 * MIB), 2, True),
        ((2 * MIB, 4096), 1, True),
        ((256 * MIB,), 1, True),
        ((), 1, False),
    ],
)
def test_mappings_of_the_memory_manager(sizes: "tuple[int, ...]", gpus: int, managed: bool) -> None:
    taken = changed(recording("plain"), device_mappings=uvm(*sizes))
    pid = target(taken).pid
    listed = tuple(
        replace(gpu, processes=(GpuProcess(pid, MIB, "compute"),) if gpu.index < gpus else ())
        for gpu in taken.snapshot.gpus
    )
    taken = replace(taken, snapshot=replace(taken.snapshot, gpus=listed))
    assert bool(of(evaluate(context(taken)), "uvm_managed")) is managed


def test_gpus_in_use_are_also_told_by_mappings() -> None:
    """Where NVML does not list the process, as in another PID namespace. One that is not in use is mapped, too."""
    nodes = (
        Mapping("/dev/nvidia0", 1, 2 * MIB),
        Mapping("/dev/nvidia1", 2, 2 * MIB),
        Mapping("/dev/nvidia2", 3, 65536),
    )
    taken = with_gpus(recording("plain"), processes=())
    sizes = {target(taken).pid: {gpu_uuid(taken): MIB}}
    two = changed(taken, device_mappings=(*nodes, *uvm(2 * MIB, 2 * MIB)))
    three = changed(taken, device_mappings=(*nodes, *uvm(2 * MIB, 2 * MIB, 2 * MIB)))
    assert of(evaluate(context(two, device_bytes=sizes)), "uvm_managed") == []
    assert (
        "1 mapping of /dev/nvidia-uvm, 2 MiB"
        in of(evaluate(context(three, device_bytes=sizes)), "uvm_managed")[0].evidence
    )


# NCCL

RANK = {"unix_names": ("@cuda-uvmfd-1-2", "@tmp/nccl-socket-0-e03f45c9f6bca45e")}


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"environment": {"WORLD_SIZE": "8"}}, "WORLD_SIZE=8"),
        ({"environment": {"OMPI_COMM_WORLD_SIZE": "2"}}, "OMPI_COMM_WORLD_SIZE=2"),
        ({"tcp_remote": ("41000 192.0.2.7:43000",)}, "1 connection to other hosts (192.0.2.7:43000)"),
    ],
)
def test_more_than_one_rank(fields: Dict[str, object], words: str) -> None:
    finding = the_only(evaluate(context(changed(recording("plain"), **RANK, **fields))), "nccl_communicator")
    assert words in finding.evidence and "a socket nccl-socket-*" in finding.evidence


@pytest.mark.parametrize(
    "fields",
    [
        {"environment": {"WORLD_SIZE": "1"}},
        {"environment": {"WORLD_SIZE": "many"}},
        {"environment": {"WORLD_SIZE": "\xb2"}},
        {"environment": {"WORLD_SIZE": "9" * 5000}},
        {"tcp_remote": ("41000 192.0.2.7:443", "22 192.0.2.8:50000")},  # services
        {},
    ],
)
def test_one_rank_is_whole(fields: Dict[str, object]) -> None:
    assert blocking(evaluate(context(changed(recording("plain"), **RANK, **fields)))) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"environment": {"WORLD_SIZE": "8"}},
        {"libraries": ("libcuda.so.1", "libnccl.so.2"), "tcp_remote": ("41000 192.0.2.7:43000",)},
        {"shm_files": ("/dev/shm/torch_1",), "environment": {"WORLD_SIZE": "8"}},
    ],
)
def test_no_communicator_no_hazard(fields: Dict[str, object]) -> None:
    """PyTorch maps libnccl always, and is told WORLD_SIZE before it makes a communicator."""
    assert blocking(evaluate(context(changed(recording("plain"), **fields)))) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"threads": (ThreadSnapshot(1, "pt_nccl_watchdg", "S"),)},
        {"shm_files": ("/dev/shm/nccl-AbCdEf (deleted)",)},
    ],
)
def test_other_signs_of_a_communicator(fields: Dict[str, object]) -> None:
    taken = changed(recording("plain"), environment={"WORLD_SIZE": "2"}, **fields)
    the_only(evaluate(context(taken)), "nccl_communicator")


def test_ranks_that_share_nccls_memory() -> None:
    taken = changed(recording("two-processes"), shm_files=("/dev/shm/nccl-AbCdEf",))
    found = of(evaluate(context(taken)), "nccl_communicator")
    assert len(found) == 2 and "shared memory of NCCL with PID" in found[0].evidence


def test_other_communicators_memory_is_not_shared() -> None:
    taken = recording("two-processes")
    first, second = (
        replace(one, shm_files=(f"/dev/shm/nccl-{number}",)) for number, one in enumerate(taken.snapshot.processes)
    )
    taken = replace(taken, snapshot=replace(taken.snapshot, processes=(first, second)))
    assert of(evaluate(context(taken)), "nccl_communicator") == []


def test_a_connection_to_a_process_without_cuda_is_no_rank() -> None:
    """Such as a forked child that inherited the rank's connection to itself."""
    taken = recording("fork")
    parent, child = taken.snapshot.processes
    assert not child.may_be_cuda
    parent = replace(parent, tcp_peers=(child.pid,), unix_names=RANK["unix_names"])
    taken = replace(taken, snapshot=replace(taken.snapshot, processes=(parent, child)))
    assert of(evaluate(context(taken)), "nccl_communicator") == []


# CUDA IPC


def test_shared_events_block() -> None:
    taken = changed(recording("two-processes"), shm_files=("/dev/shm/cuda.shm.0.4d2.1",))
    found = of(evaluate(context(taken)), "cuda_ipc_possible")
    assert [finding.severity for finding in found] == ["blocking", "blocking"]
    assert "/dev/shm/cuda.shm.0.4d2.1" in found[0].evidence


def test_strangers_are_no_suspects() -> None:
    taken = recording("two-processes")
    first, second = taken.snapshot.processes
    second = replace(second, parent=1, session=second.pid, cgroup_paths=("/", "/other"))
    first = replace(first, cgroup_paths=("/", "/init"))
    taken = replace(taken, snapshot=replace(taken.snapshot, processes=(first, second)))
    assert of(evaluate(context(taken)), "cuda_ipc_possible") == []
    same_group = replace(second, cgroup_paths=("/", "/init"))
    taken = replace(taken, snapshot=replace(taken.snapshot, processes=(first, same_group)))
    assert "(the same control group)" in of(evaluate(context(taken)), "cuda_ipc_possible")[0].evidence


# Exported memory


@pytest.mark.parametrize(
    "controls, libraries, exported",
    [
        (1, ("libcuda.so.1",), False),
        (2, ("libcuda.so.1",), True),
        (2, ("libcuda.so.1", "libnccl.so.2", "libnvidia-ml.so.1"), False),  # PyTorch, JAX, an NCCL rank
        (3, ("libcuda.so.1", "libnvidia-ml.so.1"), True),
    ],
)
def test_exported_memory(controls: int, libraries: "tuple[str, ...]", exported: bool) -> None:
    files = ("/dev/nvidia0", *["/dev/nvidiactl"] * controls, *["/dev/nvidia-uvm"] * 4)
    taken = changed(recording("plain"), device_files=files, libraries=libraries)
    assert bool(of(evaluate(context(taken)), "vmm_export")) is exported


# MPS and MIG


def test_nvml_lists_a_client() -> None:
    taken = recording("plain")
    pid = target(taken).pid
    found = evaluate(context(with_gpus(taken, processes=(GpuProcess(pid, MIB, "mps"),))))
    assert the_only(found, "mps_client").evidence == "NVML lists it as a client of MPS on GPU 0"


def daemon_beside(taken: Recording, **fields: object) -> Recording:
    """The recorded processes, and the daemon of the recording of MPS."""
    mps = recording("mps")
    daemon = next(one for one in mps.snapshot.processes if one.pid not in mps.targets)
    taken = changed(taken, **fields)
    processes = (*taken.snapshot.processes, replace(daemon, identity=replace(daemon.identity, pid=1)))
    return replace(taken, snapshot=replace(taken.snapshot, processes=processes))


def test_a_client_by_its_sockets_and_pipes() -> None:
    """As measured on an H200."""
    client = {"unix_names": ("@04c1e", "@cuda-uvmfd-1-2", "@eed71"), "lone_pipes": 8}
    found = evaluate(context(daemon_beside(recording("plain"), **client)))
    assert "sockets and pipes of a client" in the_only(found, "mps_client").evidence
    assert blocking(evaluate(context(daemon_beside(recording("plain"))))) == []
    assert blocking(evaluate(context(changed(recording("plain"), **client)))) == [], "no server, no client"


def test_a_client_by_who_is_at_the_other_end() -> None:
    found = evaluate(context(daemon_beside(recording("plain"), unix_peers=((1, "x"),))))
    assert the_only(found, "mps_client").evidence == "it is connected to MPS's server, PID 1"


def test_a_client_that_can_not_be_told_is_a_warning() -> None:
    found = evaluate(context(daemon_beside(recording("plain"), unix_peers=None, unix_peer_names=None)))
    assert blocking(found) == []
    assert [finding.severity for finding in of(found, "mps_client")] == ["warning"]


def test_a_suspended_process_is_no_client() -> None:
    """A client can't be suspended: its lock is refused."""
    taken = daemon_beside(recording("plain-suspended"), unix_peers=None, unix_peer_names=None)
    assert of(evaluate(context(taken)), "mps_client") == []


def test_the_server_itself() -> None:
    taken = changed(recording("plain"), name="nvidia-cuda-mps")
    assert the_only(evaluate(context(taken)), "mps_client").evidence == "it is MPS's own server"


def test_mig() -> None:
    taken = with_gpus(recording("plain"), mig=True)
    assert the_only(evaluate(context(taken)), "mig").evidence == "it works on GPU 0, where MIG is on"
    assert blocking(evaluate(context(taken, "resume", device_bytes={}))) == []


def test_mig_on_another_gpu_is_no_matter() -> None:
    taken = recording("plain")
    gpus = tuple(replace(gpu, mig=gpu.index == 1) for gpu in taken.snapshot.gpus)
    split = replace(taken, snapshot=replace(taken.snapshot, gpus=gpus))
    assert of(evaluate(context(split)), "mig") == []
    unknown = of(evaluate(context(split, device_bytes={})), "mig")
    assert [finding.evidence for finding in unknown] == ["on which GPU it works is not known, and MIG is on for GPU 1"]


# Stopped, frozen, traced


def test_a_tracing_stop_whose_tracer_can_not_be_seen() -> None:
    taken = changed(recording("plain"), threads=(ThreadSnapshot(8, "x", "t"),))
    assert "thread 8 (x) is in a tracing stop" in the_only(evaluate(context(taken)), "traced").evidence
    assert blocking(evaluate(context(taken, parked=True))) == []


def test_one_that_a_run_left_stopped_as_it_was_found() -> None:
    taken = recording("stopped")
    (pid,) = taken.targets
    found = evaluate(replace(context(taken), left_stopped={pid: "night-shift"}))
    assert (
        "run night-shift found it stopped by somebody else, and left it so"
        in the_only(found, "stopped_or_frozen").evidence
    )
    assert "night-shift" not in the_only(evaluate(context(taken)), "stopped_or_frozen").evidence


def test_frozen_holds_for_parked_ones_too() -> None:
    found = evaluate(context(recording("frozen"), parked=True))
    finding = the_only(found, "stopped_or_frozen")
    assert finding.option == "" and "is frozen" in finding.evidence and finding.evidence.startswith("its control group")


def test_frozen_somewhere_that_can_not_be_seen() -> None:
    """Told by the place in the kernel where it waits."""
    taken = recording("plain")
    groups = tuple(replace(group, frozen=None) for group in target(taken).cgroups)
    finding = the_only(evaluate(context(changed(taken, frozen=True, cgroups=groups))), "stopped_or_frozen")
    assert finding.option == "" and "a control group that can't be seen here" in finding.evidence


def test_frozen_by_our_own_guard_is_parked() -> None:
    taken = recording("plain-parked")
    own = v2(f"/a/{_group_name(target(taken).identity)}", frozen=True)
    taken = changed(taken, frozen=True, cgroups=(own, v2("/a"), v2("/")))
    assert evaluate(context(taken, "resume", parked=True)) == ()
    assert the_only(evaluate(context(taken, "resume")), "stopped_or_frozen").option == "", "whose else it may be"
    above = changed(taken, cgroups=(own, v2("/a", frozen=True), v2("/")))
    finding = the_only(evaluate(context(above, "resume", parked=True)), "stopped_or_frozen")
    assert finding.evidence == "its control group /a is frozen"


# Control groups


def grouped(taken: Recording, *groups: CgroupSnapshot) -> Recording:
    return changed(taken, cgroups=groups)


def v2(path: str, **fields: object) -> CgroupSnapshot:
    return replace(CgroupSnapshot(2, "", path, "/sys/fs/cgroup" + path, memory_current=GIB), **fields)  # type: ignore


def need(size: int) -> int:
    return size + size // 256 + MARGIN


@pytest.mark.parametrize("spare, short", [(0, False), (-1, True)])
def test_an_ancestors_limit_to_the_byte(spare: int, short: bool) -> None:
    taken = recording("plain")
    limit = GIB - 200 * MIB + need(3 * GIB) + spare
    group = v2("/a.slice", memory_max=limit, reclaimable=200 * MIB)
    taken = grouped(taken, v2("/a.slice/b.service"), group, v2("/", memory_current=None))
    found = evaluate(context(taken, device_bytes=holding(taken, 3 * GIB)))
    assert bool(of(found, "cgroup_memory")) is short
    if short:
        (finding,) = of(found, "cgroup_memory")
        assert "memory.max of control group /a.slice" in finding.evidence
        assert "(200 MiB of that can be reclaimed)" in finding.evidence and finding.pid == target(taken).pid


def test_memory_high_slows_down() -> None:
    taken = grouped(recording("plain"), v2("/a", memory_high=2 * GIB, memory_max=9 * GIB))
    (finding,) = of(evaluate(context(taken, device_bytes=holding(taken, 3 * GIB))), "cgroup_memory")
    assert (
        finding.evidence.startswith("memory.high of") and "slows" in finding.reason and "MemoryHigh" in finding.remedy
    )


def test_the_sum_over_the_processes_of_a_group() -> None:
    taken = grouped(recording("two-processes"), v2("/a", memory_max=6 * GIB))
    assert of(evaluate(context(taken, device_bytes=holding(taken, 3 * GIB, GIB))), "cgroup_memory") == []
    (finding,) = of(evaluate(context(taken, device_bytes=holding(taken, 3 * GIB, 3 * GIB))), "cgroup_memory")
    assert finding.pid is None and "the 2 need 6.1 GiB" in finding.evidence
    first, second = taken.targets
    assert finding.subject == f"PID {first} (gpusim-workload) and PID {second} (gpusim-workload)"


def test_one_that_is_suspended_already_needs_nothing() -> None:
    taken = recording("plain-suspended")
    taken = grouped(taken, v2("/a", memory_max=GIB))
    assert blocking(evaluate(context(taken, device_bytes=holding(taken, 3 * GIB)))) == []


@pytest.mark.parametrize("fields", [{"memory_current": None}, {"memory_current": None, "unreadable": ("memory",)}])
def test_a_limit_of_which_the_use_is_unknown_blocks(fields: Dict[str, object]) -> None:
    taken = grouped(recording("plain"), v2("/a", memory_max=1024 * GIB, **fields))
    found = blocking(evaluate(context(taken, device_bytes=holding(taken, GIB))))
    assert [finding.id for finding in found] == ["cgroup_memory"]
    assert "how much of it is in use can't be read" in found[0].evidence


def test_limits_above_a_namespace_are_told_once_for_all() -> None:
    taken = grouped(recording("two-processes"), v2("/", hidden_ancestors=True))
    (finding,) = of(evaluate(context(taken)), "cgroup_memory")
    assert finding.severity == "warning" and finding.pid is None
    assert finding.evidence.startswith("memory limits above / can't be seen from this cgroup namespace")


def test_which_hierarchy_limits_memory() -> None:
    """Beside a version 1 hierarchy for memory, what version 2 hides does not matter."""
    v1 = CgroupSnapshot(1, "memory", "/", "/sys/fs/cgroup/memory", memory_current=1)
    taken = grouped(recording("plain"), v1, v2("/", hidden_ancestors=True, memory_current=None, unreadable=("memory",)))
    assert of(evaluate(context(taken)), "cgroup_memory") == []


# The host


def roomy(taken: Recording) -> Recording:
    return on_host(grouped(taken), memory_available=100 * GIB, overcommit_memory=0)


@pytest.mark.parametrize("spare, short", [(0, False), (-1, True)])
def test_memory_of_the_host(spare: int, short: bool) -> None:
    taken = on_host(roomy(recording("two-processes")), memory_available=2 * need(3 * GIB) + spare)
    found = of(evaluate(context(taken, device_bytes=holding(taken, 3 * GIB, 3 * GIB))), "host_memory")
    assert bool(found) is short
    if short:
        assert len(found) == 1 and found[0].pid is None and "the 2 need 6.1 GiB" in found[0].evidence


def test_strict_overcommit() -> None:
    taken = on_host(roomy(recording("plain")), overcommit_memory=2, commit_limit=8 * GIB, committed=6 * GIB)
    (finding,) = of(evaluate(context(taken, device_bytes=holding(taken, 3 * GIB))), "host_memory")
    assert "vm.overcommit_memory is 2, 2.0 GiB may still be promised" in finding.evidence
    assert "vm.overcommit_memory=0" in finding.remedy
    assert of(evaluate(context(on_host(taken, overcommit_memory=0))), "host_memory") == []


@pytest.mark.parametrize("name, used", [("data_limit_bytes", "data_bytes"), ("address_limit_bytes", "virtual_bytes")])
def test_limits_of_the_process(name: str, used: str) -> None:
    for spare, short in ((0, False), (-1, True)):
        taken = changed(roomy(recording("plain")), **{used: MIB, name: MIB + need(GIB) + spare})
        assert bool(of(evaluate(context(taken, device_bytes=holding(taken, GIB))), "host_memory")) is short


def test_memory_of_the_host_that_can_not_be_read_blocks() -> None:
    taken = on_host(roomy(recording("plain")), memory_available=None)
    assert "can't be read" in the_only(evaluate(context(taken)), "host_memory").evidence


# Room on the GPUs


def coming_back(free: int, reserved: int = 0, held: Optional[int] = 4 * GIB) -> "list[str]":
    taken = with_gpus(recording("plain-suspended"), free_bytes=free)
    ask = context(taken, "resume", device_bytes=holding(taken, held), reserved={gpu_uuid(taken): reserved})
    return [finding.evidence for finding in blocking(evaluate(ask))]


def test_room_on_a_gpu_to_the_byte() -> None:
    assert coming_back(4 * GIB) == []
    assert len(coming_back(4 * GIB - 1)) == 1
    assert coming_back(5 * GIB, reserved=GIB) == []
    (evidence,) = coming_back(5 * GIB, reserved=2 * GIB)
    assert "5.0 GiB free, 2.0 GiB of it reserved for other restores, and it needs 4.0 GiB" in evidence


def test_the_sum_over_what_comes_back_to_one_gpu() -> None:
    taken = with_gpus(recording("two-processes"), free_bytes=5 * GIB)
    taken = changed(taken, device_files=(), device_mappings=())
    (finding,) = blocking(evaluate(context(taken, "resume", device_bytes=holding(taken, 3 * GIB, 3 * GIB))))
    assert finding.pid is None and "the 2 need 6.0 GiB" in finding.evidence
    apart = holding(taken, 3 * GIB, 3 * GIB)
    apart[taken.targets[1]] = {gpu_uuid(taken, 1): 3 * GIB}
    assert blocking(evaluate(context(taken, "resume", device_bytes=apart))) == []


@pytest.mark.parametrize("sizes", [{}, None])
def test_what_was_not_recorded_blocks(sizes: Optional[Dict[str, Optional[int]]]) -> None:
    taken = recording("plain-suspended")
    known = {} if sizes is None else {target(taken).pid: sizes}
    finding = the_only(evaluate(context(taken, "resume", device_bytes=known)), "vram_short")
    assert "was not recorded" in finding.evidence and "upper limit" in finding.remedy
    assert coming_back(100 * GIB, held=None) == [finding.evidence]


def test_a_gpu_that_is_gone() -> None:
    taken = recording("plain-suspended")
    sizes = {target(taken).pid: {"GPU-ffffffff-0000-4000-8000-000000000000": GIB}}
    finding = the_only(evaluate(context(taken, "resume", device_bytes=sizes)), "vram_short")
    assert finding.option == "" and "which this host does not have" in finding.evidence


def test_one_that_is_on_its_gpu_needs_no_room() -> None:
    taken = with_gpus(recording("plain"), free_bytes=0)
    assert blocking(evaluate(context(taken, "resume"))) == []


# Who


def test_root_and_owner_may() -> None:
    taken = changed(recording("plain"), uid=1000)
    assert blocking(evaluate(context(taken, uid=0))) == []
    assert blocking(evaluate(context(taken, uid=1000))) == []
    finding = the_only(evaluate(context(taken, uid=1001)), "other_owner")
    assert finding.evidence == "it belongs to user 1000, and this runs as user 1001"


def test_a_forked_child_names_its_parent() -> None:
    taken = recording("fork")
    finding = the_only(evaluate(context(taken)), "not_cuda")
    assert finding.pid == taken.targets[1] and f"Name PID {taken.targets[0]}" in finding.remedy
    orphan = changed(taken, parent=1)
    assert the_only(evaluate(context(orphan)), "not_cuda").remedy == "Leave it out"
