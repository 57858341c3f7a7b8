# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One boot of a host: a child of the supervisor that becomes PID 1 (init none) or systemd-nspawn (init systemd)."""

from __future__ import annotations

import os
import signal
import stat
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from . import cgroups, linux, network
from .errors import FleetError
from .names import Host
from .state import HostDirectory

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# A host may not load modules into the machine's kernel. CAP_SYS_TIME stays, though the clock is the machine's too:
# criu restore needs it to set the offsets of a time namespace.
_CAP_SYS_MODULE = 16


@dataclass(frozen=True)
class Boot:
    host: Host
    directory: HostDirectory
    cgroup: cgroups.HostCgroup
    boot_id: str


class _Pipe:
    def __init__(self) -> None:
        self.read, self.write = os.pipe2(os.O_CLOEXEC)

    def close(self) -> None:
        for fd in (self.read, self.write):
            try:
                os.close(fd)
            except OSError:
                pass


def start(boot: Boot, child: Callable[[Boot, Callable[[], None]], NoReturn], new_pid_namespace: bool) -> int:
    """Fork, give the child its cgroup and its cable, and return its PID once it has become what it should be.

    The child runs `child(boot, wait)`: it leaves its old namespaces, calls wait() for its network, and executes.
    """
    said, go = _Pipe(), _Pipe()
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    if new_pid_namespace:
        linux.unshare(linux.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _be_child(boot, child, said, go)
    if new_pid_namespace:
        linux.setns(own, linux.CLONE_NEWPID)
    os.close(own)
    os.close(said.write)
    os.close(go.read)
    try:
        boot.cgroup.enter_host(pid)
        os.write(go.write, b"1")
        answer = os.read(said.read, 4096)
        if answer == b"network":
            network.connect(boot.host, pid, boot.directory.cut.exists())
            os.write(go.write, b"2")
            answer = os.read(said.read, 4096)
        if answer:
            raise FleetError(f"{boot.host.name}: {answer.decode(errors='replace')}")
        return pid
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        said.close()
        go.close()


def _be_child(boot: Boot, child: Callable[[Boot, Callable[[], None]], NoReturn], said: _Pipe, go: _Pipe) -> NoReturn:
    try:
        os.close(said.read)
        os.close(go.write)
        linux.die_with_parent()

        def wait() -> None:
            if not os.read(go.read, 1):
                os._exit(1)

        def network_please() -> None:
            os.write(said.write, b"network")
            wait()

        wait()
        child(boot, network_please)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        os.write(said.write, f"could not start: {error}".encode())
    os._exit(1)


def _api_file_systems(boot: Boot) -> None:
    safe = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", "proc", "proc", safe)
    linux.mount("sysfs", "sys", "sysfs", safe | linux.MS_RDONLY)
    linux.mount("tmpfs", "run", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=20%")
    linux.mount("tmpfs", "tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777,size=50%")
    linux.mount("tmpfs", "dev", "tmpfs", linux.MS_NOSUID, "mode=755,size=4m")
    for directory in ("run/lock", "dev/pts", "dev/shm", "dev/mqueue"):
        os.mkdir(directory)
    os.chmod("run/lock", 0o1777)
    pts = "newinstance,ptmxmode=0666,mode=620,gid=5"
    linux.mount("devpts", "dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, pts)
    linux.mount("tmpfs", "dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")
    linux.mount("mqueue", "dev/mqueue", "mqueue", safe)


def _device_nodes() -> None:
    for name, major, minor in (
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("tty", 5, 0),
    ):
        os.mknod(f"dev/{name}", stat.S_IFCHR, os.makedev(major, minor))
        os.chmod(f"dev/{name}", 0o666)
    for name, target in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        os.symlink(target, f"dev/{name}")


def _protect_machine() -> None:
    """Sysctls of the whole machine are read-only, as systemd-nspawn has it; those of the network are the host's."""
    read_only = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    for name in ("proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus"):
        if os.path.exists(name):
            linux.mount(name, name, None, linux.MS_BIND)
            linux.mount("none", name, None, read_only)
    linux.mount("proc/sys/net", "proc/sys/net", None, linux.MS_BIND)
    linux.mount("none", "proc/sys/net", None, read_only & ~linux.MS_RDONLY)
    linux.drop_from_bounding_set(_CAP_SYS_MODULE)


def _boot_id(boot: Boot) -> None:
    path = Path("run/boot_id")
    path.write_text(f"{boot.boot_id}\n")
    path.chmod(0o444)
    linux.mount("run/boot_id", "proc/sys/kernel/random/boot_id", None, linux.MS_BIND)
    path.unlink()


def _cgroup_file_systems(boot: Boot) -> None:
    """Where an ordinary host has them; in this cgroup namespace each shows the host's own subtree only."""
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    v1 = boot.cgroup.hierarchies.v1
    if "memory" not in v1:
        linux.mount("cgroup2", "sys/fs/cgroup", "cgroup2", flags)
        return
    linux.mount("tmpfs", "sys/fs/cgroup", "tmpfs", flags, "mode=755,size=1m")
    for name, fstype, data in (("unified", "cgroup2", None), ("memory", "cgroup", "memory")):
        os.mkdir(f"sys/fs/cgroup/{name}")
        linux.mount(fstype, f"sys/fs/cgroup/{name}", fstype, flags, data)


def init_none(boot: Boot, wait_for_network: Callable[[], None]) -> NoReturn:
    """Become PID 1 of the host; nothing from outside stays open or mounted."""
    from .seed import INIT

    linux.unshare(
        linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWNET | linux.CLONE_NEWCGROUP
    )
    boot.cgroup.leave_root_for("init", 0)
    linux.sethostname(boot.host.name)
    wait_for_network()
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    os.chdir(boot.directory.root)
    _api_file_systems(boot)
    _device_nodes()
    _protect_machine()
    _boot_id(boot)
    _cgroup_file_systems(boot)
    linux.pivot_root(".", ".")  # the old root is now mounted over the new one
    linux.umount(".", linux.MNT_DETACH)
    os.chdir("/")
    os.setsid()
    os.umask(0o022)
    null = os.open("/dev/null", os.O_RDONLY)
    log = os.open("/var/log/init.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for fd in (null, log):
        os.set_inheritable(fd, False)
    linux.default_signals()
    python = "/usr/bin/python3"
    os.execve(python, [python, "-I", "-S", INIT], {"PATH": PATH, "HOME": "/", "LANG": "C.UTF-8"})


def nspawn_command(boot: Boot) -> list[str]:
    return [
        "systemd-nspawn",
        "--quiet",
        "--register=no",
        "--keep-unit",
        f"--machine={boot.host.global_name}",
        f"--hostname={boot.host.name}",
        f"--directory={boot.directory.root}",
        "--network-namespace-path=/proc/self/ns/net",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--console=pipe",
        "--capability=all",
        "--drop-capability=CAP_SYS_MODULE",
        "--boot",
        "systemd.log_target=journal",
        "systemd.show_status=no",
    ]


def init_systemd(boot: Boot, wait_for_network: Callable[[], None]) -> NoReturn:
    """Become systemd-nspawn in a network namespace of the host's own."""
    linux.unshare(linux.CLONE_NEWNET)
    wait_for_network()
    environment = {
        "PATH": PATH,
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
        "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
        "SYSTEMD_SECCOMP": "0",  # nspawn's filter refuses calls that CRIU needs, such as kcmp
    }
    command = nspawn_command(boot)
    linux.default_signals()
    os.execvpe(command[0], command, environment)
