# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a test host: makes CRIU refuse small programs, and tells its log.

    python3 criu_says.py NAME [ARGUMENT...]      one of the functions below; prints JSON: doing, log, status and what else there is to know

Nothing of it is left when it ends. What CRIU is told besides is what the collection tells it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# On a disk; images too large for it are put elsewhere by those that want this.
PLACE = Path("/var/lib/criu-says")
LIBC = ctypes.CDLL(None, use_errno=True)
SECONDS = 4.0
ALWAYS = ("-v4", "--manage-cgroups=ignore")
Told = dict[str, Any]


class Victim:
    """A Python program in a session of its own, with nothing open but /dev/null and what it opens. It stands in PLACE/work."""

    def __init__(
        self, code: str, *arguments: str, lead: bool = True, before: str = "", late: str = "pass", **options: Any
    ) -> None:
        ready, told = os.pipe()
        end = f"\nimport os, time\nos.write({told}, b'!'); os.close({told})\n{late}\nwhile True: time.sleep(60)\n"
        command = [*before.split(), sys.executable, "-c", code + end, *arguments]
        self.process = subprocess.Popen(
            command,
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.DEVNULL,
                "stderr": (PLACE / "victim.err").open("wb"),
                "start_new_session": lead,
                "pass_fds": (told, *options.pop("pass_fds", ())),
                "cwd": options.pop("cwd", PLACE / "work"),
                **options,
            },
        )
        os.close(told)
        with os.fdopen(ready, "rb") as stream:
            assert stream.read(1) == b"!", (PLACE / "victim.err").read_text()
        self.pid = self.process.pid

    def reap(self) -> None:
        self.process.wait(20)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.reap()


@contextmanager
def victim(code: str = "", *arguments: str, **options: Any) -> Iterator[Victim]:
    one = Victim(code, *arguments, **options)
    try:
        yield one
    finally:
        one.end()


def criu(
    action: str, images: Path, *options: str, before: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> Told:
    plugins = PLACE / "plugins"
    plugins.mkdir(exist_ok=True)
    log = PLACE / f"{action}.log"
    log.unlink(missing_ok=True)
    done = _finished(
        [*before, "criu", action, *ALWAYS, "--libdir", str(plugins), "-D", str(images), "-o", str(log), *options],
        env,
    )
    text = log.read_text(errors="replace") if log.exists() else ""
    return {"doing": action, "log": text + done[1], "status": done[0]}


def _finished(command: list[str], env: dict[str, str] | None) -> tuple[int | None, str]:
    """Status and what it said; None: it waits for ever, so it was killed."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
    )
    try:
        said, _ = process.communicate(timeout=SECONDS)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None, ""


def images() -> Path:
    path = PLACE / "images"
    path.mkdir()
    return path


def dump(pid: int, *options: str, **more: Any) -> Told:
    """A dump that goes wrong, as one of a tree that is to live on."""
    told = criu("dump", more.pop("where", None) or images(), "--leave-stopped", "-t", str(pid), *options, **more)
    return {**told, "pid": pid}


def dumped(one: Victim, *options: str) -> Path:
    """The images of it; it has ended."""
    where = images()
    told = criu("dump", where, "-t", str(one.pid), *options)
    assert told["status"] == 0, told["log"]
    one.reap()
    return where


def restore(one: Victim, *options: str, **more: Any) -> Told:
    """A restore; whoever comes back is killed."""
    told = criu("restore", PLACE / "images", "--restore-detached", *options, **more)
    if told["status"] in (0, None):
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
        while os.path.exists(f"/proc/{one.pid}"):
            time.sleep(0.01)
    return {**told, "pid": one.pid}


def file(name: str, data: bytes = b"0123456789") -> Path:
    path = PLACE / "work" / name
    path.write_bytes(data)
    return path


# Dump: what it holds


def device_mapping() -> Told:
    """A CUDA process that is not suspended."""
    out = PLACE / "work/cuda"
    one = subprocess.Popen(
        ["gpusim-workload", "--out", str(out), "--vram", "16"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not out.exists() or not out.stat().st_size:
            time.sleep(0.02)
        return dump(one.pid)
    finally:
        one.kill()
        one.wait()


def device_mapping_real() -> Told:
    """A device that is mapped: here a block device, the only kind that a test host can map."""
    node = Path("/dev/nvidia7")
    os.mknod(node, 0o600 | 0o060000, os.makedev(7, 0))
    code = (
        "import os, mmap; kept = mmap.mmap(os.open('/dev/nvidia7', os.O_RDONLY), 4096, mmap.MAP_SHARED, mmap.PROT_READ)"
    )
    try:
        with victim(code) as one:
            return dump(one.pid)
    finally:
        node.unlink()


def device_file() -> Told:
    """A character device that is open and not mapped."""
    node = Path("/dev/nvidia7")
    os.mknod(node, 0o600 | 0o020000, os.makedev(10, 229))
    try:
        with victim("import os; os.open('/dev/nvidia7', os.O_RDWR)") as one:
            return dump(one.pid)
    finally:
        node.unlink()


def io_uring() -> Told:
    code = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "fd = libc.syscall(425, 4, ctypes.create_string_buffer(120))\n"
        "assert fd >= 0, ctypes.get_errno()\n"
    )
    with victim(code) as one:
        return dump(one.pid)


def io_uring_mapped() -> Told:
    code = (
        "import ctypes, mmap\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "fd = libc.syscall(425, 4, ctypes.create_string_buffer(120))\n"
        "kept = mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, offset=0)\n"
    )
    with victim(code) as one:
        return dump(one.pid)


def perf_event() -> Told:
    with victim("import os, ctypes; libc = ctypes.CDLL(None); fd = libc.syscall(323, 1)") as one:
        return dump(one.pid)


def unix_stream() -> Told:
    """Half of a stream connection to a server with a name."""
    path = PLACE / "work/server.socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with victim(f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r})") as one:
            peer, _ = server.accept()
            with peer:
                return dump(one.pid, *sys.argv[2:])


def unix_pair() -> Told:
    """Half of a socketpair: it has no name."""
    ours, theirs = socket.socketpair()
    with ours, theirs, victim(f"kept = {theirs.fileno()}", pass_fds=(theirs.fileno(),)) as one:
        return dump(one.pid, *sys.argv[2:])


def unix_datagram() -> Told:
    path = PLACE / "work/log.socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        code = f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect({str(path)!r})"
        with victim(code) as one:
            return dump(one.pid)


def tcp(*options: str) -> Told:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with victim(f"import socket; s = socket.create_connection({server.getsockname()!r})") as one:
            peer, _ = server.accept()
            with peer:
                return dump(one.pid, *options)


def tcp_established() -> Told:
    return tcp()


def tcp_passcred() -> Told:
    return tcp("--tcp-established")


def tcp_in_flight() -> Told:
    """A connection that its program has not accepted yet."""
    code = "import socket\nserver = socket.create_server(('127.0.0.1', 47123))\n"
    with victim(code) as one, socket.create_connection(("127.0.0.1", 47123)):
        return dump(one.pid)


def tty() -> Told:
    """Started in a terminal: it is not the leader of its session."""
    master, slave = os.openpty()
    code = "import os\nif os.fork(): os.wait()\n"
    leader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, fcntl, termios, subprocess, sys\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
            "p = subprocess.Popen(['sleep', '600'])\nprint(p.pid, flush=True)\np.wait()",
        ],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        start_new_session=True,
        cwd=PLACE / "work",
    )
    assert leader.stdout
    pid = int(leader.stdout.readline())
    try:
        return dump(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        leader.wait()
        os.close(master)
        os.close(slave)


def tty_leader() -> Told:
    """Leader of a session on a terminal whose other end is outside."""
    master, slave = os.openpty()
    try:
        with victim("import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)", stdin=slave) as one:
            return dump(one.pid)
    finally:
        os.close(master)
        os.close(slave)


def session_outside() -> Told:
    """Not a leader, no terminal."""
    with victim(lead=False) as one:
        return dump(one.pid)


def ghost_limit() -> Told:
    path = file("scratch.bin", b"x" * (4 << 20))
    with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})") as one:
        return dump(one.pid, *sys.argv[2:])


def link_remap() -> Told:
    path = file("state.bin")
    os.link(path, path.with_name("other-name.bin"))
    with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})") as one:
        return dump(one.pid)


def link_remap_leftover() -> Told:
    """A dump that was killed has left its second name."""
    path = file("state.bin")
    os.link(path, path.with_name("other-name.bin"))
    with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})") as one:
        for number in range(64):
            file(f"link_remap.{number}")
        return dump(one.pid, "--link-remap")


def file_lock() -> Told:
    path = file("lock")
    with victim(f"import fcntl; kept = open({str(path)!r}, 'r+b'); fcntl.flock(kept, fcntl.LOCK_EX)") as one:
        return dump(one.pid)


def posix_lock_outside() -> Told:
    """A lock of a process outside, on a file that is open here."""
    path = file("lock")
    code = f"import fcntl; kept = open({str(path)!r}, 'r+b')"
    with victim(code + "; fcntl.lockf(kept, fcntl.LOCK_EX)") as other, victim(code) as one:
        assert other.pid
        return dump(one.pid, "--file-locks")


def sysv_shm() -> Told:
    code = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.shmat.restype = ctypes.c_void_p\n"
        "number = libc.shmget(0, 4096, 0o1600)\n"
        "assert libc.shmat(number, None, 0) != ctypes.c_void_p(-1).value\n"
        "libc.shmctl(number, 0, None)\n"
    )
    with victim(code) as one:
        return dump(one.pid)


def external_mount() -> Told:
    """A mount namespace of its own, with a mount from outside."""
    script = f"mkdir -p {PLACE}/work/bound && mount --bind /usr/share {PLACE}/work/bound"
    with victim(f"import subprocess; subprocess.run({script!r}, shell=True, check=True)", before="unshare -m") as one:
        return dump(one.pid)


def lost_mount() -> Told:
    """An open file on a mount that was detached."""
    place = PLACE / "work/gone"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
    (place / "data").write_text("x")
    with victim(f"kept = open({str(place / 'data')!r})") as one:
        subprocess.run(["umount", "-l", str(place)], check=True)
        return dump(one.pid)


def overmounted() -> Told:
    place = PLACE / "work/over"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
    (place / "data").write_text("x")
    try:
        with victim(f"kept = open({str(place / 'data')!r})") as one:
            subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
            return dump(one.pid)
    finally:
        for _ in range(2):
            subprocess.run(["umount", "-l", str(place)], check=True)


# Dump: the host, and the caller


def no_space() -> Told:
    place = PLACE / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], check=True)
    try:
        with victim("kept = bytearray(b'x') * (8 << 20)") as one:
            return dump(one.pid, where=place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def timeout() -> Told:
    """A thread in vfork can't be stopped: here its child waits for somebody to write into a FIFO."""
    fifo = PLACE / "work/fifo"
    os.mkfifo(fifo)
    code = f"import os\nactions = [(os.POSIX_SPAWN_OPEN, 5, {str(fifo)!r}, os.O_RDONLY, 0)]"
    late = "os.posix_spawn('/bin/true', ['true'], {}, file_actions=actions)"
    with victim(code, late=late) as one:
        while "State:\tD" not in Path(f"/proc/{one.pid}/status").read_text():
            time.sleep(0.01)
        try:
            return dump(one.pid, "--timeout", "1")
        finally:
            for child in Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)


def frozen() -> Told:
    """It is frozen, and does nothing for CRIU."""
    group = Path("/sys/fs/cgroup/unified/criu-says")
    group.mkdir()
    try:
        with victim() as one:
            (group / "cgroup.procs").write_text(str(one.pid))
            (group / "cgroup.freeze").write_text("1")
            while "frozen 1" not in (group / "cgroup.events").read_text():
                time.sleep(0.01)
            told = dump(one.pid, "--timeout", "1")
            (group / "cgroup.freeze").write_text("0")
            return told
    finally:
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.02)


def not_root() -> Told:
    where = images()
    os.chmod(where, 0o777)
    with victim() as one:
        return dump(one.pid, where=where, before=("setpriv", "--reuid=65534", "--clear-groups"))


def no_ptrace() -> Told:
    with victim() as one:
        return dump(one.pid, before=("capsh", "--drop=cap_sys_ptrace", "--shell=/usr/bin/env", "--"))


def traced() -> Told:
    with victim() as one:
        assert LIBC.ptrace(0x4206, one.pid, 0, 0) == 0
        return dump(one.pid)


def no_process() -> Told:
    with victim() as one:
        pid = one.pid
    return dump(pid)


def zombie() -> Told:
    with victim() as one:
        one.process.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
        return dump(one.pid)


def died_in_dump() -> Told:
    """SIGKILL while CRIU is at the line that begins with this word."""
    with victim("kept = bytearray(b'x') * (64 << 20)") as one:
        log = PLACE / "dump.log"

        def kill() -> None:
            while not log.exists() or sys.argv[2].encode() not in log.read_bytes():
                time.sleep(0.0005)
            os.kill(one.pid, signal.SIGKILL)

        import threading

        threading.Thread(target=kill, daemon=True).start()
        return dump(one.pid)


def no_directory() -> Told:
    with victim() as one:
        return dump(one.pid, where=PLACE / "missing")


def track_mem() -> Told:
    """A kernel without dirty tracking."""
    with victim() as one:
        return dump(one.pid, "--track-mem")


# Restore


def reopened(change: Callable[[Path], object], mode: str = "r+b") -> Told:
    """An open file is not as it was."""
    path = file("data.bin")
    with victim(f"kept = open({str(path)!r}, {mode!r})") as one:
        dumped(one)
        change(path)
        return restore(one)


def bad_size() -> Told:
    return reopened(lambda path: path.write_bytes(b"longer than before"))


def missing_file() -> Told:
    return reopened(Path.unlink)


def bad_mode() -> Told:
    return reopened(lambda path: path.chmod(0o600 if path.stat().st_mode & 0o077 else 0o644))


def missing_directory() -> Told:
    place = PLACE / "work/here"
    place.mkdir()
    with victim(cwd=place) as one:
        dumped(one)
        place.rmdir()
        return restore(one)


def missing_parent() -> Told:
    place = PLACE / "work/deep"
    place.mkdir()
    path = place / "data"
    path.write_text("x")
    with victim(f"kept = open({str(path)!r})") as one:
        dumped(one)
        shutil.rmtree(place)
        return restore(one)


def take(pid: int) -> int:
    """A process with this PID."""

    class Arguments(ctypes.Structure):
        _fields_ = [
            (name, ctypes.c_uint64)
            for name in (
                "flags",
                "pidfd",
                "child_tid",
                "parent_tid",
                "exit_signal",
                "stack",
                "stack_size",
                "tls",
                "set_tid",
                "set_tid_size",
                "cgroup",
            )
        ]

    wanted = (ctypes.c_int * 1)(pid)
    arguments = Arguments(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
    new = LIBC.syscall(435, ctypes.byref(arguments), ctypes.sizeof(arguments))
    assert new >= 0, os.strerror(ctypes.get_errno())
    if new == 0:
        os.setpgid(0, 0)
        os.execvp("sleep", ["sleep", "600"])
    return int(new)


@contextmanager
def taken(pid: int) -> Iterator[None]:
    other = take(pid)
    try:
        yield
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)


def pid_in_use() -> Told:
    with victim() as one:
        dumped(one)
        with taken(one.pid):
            return restore(one)


THREAD = "import threading, time, sys; t = threading.Thread(target=time.sleep, args=(600,), daemon=True); t.start(); open('tid', 'w').write(str(t.native_id))"


def thread_id_in_use() -> Told:
    with victim(THREAD) as one:
        dumped(one)
        tid = int((PLACE / "work/tid").read_text())
        with taken(tid):
            return {**restore(one), "pid": tid}


def child_pid_in_use() -> Told:
    code = "import os, time\npid = os.fork()\nif not pid: time.sleep(600)\nopen('child', 'w').write(str(pid))"
    with victim(code) as one:
        dumped(one)
        pid = int((PLACE / "work/child").read_text())
        with taken(pid):
            return {**restore(one), "pid": pid}


def build_id() -> Told:
    """A library is another one, of the same size."""
    source = subprocess.run(
        ["sh", "-c", "ls /usr/lib/x86_64-linux-gnu/libz.so.1.*"], capture_output=True, text=True, check=True
    )
    path = file("lib.so", Path(source.stdout.split()[0]).read_bytes())
    with victim(f"import ctypes; kept = ctypes.CDLL({str(path)!r})") as one:
        dumped(one)
        data = bytearray(path.read_bytes())
        note = data.index(b"GNU\0", data.index(b"\x04\x00\x00\x00\x14\x00\x00\x00\x03\x00\x00\x00"))
        data[note + 4] ^= 0xFF
        path.write_bytes(data)
        return restore(one)


def library_size() -> Told:
    source = subprocess.run(
        ["sh", "-c", "ls /usr/lib/x86_64-linux-gnu/libz.so.1.*"], capture_output=True, text=True, check=True
    )
    path = file("lib.so", Path(source.stdout.split()[0]).read_bytes())
    with victim(f"import ctypes; kept = ctypes.CDLL({str(path)!r})") as one:
        dumped(one)
        path.write_bytes(path.read_bytes() + b"x")
        return restore(one)


def cgroup_missing() -> Told:
    """Restored into a control group that is no longer there."""
    group = Path("/sys/fs/cgroup/unified/criu-says")
    group.mkdir()
    try:
        with victim() as one:
            (group / "cgroup.procs").write_text(str(one.pid))
            dumped(one, "--manage-cgroups=" + sys.argv[2])
            group.rmdir()
            return restore(one, "--manage-cgroups=" + sys.argv[3])
    finally:
        if group.exists():
            group.rmdir()


def shell_job_restore() -> Told:
    with victim(lead=False) as one:
        dumped(one, "--shell-job")
        return restore(one)


def tty_restore() -> Told:
    master, slave = os.openpty()
    try:
        with victim("import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)", stdin=slave) as one:
            dumped(one, "--shell-job")
            return restore(one, "--shell-job")
    finally:
        os.close(master)
        os.close(slave)


def port_in_use() -> Told:
    with victim("import socket; s = socket.socket(); s.bind(('127.0.0.1', 47124)); s.listen()") as one:
        dumped(one)
        with socket.socket() as other:
            other.bind(("127.0.0.1", 47124))
            other.listen()
            return restore(one)


def address_missing() -> Told:
    subprocess.run(["ip", "address", "add", "10.99.0.1/32", "dev", "lo"], check=True)
    try:
        with victim("import socket; s = socket.socket(); s.bind(('10.99.0.1', 47125)); s.listen()") as one:
            dumped(one)
            subprocess.run(["ip", "address", "del", "10.99.0.1/32", "dev", "lo"], check=True)
            return restore(one)
    finally:
        subprocess.run(["ip", "address", "del", "10.99.0.1/32", "dev", "lo"], stderr=subprocess.DEVNULL, check=False)


def file_lock_restore() -> Told:
    path = file("lock")
    with victim(f"import fcntl; kept = open({str(path)!r}, 'r+b'); fcntl.lockf(kept, fcntl.LOCK_EX)") as one:
        dumped(one, "--file-locks")
        return restore(one)


def file_locked_by_other() -> Told:
    import fcntl

    path = file("lock")
    with victim(f"import fcntl; kept = open({str(path)!r}, 'r+b'); fcntl.{sys.argv[2]}(kept, fcntl.LOCK_EX)") as one:
        dumped(one, "--file-locks")
        with path.open("r+b") as held:
            (fcntl.flock if sys.argv[2] == "flock" else fcntl.lockf)(held, fcntl.LOCK_EX)
            return restore(one, "--file-locks")


def unix_datagram_restore() -> Told:
    path = PLACE / "work/log.socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        code = f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect({str(path)!r})"
        with victim(code) as one:
            dumped(one, "--ext-unix-sk")
            if sys.argv[2] == "gone":
                server.close()
                path.unlink()
                return restore(one, "--ext-unix-sk")
            return restore(one)


def link_remap_restore() -> Told:
    """The name is taken again, or its second name is gone."""
    path = file("state.bin")
    os.link(path, path.with_name("other-name.bin"))
    with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})") as one:
        dumped(one, "--link-remap")
        if sys.argv[2] == "gone":
            for left in path.parent.glob("link_remap.*"):
                left.unlink()
        else:
            file("state.bin")
        return restore(one)


def ghost_name_taken() -> Told:
    path = file("scratch.bin")
    with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})") as one:
        dumped(one)
        file("scratch.bin")
        return restore(one)


def no_space_restore() -> Told:
    """A deleted file has to be written anew."""
    place = PLACE / "work/small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], check=True)
    try:
        path = place / "scratch.bin"
        path.write_bytes(b"x" * (900 << 10))
        with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})", cwd="/") as one:
            dumped(one)
            (place / "filler").write_bytes(b"x" * (900 << 10))
            return restore(one)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def broken_image() -> Told:
    with victim() as one:
        where = dumped(one)
        name = next(path.name for path in where.glob(sys.argv[2]))
        if sys.argv[3] == "gone":
            (where / name).unlink()
        elif sys.argv[3] == "short":
            data = (where / name).read_bytes()
            (where / name).write_bytes(data[: len(data) // 2])
        elif sys.argv[3] == "magic":
            data = (where / name).read_bytes()
            (where / name).write_bytes(b"\xff" * 8 + data[8:])
        return restore(one)


def restore_not_root() -> Told:
    with victim() as one:
        where = dumped(one)
        for path in (where, *where.iterdir()):
            os.chmod(path, 0o777)
        return restore(one, before=("setpriv", "--reuid=65534", "--clear-groups"))


def restore_no_caps() -> Told:
    with victim() as one:
        dumped(one)
        return restore(one, before=("capsh", f"--drop={sys.argv[2]}", "--shell=/usr/bin/env", "--"))


def no_memory() -> Told:
    with victim("kept = bytearray(b'x') * (64 << 20)") as one:
        dumped(one)
        return restore(one, before=("prlimit", sys.argv[2]))


def oom() -> Told:
    """A control group with less memory than it had."""
    group = Path("/sys/fs/cgroup/memory/criu-says")
    with victim("kept = bytearray(b'x') * (64 << 20)") as one:
        dumped(one)
        group.mkdir()
        try:
            (group / "memory.limit_in_bytes").write_text(str(32 << 20))
            script = f'echo $$ >{group}/cgroup.procs; exec "$@"'
            return restore(one, before=("sh", "-c", script, "-"))
        finally:
            for _ in range(100):
                with suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.02)


def main() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    (PLACE / "work").mkdir(parents=True)
    try:
        told = globals()[sys.argv[1]]()
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
