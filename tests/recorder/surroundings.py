# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Workloads that are tied to what is around them: files, pipes, sockets, a terminal, a parent, a unit, a container."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Callable, Dict, List, Tuple

from tests.conformance.conform.workload import Workload

from . import fuse, opener
from .bench import Bench, Unfit

Start = Callable[[Bench], List[int]]
#: Label: (about, start).
KINDS: Dict[str, Tuple[str, Start]] = {}

MIB = 1 << 20
CONTAINER = "c0ffee00" * 8
OPENER = Path(opener.__file__).resolve()
_NEW_MOUNTS = 0x00020000


def kind(label: str, about: str) -> Callable[[Start], Start]:
    def register(start: Start) -> Start:
        KINDS[label] = (about, start)
        return start

    return register


def keeps(b: Bench, what: str, *arguments: object) -> List[int]:
    """A process that keeps open what `opener` opens."""
    return [b.start(wrap=[sys.executable, str(OPENER), what, *map(str, arguments), "--"]).pid]


@kind("file", "A file on a disk, open for writing: nothing speaks against it.")
def file(b: Bench) -> List[int]:
    return keeps(b, "file", b.work / "state.bin", 4096)


@kind("deleted-file", "A deleted file of 2 MiB.")
def deleted_file(b: Bench) -> List[int]:
    return keeps(b, "deleted", b.work / "state.bin", 2 * MIB)


@kind("deleted-small", "A deleted file of 4 KiB.")
def deleted_small(b: Bench) -> List[int]:
    return keeps(b, "deleted", b.work / "state.bin", 4096)


@kind("file-lock", "A lock on a file (flock).")
def file_lock(b: Bench) -> List[int]:
    return keeps(b, "flock", b.work / "lock")


@kind("file-lock-posix", "A lock on a file (lockf).")
def file_lock_posix(b: Bench) -> List[int]:
    return keeps(b, "lockf", b.work / "lock")


@kind("volatile-file", "A file in /dev/shm.")
def volatile_file(b: Bench) -> List[int]:
    path = Path("/dev/shm/gpufleet-recorder")
    b.at_the_end(path.unlink)
    return keeps(b, "file", path, 4096)


@kind("nfs-file", "A file of a file system that another program serves (FUSE, as of a file server).")
def nfs_file(b: Bench) -> List[int]:
    point = b.work / "served"
    point.mkdir()
    try:
        server = fuse.Server(point)
    except OSError as error:
        raise Unfit(f"FUSE can't be mounted here: {error.strerror}") from None
    b.at_the_end(server.end)

    return keeps(b, "read", point / fuse.NAME)


@kind("rotated-log", "A log that was rotated away.")
def rotated_log(b: Bench) -> List[int]:
    return keeps(b, "rotated", b.work / "train.log")


@kind("log", "A log in /var/log.")
def log_file(b: Bench) -> List[int]:
    path = Path("/var/log/gpufleet-recorder.log")
    b.at_the_end(path.unlink)
    return keeps(b, "file", path, 4096)


@kind("tee", "Output to a program outside its tree: | tee.")
def tee(b: Bench) -> List[int]:
    reader = subprocess.Popen(["tee", str(b.work / "copy")], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert reader.stdin is not None
    into = reader.stdin

    def end() -> None:
        reader.kill()
        reader.wait()

    b.at_the_end(end)
    one = b.start(prepare=lambda: void(os.dup2(into.fileno(), 1)))
    into.close()
    return [one.pid]


@kind("pipe", "A pipe with both ends in the process.")
def pipe(b: Bench) -> List[int]:
    return keeps(b, "pipe")


@kind("unix-socket", "A unix socket with the other end outside.")
def unix_socket(b: Bench) -> List[int]:
    path = b.work / "socket"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)
    b.at_the_end(server.close)
    found = keeps(b, "unix", path)
    b.at_the_end(server.accept()[0].close)
    return found


@kind("tcp", "A TCP connection with another program.")
def tcp(b: Bench) -> List[int]:
    server = socket.create_server(("127.0.0.1", 0))
    b.at_the_end(server.close)
    return keeps(b, "tcp", server.getsockname()[1])


@kind("tcp-listening", "A listening TCP socket.")
def tcp_listening(b: Bench) -> List[int]:
    return keeps(b, "listening")


@kind("io-uring", "An io_uring.")
def io_uring(b: Bench) -> List[int]:
    try:
        os.close(opener.ring())
    except OSError as error:
        raise Unfit(f"io_uring: {error.strerror}") from None
    return keeps(b, "ring")


@kind("terminal", "In the foreground of a terminal.")
def terminal(b: Bench) -> List[int]:
    master, slave = os.openpty()
    b.at_the_end(lambda: os.close(master))
    one = b.start(prepare=lambda: void(fcntl.ioctl(slave, termios.TIOCSCTTY, 0)))
    os.close(slave)
    return [one.pid]


@kind("gunicorn", "A worker of gunicorn.")
def gunicorn(b: Bench) -> List[int]:
    script = b.work / "gunicorn"
    script.write_text('#!/bin/sh\n"$@" &\nwait\n')
    script.chmod(0o755)
    one = b.start(wrap=[str(script)])
    pidfile = one.beside(".pid")
    worker = Workload("worker", int(pidfile.read_text()), one.out, one.mib)
    b.at_the_end(lambda: worker.signal(9))
    return [worker.pid]


@kind("profiler", "A profiler is loaded into it.")
def profiler(b: Bench) -> List[int]:
    library = b.work / "libToolsInjection64.so"
    shutil.copy("/lib/x86_64-linux-gnu/libm.so.6", library)
    return [b.start(env={"LD_PRELOAD": str(library)}).pid]


@kind("slurm", "A step of a Slurm job, with an hour left.")
def slurm(b: Bench) -> List[int]:
    end = str(int(time.time()) + 3600)
    return [b.start(env={"SLURM_JOB_ID": "90210", "SLURM_STEP_ID": "0", "SLURM_JOB_END_TIME": end}).pid]


@kind("slurm-cgroup", "A step of a Slurm job, by its control group.")
def slurm_cgroup(b: Bench) -> List[int]:
    b.group("freezer", "slurmstepd.scope")
    b.group("freezer", "slurmstepd.scope/job_90210")
    return [b.start(group=b.group("freezer", "slurmstepd.scope/job_90210/step_0")).pid]


@kind("private-mounts", "In a mount namespace of its own.")
def private_mounts(b: Bench) -> List[int]:
    return [b.start(prepare=own_mounts).pid]


@kind("container", "In a control group and a mount namespace as Docker makes them.")
def container(b: Bench) -> List[int]:
    about_container(b, {"Config": {"Labels": {}}})
    return [b.start(group=b.group("freezer", f"docker-{CONTAINER}.scope"), prepare=own_mounts).pid]


@kind("container-probe", "The same, a task of a swarm with a health check.")
def container_probe(b: Bench) -> List[int]:
    check = {"Test": ["CMD", "curl", "-f", "http://localhost/"]}
    about_container(b, {"Config": {"Healthcheck": check, "Labels": {"com.docker.swarm.service.id": "x"}}})
    return [b.start(group=b.group("freezer", f"docker-{CONTAINER}.scope"), prepare=own_mounts).pid]


@kind("kubernetes", "In a control group as Kubernetes makes them.")
def kubernetes(b: Bench) -> List[int]:
    b.group("freezer", "kubepods.slice")
    return [b.start(group=b.group("freezer", f"kubepods.slice/cri-containerd-{CONTAINER}.scope")).pid]


@kind("unit", "A service of systemd whose output goes nowhere.")
def unit(b: Bench) -> List[int]:
    return service(b, "StandardOutput=null", "StandardError=null")


@kind("watchdog", "A service with a watchdog.")
def watchdog(b: Bench) -> List[int]:
    return service(b, "StandardOutput=null", "StandardError=null", "WatchdogSec=90")


@kind("runtime", "A service that may be active for a day.")
def runtime(b: Bench) -> List[int]:
    return service(b, "StandardOutput=null", "StandardError=null", "RuntimeMaxSec=86400")


@kind("runtime-short", "A service that may be active for two minutes.")
def runtime_short(b: Bench) -> List[int]:
    return service(b, "StandardOutput=null", "StandardError=null", "RuntimeMaxSec=120")


@kind("restart", "A service that systemd starts anew.")
def restart(b: Bench) -> List[int]:
    return service(b, "StandardOutput=null", "StandardError=null", "Restart=always")


@kind("journald", "A service whose output goes to the journal.")
def journald(b: Bench) -> List[int]:
    return service(b)


@kind("oomd", "A service that systemd-oomd may kill.")
def oomd(b: Bench) -> List[int]:
    return service(b, "StandardOutput=null", "StandardError=null", "ManagedOOMMemoryPressure=kill")


def void(_value: object) -> None:
    """For a lambda whose value nobody wants."""


def own_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")


def about_container(b: Bench, config: Dict[str, object]) -> None:
    """Where Docker keeps what it knows."""
    where = Path("/var/lib/docker/containers") / CONTAINER
    if where.parent.parent.exists():
        raise Unfit("Docker is here")
    b.at_the_end(lambda: shutil.rmtree(where.parent.parent))
    where.mkdir(parents=True)
    (where / "config.v2.json").write_text(json.dumps(config))


def service(b: Bench, *properties: str) -> List[int]:
    """A unit of systemd, gone again afterwards."""
    if not Path("/run/systemd/system").is_dir():
        raise Unfit("systemd does not run this host")
    name = "gpufleet-recorder.service"
    out = b.work / "w"
    more = [f"--property={one}" for one in properties]
    argv = [b.program, "--vram", "128", "--gpu", "0", "--kind", "plain", "--out", str(out)]
    subprocess.run(["systemd-run", "--quiet", "--collect", f"--unit={name}", *more, *argv], check=True)

    def end() -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["systemctl", "kill", "--signal=KILL", name], check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["systemctl", "stop", name], check=False, stderr=subprocess.DEVNULL)

    b.at_the_end(end)
    deadline = time.monotonic() + b.ready
    while not out.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} was not ready in {b.ready:g} s")
        time.sleep(0.05)
    one = Workload("w", int(out.with_name("w.pid").read_text()), out, 128)
    one.wait_ready(b.ready)
    return [one.pid]
