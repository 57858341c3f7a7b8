# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CRIU refuses to dump."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tests.system.inside.criu.tools import (
    FOR_EVER,
    IMAGES,
    OLD_KERNEL,
    PLACE,
    WORK,
    Told,
    criu,
    dump,
    file,
    group,
    mounted,
    node,
    until,
    victim,
)

_LIBC = "import ctypes, mmap, os; libc = ctypes.CDLL(None, use_errno=True)\n"
_URING = _LIBC + "fd = libc.syscall(425, 4, ctypes.create_string_buffer(120)); assert fd >= 0\n"
_IN_CHILD = """import os, time
if not os.fork():
    {}
    open('ready.new', 'w').write(str(os.getpid()))
    os.rename('ready.new', 'ready')
    time.sleep(600)
"""
_WAIT = "while not os.path.exists('ready'): time.sleep(0.01)\n"


def _child(code: str) -> str:
    """A program whose child does this."""
    return _IN_CHILD.format(code.replace("\n", "\n    ")) + _WAIT


def _of(who: str, told: Told) -> Told:
    """Whom CRIU complains of."""
    return told if who == "root" else {**told, "pid": int((WORK / "ready").read_text())}


# Devices


def cuda() -> Told:
    """A CUDA process that is not suspended."""
    out = WORK / "cuda"
    one = subprocess.Popen(
        ["gpusim-workload", "--out", str(out), "--vram", "16"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: out.exists() and out.stat().st_size)
        return dump(one.pid)
    finally:
        one.kill()
        one.wait()


def device_mapping(who: str = "root") -> Told:
    """A mapped device. A block device is the only kind that a test host can map; CRIU takes it for any other."""
    code = "import mmap, os; fd = os.open('/dev/nvidia7', os.O_RDONLY)\n"
    code += "kept = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ); os.close(fd)"
    with node("/dev/nvidia7", stat.S_IFBLK, 7, 0), victim(code if who == "root" else _child(code)) as one:
        return _of(who, dump(one))


def device_file() -> Told:
    with node("/dev/nvidia7", stat.S_IFCHR, 10, 229), victim("import os; os.open('/dev/nvidia7', os.O_RDWR)") as one:
        return dump(one)


def io_uring() -> Told:
    with victim(_URING) as one:
        return dump(one)


def io_uring_mapped() -> Told:
    with victim(_URING + "kept = mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, offset=0)") as one:
        return dump(one)


def userfaultfd() -> Told:
    with victim(_LIBC + "assert libc.syscall(323, 1) >= 0") as one:
        return dump(one)


# Sockets


def unix_stream(*options: str) -> Told:
    """Half of a connection to a server with a name."""
    path = WORK / "server.socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with victim(f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r})") as one:
            peer, _address = server.accept()
            with peer:
                return dump(one, *options)


def unix_pair(*options: str) -> Told:
    """Half of a pair: neither has a name."""
    ours, theirs = socket.socketpair()
    with ours, theirs, victim(pass_fds=(theirs.fileno(),)) as one:
        return dump(one, *options)


def unix_datagram() -> Told:
    path = WORK / "log.socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        code = f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect({str(path)!r})"
        with victim(code) as one:
            return dump(one)


def network_lock() -> Told:
    """The test host has no iptables."""
    return tcp("--tcp-established", before=OLD_KERNEL)


def tcp(*options: str, before: tuple[str, ...] = ()) -> Told:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with victim(f"import socket; s = socket.create_connection({server.getsockname()!r})") as one:
            peer, _address = server.accept()
            with peer:
                return dump(one, *options, before=before)


def tcp_listening() -> Told:
    with victim("import socket; s = socket.create_server(('127.0.0.1', 0))") as one:
        return dump(one)


def tcp_in_flight() -> Told:
    """A connection that its program has not accepted yet."""
    with victim("import socket; s = socket.create_server(('127.0.0.1', 47123))") as one:
        with socket.create_connection(("127.0.0.1", 47123)):
            return dump(one)


# Terminals and sessions

_JOB = """import fcntl, subprocess, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
job = subprocess.Popen(['sleep', '600'])
print(job.pid, flush=True)
job.wait()
"""


def terminal_job() -> Told:
    """As a job of a shell in a terminal."""
    master, slave = os.openpty()
    shell = subprocess.Popen(
        [sys.executable, "-c", _JOB],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        start_new_session=True,
        cwd=WORK,
    )
    assert shell.stdout
    job = int(shell.stdout.readline())
    try:
        return dump(job)
    finally:
        os.kill(job, signal.SIGKILL)
        shell.wait()
        os.close(master)
        os.close(slave)


def terminal_leader() -> Told:
    """It leads a session on a terminal, as under ssh -t or tmux."""
    master, slave = os.openpty()
    try:
        with victim("import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)", stdin=slave) as one:
            return dump(one)
    finally:
        os.close(master)
        os.close(slave)


def session_outside() -> Told:
    """No terminal, but the session of somebody else."""
    with victim(lead=False) as one:
        return dump(one)


# Files


def ghost_limit() -> Told:
    path = file("scratch.bin", b"x" * (4 << 20))
    with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})") as one:
        return dump(one)


def link_remap(how: str = "") -> Told:
    """Open under a name that is gone; it has another. leftover: a dump that was killed has left its own name."""
    path = file("state.bin")
    os.link(path, path.with_name("other-name.bin"))
    with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})") as one:
        if not how:
            return dump(one)
        for number in range(64):
            file(f"link_remap.{number}")
        return dump(one, "--link-remap")


def file_lock(who: str = "root") -> Told:
    path = file("lock")
    code = f"import fcntl; kept = open({str(path)!r}, 'r+b'); fcntl.flock(kept, fcntl.LOCK_EX)"
    with victim(code if who == "root" else _child(code)) as one:
        return _of(who, dump(one))


def lost_mount() -> Told:
    """A file on a mount that was detached."""
    with mounted(WORK / "gone") as place:
        (place / "data").touch()
        with victim(f"kept = open({str(place / 'data')!r})") as one:
            subprocess.run(["umount", "-l", str(place)], check=True)
            try:
                return dump(one)
            finally:
                subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)


def overmounted() -> Told:
    with mounted(WORK / "over") as place:
        (place / "data").touch()
        with victim(f"kept = open({str(place / 'data')!r})") as one:
            subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
            try:
                return dump(one)
            finally:
                subprocess.run(["umount", "-l", str(place)], check=True)


# Namespaces


def external_mount() -> Told:
    """A mount namespace of its own, with a mount from outside."""
    script = f"mkdir -p {WORK}/bound && mount --bind /usr/share {WORK}/bound"
    with victim(f"import subprocess; subprocess.run({script!r}, shell=True, check=True)", before="unshare -m") as one:
        return dump(one)


def nested_namespace() -> Told:
    """A child of it has a host name of its own."""
    with victim(_child("import os; os.unshare(os.CLONE_NEWUTS)")) as one:
        return _of("child", dump(one))


def sysv_shm() -> Told:
    code = (
        "libc.shmat.restype = ctypes.c_void_p\n"
        "number = libc.shmget(0, 4096, 0o1600)\n"
        "assert libc.shmat(number, None, 0) != ctypes.c_void_p(-1).value\n"
        "libc.shmctl(number, 0, None)\n"
    )
    with victim(_LIBC + code) as one:
        return dump(one)


# The host, and the caller


def no_space() -> Told:
    with mounted(PLACE / "small") as place, victim("kept = bytearray(b'x') * (8 << 20)") as one:
        return dump(one, where=place)


def no_directory() -> Told:
    with victim() as one:
        return dump(one, where=PLACE / "missing")


def timeout() -> Told:
    """A thread in vfork can't be stopped: here its child waits for somebody to write into a FIFO."""
    fifo = WORK / "fifo"
    os.mkfifo(fifo)
    code = f"import os\nactions = [(os.POSIX_SPAWN_OPEN, 5, {str(fifo)!r}, os.O_RDONLY, 0)]"
    with victim(code, late="os.posix_spawn('/bin/true', ['true'], {}, file_actions=actions)") as one:
        until(lambda: "State:\tD" in Path(f"/proc/{one.pid}/status").read_text())
        try:
            return dump(one, "--timeout", "1")
        finally:
            for child in Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)


def frozen() -> Told:
    """It is stopped by a freezer, so it does nothing for CRIU, either."""
    with group("unified") as place, victim() as one:
        (place / "cgroup.procs").write_text(str(one.pid))
        (place / "cgroup.freeze").write_text("1")
        until(lambda: "frozen 1" in (place / "cgroup.events").read_text())
        try:
            return dump(one, seconds=FOR_EVER)
        finally:
            (place / "cgroup.freeze").write_text("0")
            one.end()


def not_root() -> Told:
    with victim() as one:
        return dump(one, before=("setpriv", "--reuid=65534", "--clear-groups"))


def no_ptrace() -> Told:
    with victim() as one:
        return dump(one, before=("capsh", "--drop=cap_sys_ptrace", "--shell=/usr/bin/env", "--"))


def traced() -> Told:
    with victim() as one:
        assert ctypes.CDLL(None).ptrace(0x4206, one.pid, 0, 0) == 0
        return dump(one)


def zombie() -> Told:
    with victim() as one:
        one.process.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        return dump(one)


def no_process() -> Told:
    with victim() as one:
        pid = one.pid
    return dump(pid)


def died(word: str, name: str) -> Told:
    """SIGKILL once this word is in the log. A file of the image is a FIFO: there CRIU waits until it is dead."""
    IMAGES.mkdir()
    fifo = IMAGES / name
    os.mkfifo(fifo)
    log = PLACE / "dump.log"
    done = threading.Event()
    with victim("kept = bytearray(b'x') * (64 << 20)") as one:

        def end() -> None:
            until(lambda: log.exists() and re.search(word, log.read_text(errors="replace")))
            one.process.kill()
            until(lambda: "State:\tZ" in Path(f"/proc/{one.pid}/status").read_text())
            read = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            while not done.wait(0.005):
                with suppress(BlockingIOError):
                    os.read(read, 1 << 20)
            os.close(read)

        ender = threading.Thread(target=end)
        ender.start()
        told = criu("dump", IMAGES, "--leave-stopped", "-t", str(one.pid), seconds=10)
        done.set()
        ender.join()
        return {**told, "pid": one.pid}


def track_mem() -> Told:
    """This kernel has no tracking of dirty memory."""
    with victim() as one:
        return dump(one, "--track-mem")


def well() -> Told:
    with victim() as one:
        return dump(one)
