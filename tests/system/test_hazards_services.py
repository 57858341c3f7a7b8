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

from tests.system.hosts import ROOT
from tests.system.lab import Job, Lab, labs
from tests.system.playing import Result, Task, cuda

WORK = "/var/lib/lab"
PROGRAM = "/usr/local/bin/gpusim-workload"
OPENER = "/usr/local/bin/opener"
CONTAINER = "ab" * 32
# What of a control group can't be seen from inside a test host.
UNSEEN = {"cgroup_memory", "stopped_or_frozen", "cuda_ipc_possible"}
QUIET = ("StandardOutput=null", "StandardError=null")


@pytest.fixture(scope="module")
def services(simulator: Path) -> Iterator[Lab]:
    with labs(simulator, "--gpus", "1", "--vram", "2048", init="systemd") as (only,):
        only.host.put(OPENER, (ROOT / "tests/recorder/opener.py").read_text(), "755")
        only.host.run("mkdir", "-p", WORK)
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
    with services.watched() as lab:
        plain = service(lab, "plain", *QUIET)
        expected = {
            plain: set(),
            service(lab, "watched", *QUIET, "WatchdogSec=300"): {"systemd_watchdog"},
            service(lab, "lasting", *QUIET, "Restart=always"): {"systemd_restart"},
            service(lab, "talking"): {"journald_stdio"},
            service(lab, "private", *QUIET, "PrivateTmp=yes"): {"private_mounts"},
            service(lab, "pressed", *QUIET, "ManagedOOMMemoryPressure=kill"): {"systemd_oomd"},
        }
        before = lab.look(*expected)
        told, alone = lab.play(preflight(*expected), preflight(plain))
        told.ok(changed=False)
        assert {job.name: of(told, job) for job in expected} == {job.name: ids for job, ids in expected.items()}
        after = lab.look(*expected)
        assert {pid: seen["start"] for pid, seen in after.items()} == {
            pid: seen["start"] for pid, seen in before.items()
        }
        names = {job.name: job for job in expected}
        assert "watchdog of 300 s" in words(told, names["watched"], "systemd_watchdog")
        assert "lasting.service has Restart=always" in words(told, names["lasting"], "systemd_restart")
        assert "descriptor 1" in words(told, names["talking"], "journald_stdio")
        assert alone.processes[plain.pid]["ready"] == {"suspend": True, "dump": True, "migrate": True}
        assert told.processes[names["lasting"].pid]["ready"] == {"suspend": True, "dump": False, "migrate": False}
        assert told.processes[names["watched"].pid]["ready"]["suspend"] is False
        assert told.processes[names["pressed"].pid]["ready"]["dump"] is True


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


def test_what_a_process_has_open_is_found(services: Lab) -> None:
    with services.watched() as lab:
        expected = {
            script(lab, "teed", f"WORKLOAD 2>&1 | tee {WORK}/teed.log >/dev/null"): {"external_pipe"},
            keeping(lab, "volatile", "file", "/dev/shm/state"): {"volatile_file"},
            keeping(lab, "rotated", "rotated", f"{WORK}/train.log"): {"rotated_log"},
            keeping(lab, "locked", "flock", f"{WORK}/lock"): {"file_lock"},
            keeping(lab, "deleted", "deleted", f"{WORK}/gone", "2097152"): {"deleted_file"},
            keeping(lab, "connected", "tcp", "22"): {"tcp_established"},
            keeping(lab, "ring", "ring"): {"io_uring"},
            keeping(lab, "listening", "listening"): set(),
            keeping(lab, "kept", "file", f"{WORK}/kept"): set(),
        }
        (told,) = lab.play(preflight(*expected))
        assert {job.name: of(told.ok(), job) for job in expected} == {job.name: ids for job, ids in expected.items()}
        (teed,) = [job for job in expected if job.name == "teed"]
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
        typed = f"script --quiet --command '{' '.join(workload('typed'))}' /dev/null"
        lab.host.run("setsid", "-f", "sh", "-c", f"sleep 1000 | {typed} >/dev/null 2>&1")
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
