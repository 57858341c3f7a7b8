# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes are meant."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Dict, Optional, Tuple

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._gpu import GpuProcess, GpuSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_host
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import (
    Identity,
    ProcessSnapshot,
    read_process,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._select import CRITERIA, SelectError, places, select
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot

ZERO, ONE = "GPU-00000000-0000-4000-8000-000000000000", "GPU-00000000-0000-4000-8000-000000000001"
DOCKER = "3f1c" + "0" * 60
POD = "3f1d" + "0" * 60


OWN = read_process(os.getpid())


def process(pid: int, **fields: Any) -> ProcessSnapshot:
    assert OWN is not None
    defaults: Dict[str, Any] = {
        "identity": Identity(pid, 1, "boot"),
        "uvm_socket": True,
        "uid": 1000,
        "name": "python3",
        "executable": "/usr/bin/python3.12",
        "command": ("python3", "train.py", "--lr", "1"),
        "cgroup_paths": ("/",),
        "environment": {},
    }
    return replace(OWN, **{**defaults, **fields})


def gpu(index: int, uuid: str, *pids: int) -> GpuSnapshot:
    users = tuple(GpuProcess(pid, 1, "compute") for pid in pids)
    return GpuSnapshot(index, uuid, "NVIDIA H200", 9, 1, 8, False, True, users)


PROCESSES = (
    process(10),
    process(11, uid=0, executable="/opt/app/bin/serve (deleted)", command=("serve", "--model", "x")),
    process(12, cgroup_paths=("/", "/system.slice/job.service", "/system.slice/my\\x2djob.service")),
    process(13, cgroup_paths=("/", f"/system.slice/docker-{DOCKER}.scope")),
    process(14, cgroup_paths=(f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{POD}.scope",)),
    process(15, cgroup_paths=("/system.slice/slurmstepd.scope/job_123/step_0/user/task_0",)),
    process(16, cgroup_paths=("/slurm/uid_1000/job_124/step_batch/task_0",)),
    process(17, environment={"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "4"}),
    process(18, cgroup_paths=("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope",)),
    process(19, uvm_socket=False),  # no CUDA
    process(20, uvm_socket=False),  # suspended under a driver that shows no socket; the journal knows
)
SNAPSHOT = Snapshot(read_host(), (gpu(0, ZERO, 10, 11, 999), gpu(1, ONE, 12)), PROCESSES)
HELD = {20: {ONE: 5}, 12: {ZERO: 7}}
EVERYBODY = (10, 11, 12, 13, 14, 15, 16, 17, 18, 20)


def chosen(**criteria: Any) -> Tuple[int, ...]:
    return select(criteria, SNAPSHOT, HELD, {"ann": 1000, "root": 0}.get)


@pytest.mark.parametrize(
    "criteria, pids",
    [
        ({"all": True}, EVERYBODY),
        ({"gpus": [0]}, (10, 11, 12)),
        ({"gpus": ["0", ONE]}, (10, 11, 12, 20)),
        ({"gpus": [ONE]}, (12, 20)),
        ({"users": ["root"]}, (11,)),
        ({"users": ["ann", 0]}, EVERYBODY),
        ({"users": ["0"]}, (11,)),
        ({"users": [4242]}, ()),
        ({"command": "train\\.py --lr"}, tuple(pid for pid in EVERYBODY if pid != 11)),
        ({"command": "^serve"}, (11,)),
        ({"executable": "serve"}, (11,)),
        ({"executable": "python3.*"}, tuple(pid for pid in EVERYBODY if pid != 11)),
        ({"executable": "/opt/*/serve"}, (11,)),
        ({"executable": "opt/*/serve"}, ()),
        ({"cgroup": "/system.slice"}, (12, 13, 15)),
        ({"cgroup": "system.slice/"}, (12, 13, 15)),
        ({"cgroup": "/system.slice/job"}, ()),
        ({"cgroup": "/"}, EVERYBODY),
        ({"unit": "job"}, (12,)),
        ({"unit": "job.service"}, (12,)),
        ({"unit": "my-job"}, (12,)),
        ({"unit": "app-x.scope"}, (18,)),
        ({"unit": "user@1000.service"}, (18,)),
        ({"unit": "system.slice"}, (12, 13, 15)),
        ({"slurm_job": 123}, (15, 17)),
        ({"slurm_job": "123.0"}, (15,)),
        ({"slurm_job": "123.4"}, (17,)),
        ({"slurm_job": "124.batch"}, (16,)),
        ({"slurm_job": "12"}, ()),
        ({"container": DOCKER}, (13,)),
        ({"container": DOCKER[:12]}, (13,)),
        ({"container": "ffff"}, ()),
        ({"container": DOCKER[:3]}, ()),
        ({"all": True, "gpus": [0], "users": ["ann"]}, (10, 12)),
        ({"all": False, "gpus": [0], "users": None}, (10, 11, 12)),
    ],
)
def test_select(criteria: Dict[str, Any], pids: Tuple[int, ...]) -> None:
    assert chosen(**criteria) == pids


@pytest.mark.parametrize(
    "criteria, words",
    [
        ({}, "select: it has no criterion"),
        ({"all": False}, "select: it has no criterion"),
        ({"gpu": [0]}, "select: gpu is no criterion. Known: all, cgroup, command"),
        ({"gpus": [2]}, "select.gpus: there is no GPU '2'. This host has 0 (GPU-"),
        ({"gpus": []}, "select.gpus: [] is no list with something in it"),
        ({"gpus": "0"}, "select.gpus: '0' is no list"),
        ({"gpus": [True]}, "select.gpus: True"),
        ({"users": ["bob"]}, "select.users: this host knows no user 'bob'"),
        ({"command": "("}, "select.command: '(' is no regular expression"),
        ({"command": ""}, "select.command: ''"),
        ({"command": "a{99999999999999}"}, "select.command: 'a{99999999999999}' is no regular expression"),
        ({"command": "(" * 3000 + ")" * 3000}, "select.command: '((("),
        ({"users": ["\xb2"]}, "select.users: this host knows no user '\xb2'"),
        ({"users": ["9" * 5000]}, "select.users: this host knows no user '999"),
        ({"slurm_job": "\xb2"}, "select.slurm_job: '\xb2' is no job"),
        ({"slurm_job": "abc"}, "select.slurm_job: 'abc' is no job"),
        ({"slurm_job": "12."}, "select.slurm_job: '12.' is no job"),
    ],
)
def test_what_can_not_be_meant(criteria: Dict[str, Any], words: str) -> None:
    with pytest.raises(SelectError) as caught:
        chosen(**criteria)
    assert str(caught.value).startswith(words)
    assert str(caught.value) == f"{caught.value.argument}: {caught.value.seen}. {caught.value.allowed}"


def test_a_user_that_no_host_can_know() -> None:
    with pytest.raises(SelectError, match="this host knows no user"):
        select({"users": ["root\0"]}, Snapshot(read_host(), (), ()), {})


def test_an_abbreviation_that_fits_two_containers() -> None:
    twins = (
        process(1, cgroup_paths=(f"/docker/{DOCKER}",)),
        process(2, cgroup_paths=(f"/docker/{DOCKER[:-1]}1",)),
    )
    with pytest.raises(SelectError, match="'3f1c' fits 3f1c"):
        select({"container": "3f1c"}, Snapshot(read_host(), (), twins), {})
    assert select({"container": DOCKER}, Snapshot(read_host(), (), twins), {}) == (1,)


@pytest.mark.parametrize(
    "paths, unit, job, container",
    [
        (("/",), None, None, None),
        (("/", "/system.slice/job.service"), "job.service", None, None),
        (("/user.slice/user-0.slice/session-1.scope",), "session-1.scope", None, None),
        (("/user.slice",), "user.slice", None, None),
        ((f"/docker/{DOCKER}",), None, None, DOCKER),
        ((f"/system.slice/docker-{DOCKER}.scope",), f"docker-{DOCKER}.scope", None, DOCKER),
        ((f"/machine.slice/libpod-{DOCKER}.scope/container",), f"libpod-{DOCKER}.scope", None, DOCKER),
        ((f"/kubepods/burstable/pod4ac2/{POD}",), None, None, POD),
        (("/machine.slice/systemd-nspawn@web.service/payload",), "systemd-nspawn@web.service", None, "web"),
        (("/machine.slice/machine-a\\x2db.scope",), "machine-a\\x2db.scope", None, "a-b"),
        (("/lxc.payload.web/init.scope",), "init.scope", None, "web"),
        (("/system.slice/n1_slurmstepd.scope/job_7/step_0/user/task_0",), "n1_slurmstepd.scope", "7", None),
        (("/slurm_n1/uid_0/job_8/step_batch",), None, "8", None),
        (("/jobs/job_9",), None, None, None),
    ],
)
def test_places(paths: Tuple[str, ...], unit: Optional[str], job: Optional[str], container: Optional[str]) -> None:
    group, *rest = places(process(1, cgroup_paths=paths))
    assert rest == [unit, job, container]
    assert group == max(paths, key=len)


def test_every_criterion_is_tested() -> None:
    tested = {name for mark in test_select.pytestmark for one in mark.args[1] for name in one[0]}
    assert tested == set(CRITERIA)
