# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_preflight on real hosts: what it says of a host and its processes is what cuda_checkpoint then meets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system.hosts import Host, host
from tests.system.lab import Lab, Workload, labs
from tests.system.playing import Result, Task, cuda, play

MIB = 1 << 20
# What every test host lacks for dump: its sysctls are read-only, and its kernel lets programs use io_uring.
USUAL = {"criu_check", "io_uring_allowed", "store_unknown"}
# Warnings about what can't be seen from a test host: control groups above its own, and shared GPU memory.
UNSEEN = {"cgroup_memory", "cuda_ipc_possible"}
PYNVML = "/usr/lib/python3/dist-packages/pynvml.py"


def preflight(pids: object = None, **options: Any) -> Task:
    """A task that may fail."""
    arguments = {**({} if pids is None else {"pids": pids}), **options}
    return {"name": "preflight", "gpufleet.checkpoint.gpu_preflight": arguments, "ignore_errors": True}


def ids(result: Result, pid: int | None = None, severity: str = "", capability: str = "") -> set[str]:
    return {
        one["id"]
        for one in result.data["findings"]
        if one["pid"] == pid
        and (not severity or one["severity"] == severity)
        and (not capability or capability in one["capabilities"])
    }


def finding(result: Result, identifier: str) -> dict[str, Any]:
    """The first one with this id."""
    found = [one for one in result.data["findings"] if one["id"] == identifier]
    assert found, result
    return dict(found[0])


def ready(result: Result) -> dict[str, bool]:
    return {name: one["ready"] for name, one in result.data["capabilities"].items()}


# A host that is fit


def test_a_fit_host_with_a_plain_process_is_ready_and_nothing_happens_to_it(lab: Lab) -> None:
    job, other = lab.start(Workload(vram=64, gpu=1), Workload(vram=16))
    before, journal = lab.look(job, other), lab.host.sh("ls -A /var/lib/gpufleet 2>/dev/null; :")
    (result,) = lab.play(preflight([job.pid], store="/var/lib/gpufleet/images", window=3600))
    result.ok(changed=False)
    assert ready(result) == {"suspend": True, "dump": True, "migrate": True} and result.data["ready"]
    assert not ids(result, severity="blocking") and ids(result) <= USUAL
    assert ids(result, job.pid) <= UNSEEN
    told = result.data["host"]
    assert told["driver"]["version"] == told["driver"]["library_version"] == "580.159.04"
    assert told["driver"]["measured"] and told["backend"] == "libcuda" and told["root"] and told["nvml"]
    assert told["criu"]["version"] == lab.host.sh("criu --version | head -n 1").split()[-1]
    process = result.processes[job.pid]
    assert len(result.processes) == 1 and process["device_bytes"] >= 64 * MIB and not process["suspended"]
    assert [gpu["index"] for gpu in process["gpus"]] == [1]
    disk = result.data["capacity"]["disk"]
    assert disk["needed_bytes"] >= 64 * MIB and disk["available_bytes"] > disk["needed_bytes"]
    assert lab.look(job, other)[job.pid]["start"] == before[job.pid]["start"]
    assert not lab.stands_still(job, other)
    assert lab.host.sh("ls -A /var/lib/gpufleet 2>/dev/null; :") == journal


def test_without_a_choice_every_cuda_process_is_looked_at(lab: Lab) -> None:
    jobs = lab.start(Workload(), Workload(gpu=1), Workload())
    everyone, some, nobody = lab.play(
        preflight(), preflight(select={"gpus": ["1"]}), preflight(select={"executable": "/nonexistent"})
    )
    assert set(everyone.ok().processes) == {job.pid for job in jobs}
    assert list(some.ok().processes) == [jobs[1].pid]
    assert nobody.ok().processes == {} and nobody.data["estimate"]["image_bytes"] == 0


def test_the_module_says_beforehand_what_cuda_checkpoint_refuses(lab: Lab) -> None:
    group = lab.host.sh("d=/sys/fs/cgroup/memory/preflight; mkdir -p $d 2>/dev/null && echo $d || :")
    if group:
        lab.host.sh(f"echo {80 * MIB} >{group}/memory.limit_in_bytes")
    path = group or "/sys/fs/cgroup/preflight"
    if not group:
        lab.host.sh(f"mkdir -p {path}; echo {80 * MIB} >{path}/memory.max")
    ranks = lab.start(Workload("nccl", options=("--ranks", "2"), siblings=("rank1",)))
    plain, polling, managed, export, tight, stopped = lab.start(
        Workload(),
        Workload("polling"),
        Workload("managed"),
        Workload("vmm_export"),
        Workload(vram=96, cgroups=(path,)),
        Workload(),
    )
    lab.host.run("kill", "-STOP", str(stopped.pid))
    expected = {
        plain.pid: "",
        polling.pid: "",
        managed.pid: "uvm_managed",
        export.pid: "vmm_export",
        tight.pid: "cgroup_memory",
        stopped.pid: "stopped_or_frozen",
        **{rank.pid: "nccl_communicator" for rank in ranks},
    }
    pids = list(expected)
    together, *alone = lab.play(
        preflight(pids, fail_on="never"),
        *[task for pid in pids for task in (preflight([pid]), cuda("checkpointed", [pid], check=True))],
    )
    lab.host.run("kill", "-CONT", str(stopped.pid))
    together.ok(changed=False)
    for number, (pid, hazard) in enumerate(expected.items()):
        found = ids(together, pid, "blocking", "suspend")
        assert found == ({hazard} if hazard else set()), together.data["findings"]
        assert together.processes[pid]["ready"]["suspend"] is not bool(hazard)
        said, met = alone[2 * number], alone[2 * number + 1]
        assert said.failed is met.failed is bool(hazard), (said, met)
        if hazard:
            said.refused("Not ready for suspend.", f"PID {pid} ")
            assert said.data["capabilities"]["suspend"]["blocking"] == [hazard]
            assert finding(said, hazard)["pid"] == pid
            assert finding(said, hazard)["reference"].endswith(f"#{hazard}")
    lab.end(*ranks, plain, polling, managed, export, tight, stopped)
    lab.host.sh(f"rmdir {path}")


def test_consent_is_taken_as_cuda_checkpoint_takes_it(lab: Lab) -> None:
    job = lab.one("vmm_export")
    refused, allowed, wrong = lab.play(
        preflight([job.pid]), preflight([job.pid], allow=["vmm_export"]), preflight(allow=["vmm"])
    )
    refused.refused("Override: allow: [vmm_export]")
    assert "vmm_export" in allowed.ok().data["capabilities"]["suspend"]["warnings"]
    wrong.refused("allow", "'vmm'")


def test_what_was_suspended_is_known_and_its_speed_is_used(lab: Lab) -> None:
    job = lab.one(vram=600)
    before, suspended, after = lab.play(preflight([job.pid]), cuda("checkpointed", [job.pid]), preflight())
    suspended.ok(changed=True)
    held = suspended.processes[job.pid]["device_bytes"]
    assert before.ok().processes[job.pid]["device_bytes"] == held
    told = after.ok().processes[job.pid]
    assert told["suspended"] and told["parked"] and told["device_bytes"] == held and "suspend" not in told["seconds"]
    assert told["image_bytes"] >= 600 * MIB, "the simulated context takes no host memory"
    assert after.data["estimate"]["rates"]["suspend"]["measured_steps"] >= 1
    assert sum(gpu["needed_bytes"] for gpu in after.data["capacity"]["gpus"]) == held
    assert after.data["capacity"]["memory"]["needed_bytes"] == 0
    intruder = lab.one(vram=600)
    (short,) = lab.play(preflight([job.pid]))
    short.refused("GPU", f"PID {job.pid}")
    assert ids(short, job.pid, "blocking") == {"vram_short"}
    lab.end(intruder)
    resumed, again = lab.play(cuda("running", [job.pid]), preflight([job.pid]))
    resumed.ok(changed=True)
    assert again.ok().data["estimate"]["rates"]["resume"]["measured_steps"] >= 1
    assert not again.processes[job.pid]["suspended"]


def test_what_fails_the_task_is_the_operators_choice(lab: Lab) -> None:
    required = {"capabilities": ["suspend", "dump"]}
    blocking, warning, never, missing, unwanted = lab.play(
        preflight(**required),
        preflight(fail_on="warning", **required),
        preflight(fail_on="never", **required),
        preflight(criu="/nonexistent/criu", **required),
        preflight(criu="/nonexistent/criu"),
    )
    blocking.ok(changed=False)
    warning.refused("Ready, but with warnings, for dump.", "io_uring", "`store`")
    assert warning.data["ready"]
    never.ok()
    missing.refused("Not ready for dump.", "/nonexistent/criu is no executable file", "Install CRIU 4.0 or later")
    assert not missing.data["ready"] and ready(missing) == {"suspend": True, "dump": False, "migrate": False}
    assert unwanted.ok().data["ready"] and not unwanted.data["capabilities"]["dump"]["ready"]


def test_room_and_time_are_compared_with_what_would_be_moved(lab: Lab) -> None:
    lab.host.sh("mkdir -p /run/small && mount -t tmpfs -o size=20m,mode=700 none /run/small")
    job = lab.one(vram=64)
    try:
        (result,) = lab.play(
            preflight([job.pid], store="/run/small", window=0.001, capabilities=["suspend", "dump", "migrate"])
        )
    finally:
        lab.host.sh("umount /run/small")
    result.refused("Not ready for dump and migrate.", "/run/small has 20 MiB free")
    assert {"disk_short", "store_volatile", "window_short"} <= ids(result)
    assert finding(result, "disk_short")["capabilities"] == ["dump", "migrate"]


def test_bad_options_are_told(lab: Lab) -> None:
    job = lab.one()
    gone, text, both, window, gpu = lab.play(
        preflight([4194303]),
        preflight(["abc"]),
        preflight([job.pid], select={"all": True}),
        preflight(window=-1),
        preflight(select={"gpus": ["7"]}),
    )
    gone.refused("there is no process 4194303")
    text.refused("pids[0]", "'abc'")
    both.refused("mutually exclusive")
    window.refused("window", "More than 0")
    gpu.refused("select.gpus", "7")


def test_another_user_is_told_what_it_can_not_see(lab: Lab) -> None:
    lab.host.sh("id viewer >/dev/null 2>&1 || useradd -m -s /bin/sh viewer")
    own, foreign = lab.start(Workload(user="viewer"), Workload())
    as_viewer = {
        "become": True,
        "become_user": "viewer",
        "become_method": "ansible.builtin.su",
        "vars": {"ansible_remote_tmp": "/tmp/viewer", "ansible_become_flags": "-"},
    }
    mine, theirs = lab.play(
        {**preflight([own.pid], journal="/home/viewer/j.db"), **as_viewer},
        {
            **preflight([own.pid, foreign.pid], journal="/home/viewer/j.db", capabilities=["suspend", "dump"]),
            **as_viewer,
        },
    )
    assert "not_root" in ids(mine.ok()) and mine.data["host"]["criu"]["check"] is None
    theirs.refused("Not ready for suspend and dump.", f"PID {foreign.pid}", "CRIU needs root")
    assert ids(theirs, foreign.pid) == {"other_owner"} and ids(theirs, own.pid, "blocking") == set()
    lab.host.sh("rm -rf /home/viewer/j.db* /tmp/viewer")


# Hosts that lack something


@pytest.fixture(scope="module")
def bare() -> Iterator[Host]:
    """Without a GPU, a driver, pynvml."""
    with host("--gpus", "0") as one:
        yield one


def test_a_host_without_gpu_driver_nvml_and_criu_gets_a_true_report(bare: Host) -> None:
    (result,) = play(bare.fleet, preflight(criu="criu-of-nobody", capabilities=["suspend", "dump", "migrate"]))
    result.refused(
        "Not ready for suspend and dump and migrate.", "NVIDIA's kernel module is not loaded", "criu-of-nobody"
    )
    assert {"driver_missing", "no_gpu", "nvml_missing", "criu_missing"} <= ids(result, severity="blocking")
    assert not {"driver_too_old", "no_backend", "unparked", "driver_mismatch", "persistence_off"} & ids(result)
    assert result.data["gpus"] == [] and result.processes == {}
    told = result.data["host"]
    assert told["driver"] == {
        "version": None,
        "library": None,
        "library_version": None,
        "measured": False,
        "features": [],
    }
    assert told["backend"] is None and told["nvml"] is False and told["architecture"] == "x86_64"


@contextmanager
def one_lab(simulator: Path, driver: str) -> Iterator[Lab]:
    """A host with this driver and one GPU, watched."""
    with labs(simulator, "--gpus", "1", "--vram", "512", "--driver", driver) as (only,):
        with only.watched() as lab:
            yield lab


@pytest.mark.parametrize(
    ("driver", "blocking", "readiness", "features"),
    [
        ("535", {"driver_too_old"}, (False, False, False), set()),
        ("550", {"unparked", "no_device_map"}, (False, False, False), {"toggle"}),
        ("555", {"no_device_map"}, (True, True, False), {"toggle", "actions"}),
        ("590", set(), (True, True, True), {"device_map", "launch_job"}),
    ],
)
def test_each_driver_is_judged_by_what_it_brings(
    simulator: Path, driver: str, blocking: set[str], readiness: tuple[bool, ...], features: set[str]
) -> None:
    with one_lab(simulator, driver) as lab:
        job = lab.one()
        plain, allowed = lab.play(
            preflight([job.pid], capabilities=["suspend", "dump", "migrate"], fail_on="never"),
            preflight([job.pid], allow=["unparked"], fail_on="never"),
        )
        assert ids(plain.ok(), severity="blocking") == blocking, plain
        assert tuple(ready(plain).values()) == readiness
        assert features <= set(plain.data["host"]["driver"]["features"])
        assert plain.data["host"]["driver"]["measured"] is False
        assert ready(allowed.ok())["suspend"] is (driver != "535")


def test_what_is_missing_or_wrong_on_a_host_is_found_and_the_rest_reported(simulator: Path) -> None:
    with one_lab(simulator, "570") as lab:
        job = lab.one()
        library = "/usr/lib/x86_64-linux-gnu/libcuda.so"
        everything = {"capabilities": ["suspend", "dump", "migrate"], "fail_on": "never"}

        lab.host.sh(f"mv {PYNVML} {PYNVML}.away; rm -rf {Path(PYNVML).parent}/__pycache__/pynvml*")
        without, choosing = lab.play(preflight(**everything), preflight(select={"gpus": ["0"]}))
        lab.host.sh(f"mv {PYNVML}.away {PYNVML}")
        assert "nvml_missing" in ids(without.ok(), severity="blocking")
        assert list(without.processes) == [job.pid] and without.processes[job.pid]["device_bytes"] is None
        (gpu,) = without.data["gpus"]
        assert gpu["uuid"].startswith("GPU-") and gpu["name"] == "NVIDIA H200" and gpu["free_bytes"] is None
        assert without.data["host"]["driver"]["version"] == "570.195.03"
        choosing.refused("select.gpus", "NVML does not answer")

        lab.host.sh(f"cp {library}.570.195.03 {library}.570.211.01; ln -sfn libcuda.so.570.211.01 {library}.1")
        (mixed,) = lab.play(preflight(**everything))
        lab.host.sh(f"ln -sfn libcuda.so.570.195.03 {library}.1; rm {library}.570.211.01")
        assert "driver_mismatch" in ids(mixed.ok(), severity="blocking")
        assert "570.211.01" in finding(mixed, "driver_mismatch")["evidence"]

        (mended,) = lab.play(preflight(**everything))
        assert ids(mended.ok(), severity="blocking") == {"no_device_map"}
