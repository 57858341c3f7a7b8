# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every recorded process shows the hazards that it is known to have, and no other. Which those are was measured by
tests/conformance; a recording of a real GPU is held to the same table as one of the simulated driver."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Dict, Tuple

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import HAZARDS
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process_parse import (
    parse_maps,
    parse_stat,
    parse_status,
    sort_descriptors,
)
from tests.recorder.kinds import KINDS
from tests.recorder.recording import load
from tests.unit.plugins.hazards.helpers import RECORDINGS, SETS, SIMULATED, context, evaluate, recording

#: (hazard, severity, number of the target; None: about several).
Expected = Tuple[Tuple[str, str, object], ...]
NEAR = "cuda_ipc_possible"
UNSEEN = (("cgroup_memory", "warning"), ("stopped_or_frozen", "warning"))

SUSPEND: Dict[str, Expected] = {
    "plain": (),
    "plain-suspended": (),
    "plain-parked": (("stopped_or_frozen", "blocking", 0),),
    "second-gpu": (),
    "multi-gpu": (),
    "pinned": (),
    "vmm": (),
    "vmm-export": (("vmm_export", "blocking", 0),),
    "vmm-export-suspended": (),
    "managed": (("uvm_managed", "blocking", 0),),
    "managed-small": (("uvm_managed", "blocking", 0),),
    "ipc": ((NEAR, "warning", 0), (NEAR, "warning", 1)),
    "ipc-exported": (),
    "nccl-one-rank": (),
    "nccl-two-ranks": (
        ("nccl_communicator", "blocking", 0),
        ("nccl_communicator", "blocking", 1),
        (NEAR, "warning", 0),
        (NEAR, "warning", 1),
    ),
    "mps": (("mps_client", "blocking", 0),),
    "mps-beside": ((NEAR, "warning", 0),),
    "fork": (("not_cuda", "blocking", 1),),
    "two-processes": ((NEAR, "warning", 0), (NEAR, "warning", 1)),
    "stopped": (("stopped_or_frozen", "blocking", 0),),
    "frozen": (("stopped_or_frozen", "blocking", 0),),
    "traced": (("traced", "blocking", 0),),
    "cgroup-small": (("cgroup_memory", "blocking", 0),),
    "cgroup-roomy": (),
    "cgroup-shared": ((NEAR, "warning", 0), (NEAR, "warning", 1), ("cgroup_memory", "blocking", None)),
    "rlimit-data": (("host_memory", "blocking", 0),),
    "vram-short": (),
    "other-owner": (("other_owner", "blocking", 0),),
    "own": (),
    "no-cuda": (("not_cuda", "blocking", 0),),
    "zombie": (("not_cuda", "blocking", 0),),
    "torch": (),
    "torch-expandable-segments": (),
    "torch-suspended": (),
    "torch-nccl-one-rank": (),
    "torch-nccl-two-ranks": (
        ("nccl_communicator", "blocking", 0),
        ("nccl_communicator", "blocking", 1),
        (NEAR, "warning", 0),
        (NEAR, "warning", 1),
    ),
    "torch-loader": (("not_cuda", "blocking", 1),),
    "jax": (),
    "cupy": (),
    **dict.fromkeys(
        (
            "file",
            "deleted-file",
            "deleted-small",
            "file-lock",
            "file-lock-posix",
            "volatile-file",
            "nfs-file",
            "rotated-log",
            "log",
            "tee",
            "pipe",
            "unix-socket",
            "tcp",
            "tcp-listening",
            "io-uring",
            "private-mounts",
            "container",
            "unit",
            "restart",
            "journald",
        ),
        (),
    ),
    "terminal": (("park_unsafe_parent", "warning", 0),),
    "gunicorn": (("park_unsafe_parent", "blocking", 0),),
    "profiler": (("profiler_attached", "blocking", 0),),
    "slurm": (("slurm_step", "warning", 0),),
    "slurm-cgroup": (("slurm_step", "warning", 0),),
    "container-probe": (("container_probe", "blocking", 0),),
    "kubernetes": (("container_probe", "blocking", 0),),
    "watchdog": (("systemd_watchdog", "blocking", 0),),
    "runtime": (("systemd_runtime", "warning", 0),),
    "runtime-short": (("systemd_runtime", "blocking", 0),),
    "oomd": (("systemd_oomd", "warning", 0),),
}
#: Of images; what is not here shows nothing. Those that can't be suspended at all are in it, too.
DUMP: Dict[str, Expected] = {
    "fork": (("forked_gpu_child", "blocking", 0),),
    "torch-loader": (("forked_gpu_child", "blocking", 0),),
    "mps": (("external_unix_socket", "blocking", 0),),
    "nccl-two-ranks": (
        ("tcp_established", "blocking", 1),
        ("socket_option", "blocking", 0),
        ("socket_option", "blocking", 1),
        ("deleted_file", "warning", 0),
        ("deleted_file", "warning", 1),
    ),
    "other-owner": (("private_mounts", "warning", 0), ("files_unknown", "blocking", 0)),
    "no-cuda": (("external_pipe", "blocking", 0),),
    "deleted-file": (("deleted_file", "blocking", 0),),
    "deleted-small": (("deleted_file", "warning", 0),),
    "file-lock": (("file_lock", "blocking", 0),),
    "file-lock-posix": (("file_lock", "blocking", 0),),
    "volatile-file": (("volatile_file", "blocking", 0),),
    "nfs-file": (("nfs_file", "warning", 0),),
    "rotated-log": (("rotated_log", "blocking", 0),),
    "log": (("rotated_log", "warning", 0),),
    "tee": (("external_pipe", "blocking", 0),),
    "unix-socket": (("external_unix_socket", "blocking", 0),),
    "tcp": (("tcp_established", "blocking", 0), ("socket_option", "blocking", 0)),
    "tcp-listening": (("socket_option", "blocking", 0),),
    "io-uring": (("io_uring", "blocking", 0),),
    "terminal": (("controlling_tty", "blocking", 0),),
    "slurm": (("slurm_step", "blocking", 0),),
    "slurm-cgroup": (("slurm_step", "blocking", 0),),
    "private-mounts": (("private_mounts", "blocking", 0),),
    "container": (("container", "blocking", 0),),
    "container-probe": (("container", "blocking", 0),),
    "kubernetes": (("container", "blocking", 0),),
    "restart": (("systemd_restart", "blocking", 0),),
    "journald": (("journald_stdio", "blocking", 0),),
}
#: What a set of a real GPU shows otherwise: its MPS and NCCL are the real ones. While these four were taken, a rank of
#: torch-nccl-two-ranks was still there.
REAL_SUSPEND: Dict[str, Expected] = {
    label: (*SUSPEND[label], (NEAR, "warning", 0)) for label in ("mps", "tcp", "tcp-listening", "torch-loader")
}
REAL_SUSPEND["mps"] = REAL_SUSPEND["mps"][::-1]
REAL_DUMP: Dict[str, Expected] = {
    "mps": (("external_pipe", "blocking", 0), ("external_unix_socket", "blocking", 0)),
    "nccl-two-ranks": (("tcp_established", "blocking", 1),),
    "torch-nccl-one-rank": (("socket_option", "blocking", 0),),
    "torch-nccl-two-ranks": (
        ("tcp_established", "blocking", 1),
        ("socket_option", "blocking", 0),
        ("socket_option", "blocking", 1),
    ),
    "torch-loader": (
        ("forked_gpu_child", "blocking", 0),
        ("external_pipe", "blocking", 1),
        ("deleted_file", "warning", 0),
        ("deleted_file", "warning", 1),
    ),
}
RESUME: Dict[str, Expected] = {
    "plain-suspended": (),
    "plain-parked": (("stopped_or_frozen", "blocking", 0),),
    "vmm-export-suspended": (),
    "vram-short": (("vram_short", "blocking", 0),),
    "torch-suspended": (),
}
TAKEN = [(where, path.stem) for where in SETS for path in sorted((RECORDINGS / where).glob("*.json"))]


def seen(where: str, label: str, action: str) -> Expected:
    """Without the warnings that what is above a cgroup namespace can't be seen, which is the place's."""
    taken = recording(label, where)
    return tuple(
        (finding.id, finding.severity, None if finding.pid is None else taken.targets.index(finding.pid))
        for finding in evaluate(context(taken, action))
        if (finding.id, finding.severity) not in UNSEEN
    )


@pytest.mark.parametrize("where, label", TAKEN)
def test_suspend(where: str, label: str) -> None:
    expected = SUSPEND if where == SIMULATED else {**SUSPEND, **REAL_SUSPEND}
    assert seen(where, label, "suspend") == expected[label]


@pytest.mark.parametrize("where, label", TAKEN)
def test_dump(where: str, label: str) -> None:
    expected = DUMP if where == SIMULATED else {**DUMP, **REAL_DUMP}
    assert seen(where, label, "dump") == expected.get(label, ())


@pytest.mark.parametrize("where, label", [(where, label) for where, label in TAKEN if label in RESUME])
def test_resume(where: str, label: str) -> None:
    assert seen(where, label, "resume") == RESUME[label]


@pytest.mark.parametrize("where, label", TAKEN)
def test_lock_is_stopped_only_by_what_stops_a_lock(where: str, label: str) -> None:
    stops = {"other_owner", "not_cuda", "stopped_or_frozen", "traced", "nccl_communicator", "mps_client"}
    assert seen(where, label, "lock") == tuple(one for one in SUSPEND[label] if one[0] in stops)


@pytest.mark.parametrize("where", SETS)
def test_a_parked_process_is_no_stopped_one(where: str) -> None:
    taken = recording("plain-parked", where)
    assert evaluate(context(taken, "resume", parked=True)) == ()
    assert evaluate(context(taken, "suspend", parked=True)) == ()


@pytest.mark.parametrize("where", SETS)
def test_every_kind_was_recorded_or_says_why_not(where: str) -> None:
    missing = (RECORDINGS / where / "missing.txt").read_text().splitlines()
    assert all(": not here: " in line for line in missing), "a kind that broke is no recording"
    absent = {line.partition(":")[0] for line in missing}
    assert {label for there, label in TAKEN if there == where} | absent == set(KINDS)
    assert set(SUSPEND) == set(KINDS) and set(DUMP) <= set(KINDS)


def test_every_hazard_has_a_recorded_process_that_shows_it() -> None:
    shown = {one[0] for expected in (*SUSPEND.values(), *RESUME.values(), *DUMP.values()) for one in expected}
    # Both are settings of a whole machine, which others use.
    assert {hazard.id for hazard in HAZARDS} - shown == {"mig", "yama_ptrace"}


@pytest.mark.parametrize("where, label", TAKEN)
def test_what_the_kernel_said_and_what_was_read_agree(where: str, label: str) -> None:
    """The kernel's texts were recorded beside the snapshot, a moment apart."""
    taken = recording(label, where)
    for pid, raw in taken.raw.items():
        process = taken.snapshot.process(pid)
        assert process is not None
        stat, status = parse_stat(raw["stat"]), parse_status(raw["status"])
        assert stat is not None and stat.start_ticks == process.identity.start_ticks and stat.name == process.name
        assert int(status["PPid"]) == process.parent and int(status["Uid"].split()[0]) == process.uid
        if process.is_zombie:
            continue
        maps, descriptors = parse_maps("\n".join(raw["maps"])), sort_descriptors(raw["fd"])
        assert maps.devices == tuple((one.path, one.start, one.bytes) for one in process.device_mappings or ())
        assert maps.libraries == process.libraries
        assert descriptors.devices == process.device_files


@pytest.mark.parametrize("where, label", TAKEN)
def test_nothing_of_the_machine_is_in_it(where: str, label: str) -> None:
    text = (RECORDINGS / where / f"{label}.json").read_text()
    assert not re.search(r"/home/(?!user)|TOKEN|PASSWORD|gpufleet-recorder-\\w{8}/", text)
    assert recording(label, where).snapshot.host.boot_id == "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize("name", ["recorder", "kernel", "driver", "date", "commands", "raw"])
def test_a_recording_that_does_not_say_whence_it_comes_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    shutil.copy(RECORDINGS / SETS[-1] / "plain.json", path)
    assert load(path).targets
    data = json.loads(path.read_text())
    del data[name]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=f"lacks {name}"):
        load(path)


def test_a_recording_of_another_recorder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    data = json.loads((RECORDINGS / SETS[-1] / "plain.json").read_text())
    path.write_text(json.dumps({**data, "recorder": 99}))
    with pytest.raises(ValueError, match="taken by recorder 99"):
        load(path)
