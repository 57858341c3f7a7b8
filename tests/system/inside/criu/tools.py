# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small programs that are dumped and restored on a test host, by CRIU as the collection runs it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: On a disk, and removed at the end.
PLACE = Path("/var/lib/criu-says")
WORK = PLACE / "files"
IMAGES = PLACE / "images"
#: Seconds that a CRIU is given: one that waits for ever, and any other.
FOR_EVER = 2.0
LONG = 30.0
#: A getsockopt that answers as Linux before 6.16 does, for what CRIU 4.1 asks of TCP sockets.
OLD_KERNEL = ("env", "LD_PRELOAD=/usr/local/lib/criu-says/old_getsockopt.so")
Told = dict[str, Any]


def until(met: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"not within {seconds:.0f} s"
        time.sleep(0.005)


class Victim:
    """A Python program in a session of its own, in WORK, with nothing open but /dev/null, its standard error and what
    it opens itself. late: what it does once it has said that it is ready. before: what starts it.
    """

    def __init__(self, code: str = "", late: str = "pass", before: str = "", lead: bool = True, **options: Any) -> None:
        ready, told = os.pipe()
        errors = PLACE / "victim.err"
        end = f"\nimport os, time\nos.write({told}, b'!'); os.close({told})\n{late}\nwhile True: time.sleep(60)\n"
        given: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "cwd": WORK,
            **options,
            "pass_fds": (told, *options.get("pass_fds", ())),
        }
        with errors.open("wb") as output:
            self.process = subprocess.Popen(
                [*before.split(), sys.executable, "-c", code + end],
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=lead,
                **given,
            )
        os.close(told)
        with os.fdopen(ready, "rb") as stream:
            assert stream.read(1) == b"!", errors.read_text()
        self.pid = self.process.pid

    def end(self) -> None:
        """With its children."""
        with suppress(ProcessLookupError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
            self.process.kill()
        self.process.wait(20)


@contextmanager
def victim(code: str = "", **options: Any) -> Iterator[Victim]:
    one = Victim(code, **options)
    try:
        yield one
    finally:
        one.end()


def criu(
    action: str,
    images: Path,
    *options: str,
    before: tuple[str, ...] = (),
    seconds: float = LONG,
) -> Told:
    """status: None where it waits for ever, and was killed."""
    plugins = PLACE / "plugins"
    plugins.mkdir(exist_ok=True)
    log = PLACE / f"{action}.log"
    log.unlink(missing_ok=True)
    always = ("-v4", "--manage-cgroups=ignore", "--libdir", str(plugins))
    command = [*before, "criu", action, *always, "-D", str(images), "-o", str(log), *options]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
    )
    said = ""
    try:
        said, _nothing = process.communicate(timeout=seconds)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        status = None
    text = _read(log) if log.exists() else ""
    return {"doing": action, "log": text + said, "status": status}


def _read(log: Path, most: int = 1 << 20) -> str:
    """All of it, or its beginning and its end."""
    size = log.stat().st_size
    with log.open("rb") as stream:
        if size <= most:
            return stream.read().decode(errors="replace")
        head = stream.read(most // 2)
        stream.seek(-most // 2, os.SEEK_END)
        return (head + b"\n" + stream.read()).decode(errors="replace")


def dump(one: Victim | int, *options: str, where: Path = IMAGES, **more: Any) -> Told:
    """A dump that goes wrong, of a tree that is to live on."""
    if where == IMAGES:
        IMAGES.mkdir()
    pid = one if isinstance(one, int) else one.pid
    return {**criu("dump", where, "--leave-stopped", "-t", str(pid), *options, **more), "pid": pid}


def dumped(one: Victim, *options: str, **more: Any) -> Path:
    """Its image; it has ended, and nobody has its PID."""
    IMAGES.mkdir()
    told = criu("dump", IMAGES, "-t", str(one.pid), *options, **more)
    assert told["status"] == 0, told["log"][-2000:]
    one.process.wait(20)
    return IMAGES


def restore(one: Victim, *options: str, **more: Any) -> Told:
    """A restore that goes wrong; whoever comes back nevertheless is killed."""
    told = criu("restore", IMAGES, "--restore-detached", *options, **more)
    if told["status"] in (0, None):
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
        until(lambda: not os.path.exists(f"/proc/{one.pid}"))
    return {**told, "pid": one.pid}


def file(name: str, data: bytes = b"0123456789") -> Path:
    path = WORK / name
    path.write_bytes(data)
    return path


@contextmanager
def mounted(place: Path, size: str = "1m") -> Iterator[Path]:
    """A file system in memory."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def node(path: str, kind: int, major: int, minor: int) -> Iterator[Path]:
    """A device node."""
    os.mknod(path, 0o600 | kind, os.makedev(major, minor))
    try:
        yield Path(path)
    finally:
        os.unlink(path)


@contextmanager
def group(root: str) -> Iterator[Path]:
    """A control group."""
    one = Path("/sys/fs/cgroup", root, "criu-says")
    one.mkdir()
    try:
        yield one
    finally:
        until(lambda: not one.exists() or _removed(one))


def _removed(place: Path) -> bool:
    """False while a process is still in it."""
    with suppress(OSError):
        place.rmdir()
        return True
    return False


class _CloneArguments(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    ] + [(name, ctypes.c_uint64) for name in ("set_tid", "set_tid_size", "cgroup")]


def _fork_as(pid: int) -> bool:
    """Whether it is the child, which has this PID."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = (ctypes.c_int * 1)(pid)
    arguments = _CloneArguments(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
    new = libc.syscall(435, ctypes.byref(arguments), ctypes.sizeof(arguments))
    assert new >= 0, os.strerror(ctypes.get_errno())
    return bool(new == 0)


@contextmanager
def taken(pid: int) -> Iterator[None]:
    """Somebody has this PID."""
    if _fork_as(pid):
        os.execvp("sleep", ["sleep", "600"])
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def session(leader: int) -> Iterator[None]:
    """Somebody is in the session of a leader that has ended."""
    told, tell = os.pipe()
    if _fork_as(leader):
        os.setsid()
        member = os.posix_spawnp("sleep", ["sleep", "600"], dict(os.environ))
        os.write(tell, str(member).encode())
        os._exit(0)
    os.waitpid(leader, 0)
    os.close(tell)
    with os.fdopen(told) as stream:
        # The member has the pipe closed at its exec.
        member = int(stream.read())
    try:
        yield
    finally:
        os.kill(member, signal.SIGKILL)
