# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs a process, and what it has open: each found by its own name on a host with systemd, before anything is
touched, by gpu_preflight and, where it concerns a suspend, by cuda_checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import socket_credentials
from tests.system.hosts import ROOT
from tests.system.lab import Job, Lab, labs
from tests.system.playing import Result, Task, cuda

WORK = "/run/lab"
DISK = "/var/lib/lab-kept"
PROGRAM = "/usr/local/bin/gpusim-workload"
OPENER = "/usr/local/bin/opener"
CONTAINER = "ab" * 32
# What of a control group can't be seen from inside a test host.
UNSEEN = {"cgroup_memory", "stopped_or_frozen", "cuda_ipc_possible"}
QUIET = ("StandardOutput=null", "StandardError=null")
#: The test hosts have CRIU 4.1.1, and the kernel of this machine.
SOCKETS = set() if socket_credentials() else {"socket_option"}


@pytest.fixture(scope="module")
def services(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--gpus", "1", "--vram", "2048", init="systemd") as (only,):
        only.host.put(OPENER, (ROOT / "tests/recorder/opener.py").read_text(), "755")
        only.host.run("mkdir", "-p", DISK)
        yield only


def preflight(*jobs: Job, **options: Any) -> Task:
    wanted = {"pids": [job.pid for job in jobs], "capabilities": ["suspend", "dump"], "fail_on": "never", **options}
    return {"name": "preflight", "gpufleet.checkpoint.gpu_preflight": wanted, "ignore_errors": True}


def job_of(lab: Lab, name: str) -> Job:
    out = f"{WORK}/{name}"
    pid = int(lab.host.sh(f"until [ -s {out} ]; do sleep 0.02; done; cat {out}.pid"))
    job = Job(name, pid, "")
    lab.jobs.append(job)
    return job


def workload(name: str) -> list[str]:
    return [PROGRAM, "--vram", "16", "--out", f"{WORK}/{name}"]


def service(lab: Lab, name: str, *properties: str, before: tuple[str, ...] = ()) -> Job:
    """A unit. before: what starts the program."""
    options = [f"--property={line}" for line in properties]
    lab.host.run("rm", "-f", f"{WORK}/{name}")
    lab.host.run("systemd-run", "--quiet", f"--unit={name}", "--collect", *options, *before, *workload(name))
    return job_of(lab, name)


def script(lab: Lab, name: str, text: str, environment: str = "") -> Job:
    """As somebody would start it by hand; "WORKLOAD" is the program with its arguments."""
    lab.host.run("rm", "-f", f"{WORK}/{name}")
    line = text.replace("WORKLOAD", " ".join(workload(name)))
    lab.host.sh(f"{environment} setsid -f sh -c '{line}' </dev/null >/dev/null 2>&1")
    return job_of(lab, name)


def keeping(lab: Lab, name: str, what: str, *arguments: str) -> Job:
    return service(lab, name, *QUIET, before=("/usr/bin/python3", OPENER, what, *arguments, "--"))


def of(result: Result, job: Job, severity: str = "") -> set[str]:
    found = [one for one in result.data["findings"] if one["pid"] == job.pid]
    return {one["id"] for one in found if not severity or one["severity"] == severity} - UNSEEN


def words(result: Result, job: Job, identifier: str) -> str:
    (one,) = [one for one in result.data["findings"] if (one["pid"], one["id"]) == (job.pid, identifier)]
    return " ".join(str(one[key]) for key in ("subject", "evidence", "reason", "remedy"))


def test_each_service_is_found_with_its_own_finding(services: Lab) -> None:
    asked: dict[str, tuple[tuple[str, ...], set[str]]] = {
        "plain": (QUIET, set()),
        "watched": ((*QUIET, "WatchdogSec=300"), {"systemd_watchdog"}),
        "lasting": ((*QUIET, "Restart=always"), {"systemd_restart"}),
        "talking": ((), {"journald_stdio"}),
        "private": ((*QUIET, "PrivateTmp=yes"), {"private_mounts"}),
        "pressed": ((*QUIET, "ManagedOOMMemoryPressure=kill"), {"systemd_oomd"}),
        "limited": ((*QUIET, "RuntimeMaxSec=300"), {"systemd_runtime"}),
        "daylong": ((*QUIET, "RuntimeMaxSec=86400"), {"systemd_runtime"}),
    }
    with services.watched() as lab:
        jobs = {name: service(lab, name, *properties) for name, (properties, _ids) in asked.items()}
        before = lab.look(*jobs.values())
        told, alone = lab.play(preflight(*jobs.values()), preflight(jobs["plain"]))
        told.ok(changed=False)
        assert {name: of(told, job) for name, job in jobs.items()} == {name: ids for name, (_p, ids) in asked.items()}
        after = lab.look(*jobs.values())
        assert [seen["start"] for seen in after.values()] == [seen["start"] for seen in before.values()]
        assert "watchdog of 300 s" in words(told, jobs["watched"], "systemd_watchdog")
        assert "lasting.service has Restart=always" in words(told, jobs["lasting"], "systemd_restart")
        assert "descriptor 1" in words(told, jobs["talking"], "journald_stdio")
        assert alone.processes[jobs["plain"].pid]["ready"] == {"suspend": True, "dump": True, "migrate": True}
        assert told.processes[jobs["lasting"].pid]["ready"] == {"suspend": True, "dump": False, "migrate": False}
        assert told.processes[jobs["watched"].pid]["ready"]["suspend"] is False
        assert told.processes[jobs["pressed"].pid]["ready"]["dump"] is True
        assert "of which 4 min are left" in words(told, jobs["limited"], "systemd_runtime")
        assert of(told, jobs["daylong"], "warning") == {"systemd_runtime"}
        assert told.processes[jobs["limited"].pid]["ready"]["suspend"] is False


def test_a_watchdog_refuses_a_suspend_unless_it_is_allowed(services: Lab) -> None:
    with services.watched() as lab:
        job = service(lab, "watched", *QUIET, "WatchdogSec=300")
        refused, allowed, back = lab.play(
            cuda("checkpointed", [job.pid]),
            cuda("checkpointed", [job.pid], allow=["systemd_watchdog"]),
            cuda("running", [job.pid]),
        )
        refused.refused("watched.service has a watchdog of 300 s", "Override: allow: [systemd_watchdog]")
        allowed.ok(changed=True)
        back.ok(changed=True)


def test_the_time_of_a_unit_refuses_a_suspend_until_it_is_lengthened_as_the_finding_says(services: Lab) -> None:
    with services.watched() as lab:
        job = service(lab, "limited", *QUIET, "RuntimeMaxSec=25")
        (refused,) = lab.play(cuda("checkpointed", [job.pid]))
        refused.refused("limited.service", "RuntimeMaxSec=", "Override: allow: [systemd_runtime]")
        place = "/run/systemd/system/limited.service.d/runtime.conf"
        assert place in refused.msg
        lab.host.put(place, "[Service]\nRuntimeMaxSec=infinity\n")
        lab.host.run("systemctl", "daemon-reload")
        (done,) = lab.play(cuda("checkpointed", [job.pid]))
        done.ok(changed=True)
        lab.host.sh("while [ $(systemctl show -P ActiveEnterTimestampMonotonic limited) -gt "
                    "$(awk '{ print int(($1 - 27) * 1000000) }' /proc/uptime) ]; do sleep 0.5; done")  # fmt: skip
        assert lab.is_parked(job)
        lab.play(cuda("running", [job.pid]))[0].ok(changed=True)
        lab.end(job)
        lab.host.sh(f"rm -r $(dirname {place}); systemctl daemon-reload")


def test_what_a_process_has_open_is_found(services: Lab) -> None:
    asked: dict[str, tuple[tuple[str, ...], set[str]]] = {
        "volatile": (("file", "/dev/shm/state"), {"volatile_file"}),
        "rotated": (("rotated", f"{DISK}/train.log"), {"rotated_log"}),
        "locked": (("flock", f"{DISK}/lock"), {"file_lock"}),
        "deleted": (("deleted", f"{DISK}/gone", "2097152"), {"deleted_file"}),
        "connected": (("tcp", "22"), {"tcp_established", *SOCKETS}),
        "ring": (("ring",), {"io_uring"}),
        "listening": (("listening",), SOCKETS),
        "kept": (("file", f"{DISK}/kept"), set()),
    }
    with services.watched() as lab:
        teed = script(lab, "teed", f"WORKLOAD 2>&1 | tee {DISK}/teed.log >/dev/null")
        jobs = {name: keeping(lab, name, *opened) for name, (opened, _ids) in asked.items()}
        (told,) = lab.play(preflight(teed, *jobs.values()))
        assert of(told.ok(), teed) == {"external_pipe"}
        assert {name: of(told, job) for name, job in jobs.items()} == {name: ids for name, (_o, ids) in asked.items()}
        assert "(tee)" in words(told, teed, "external_pipe") and "SIGPIPE" in words(told, teed, "external_pipe")
        assert told.processes[teed.pid]["ready"] == {"suspend": True, "dump": False, "migrate": False}


def test_a_log_that_logrotate_may_rotate_is_a_warning(services: Lab) -> None:
    with services.watched() as lab:
        job = keeping(lab, "logging", "file", "/var/log/train.log")
        (told,) = lab.play(preflight(job))
        assert of(told.ok(), job) == of(told, job, "warning") == {"rotated_log"}


def test_jobs_of_a_scheduler_and_containers_are_found(services: Lab) -> None:
    with services.watched() as lab:
        root = lab.host.sh("[ -e /sys/fs/cgroup/cgroup.procs ] && echo /sys/fs/cgroup || echo /sys/fs/cgroup/unified")
        group = f"{root}/docker-{CONTAINER}.scope"
        slurm = "SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_JOB_END_TIME=$(($(date +%s) + 7260))"
        step = script(lab, "step", "exec WORKLOAD", slurm)
        lab.host.run("mkdir", "-p", group)
        try:
            boxed = script(lab, "boxed", f"echo $$ >{group}/cgroup.procs; exec unshare --mount WORKLOAD")
            (told,) = lab.play(preflight(step, boxed))
            assert of(told.ok(), step) == {"slurm_step"} and of(told, step, "blocking") == {"slurm_step"}
            evidence = [one["evidence"] for one in told.data["findings"] if one["id"] == "slurm_step"]
            assert any("ends in 2 h" in one for one in evidence) and len(evidence) == 2
            assert told.processes[step.pid]["ready"] == {"suspend": True, "dump": False, "migrate": False}
            assert of(told, boxed, "blocking") == {"container"}
            assert f"docker checkpoint create {CONTAINER[:12]}" in words(told, boxed, "container")
        finally:
            lab.end(*lab.jobs)
            lab.host.run("rmdir", group)


def test_a_worker_of_gunicorn_is_not_parked_and_a_terminal_is_told(services: Lab) -> None:
    with services.watched() as lab:
        lab.host.put("/usr/local/bin/gunicorn", '#!/bin/sh\n"$@" &\nwait\n', "755")
        worker = script(lab, "worker", "gunicorn WORKLOAD")
        lab.host.run("rm", "-f", f"{WORK}/typed")
        typed = f'script --quiet --command "{" ".join(workload("typed"))}" /dev/null'
        lab.host.sh(f"setsid -f sh -c 'sleep 1000 | {typed}' </dev/null >/dev/null 2>&1")
        by_hand = job_of(lab, "typed")
        told, refused = lab.play(preflight(worker, by_hand), cuda("checkpointed", [worker.pid]))
        assert of(told.ok(), worker, "blocking") == {"park_unsafe_parent"}
        assert {"controlling_tty", "park_unsafe_parent"} <= of(told, by_hand)
        assert told.processes[by_hand.pid]["ready"]["suspend"] is True
        refused.refused(f"PID {worker.pid}", "gunicorn's master", "--timeout 0")
        lab.end(worker, by_hand)
        lab.host.sh("pkill -x sleep; rm /usr/local/bin/gunicorn; :")


def test_without_systemctl_units_are_unknown_and_said_to_be(services: Lab) -> None:
    with services.watched() as lab:
        job = service(lab, "plain", *QUIET)
        lab.host.sh("mv /usr/bin/systemctl /usr/bin/systemctl.away")
        try:
            (told,) = lab.play(preflight(job))
        finally:
            lab.host.sh("mv /usr/bin/systemctl.away /usr/bin/systemctl")
        assert of(told.ok(), job) == of(told, job, "warning") == {"systemd_watchdog", "systemd_restart"}
        assert "systemctl can't be started" in words(told, job, "systemd_watchdog")
