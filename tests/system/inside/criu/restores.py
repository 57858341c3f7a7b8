# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CRIU refuses to restore. Each dumps a program first, and then takes something away from it."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.system.inside.criu.tools import (
    FOR_EVER,
    LONG,
    OLD_KERNEL,
    WORK,
    Told,
    dumped,
    file,
    group,
    mounted,
    restore,
    session,
    taken,
    victim,
)


def _reopened(change: Callable[[Path], object]) -> Told:
    """An open file is not as it was."""
    path = file("data.bin")
    with victim(f"kept = open({str(path)!r}, 'r+b')") as one:
        dumped(one)
        change(path)
        return restore(one)


def bad_file_size() -> Told:
    return _reopened(lambda path: path.write_bytes(b"longer than before"))


def missing_file() -> Told:
    return _reopened(Path.unlink)


def file_mode() -> Told:
    return _reopened(lambda path: path.chmod(0o600))


def missing_directory() -> Told:
    """Where it stands."""
    place = WORK / "stand"
    place.mkdir()
    with victim(cwd=place) as one:
        dumped(one)
        place.rmdir()
        return restore(one)


def missing_parent() -> Told:
    place = WORK / "deep"
    place.mkdir()
    (place / "data").touch()
    with victim(f"kept = open({str(place / 'data')!r})") as one:
        dumped(one)
        shutil.rmtree(place)
        return restore(one)


def file_access() -> Told:
    """What it writes to is read-only now."""
    with mounted(WORK / "disk") as place:
        (place / "data").touch()
        with victim(f"kept = open({str(place / 'data')!r}, 'r+b')") as one:
            dumped(one)
            subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
            return restore(one)


def _library(change: Callable[[Path], object]) -> Told:
    source = next(Path("/usr/lib/x86_64-linux-gnu").glob("libz.so.1.*"))
    path = file("lib.so", source.read_bytes())
    with victim(f"import ctypes; kept = ctypes.CDLL({str(path)!r})") as one:
        dumped(one)
        change(path)
        return restore(one)


def _rebuild(path: Path) -> None:
    data = bytearray(path.read_bytes())
    # Elf note: 4 bytes of name, 20 of description, type 3; the name; then the build id.
    at = data.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0") + 16
    data[at] ^= 0xFF
    path.write_bytes(data)


def build_id() -> Told:
    """A library of the same size from another build."""
    return _library(_rebuild)


def library_size() -> Told:
    return _library(lambda path: path.write_bytes(path.read_bytes() + b"x"))


def link_remap_missing() -> Told:
    path = file("state.bin")
    os.link(path, path.with_name("other-name.bin"))
    with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})") as one:
        dumped(one, "--link-remap")
        for left in WORK.glob("link_remap.*"):
            left.unlink()
        return restore(one)


def no_space() -> Told:
    """A deleted file has to be made anew."""
    with mounted(WORK / "small") as place:
        path = place / "scratch.bin"
        path.write_bytes(b"x" * (900 << 10))
        with victim(f"import os; kept = open({str(path)!r}, 'r+b'); os.unlink({str(path)!r})") as one:
            dumped(one)
            (place / "filler").write_bytes(b"x" * (900 << 10))
            return restore(one)


def lock_held(how: str) -> Told:
    path = file("lock")
    with victim(f"import fcntl; kept = open({str(path)!r}, 'r+b'); fcntl.{how}(kept, fcntl.LOCK_EX)") as one:
        dumped(one, "--file-locks")
        with path.open("r+b") as held:
            (fcntl.flock if how == "flock" else fcntl.lockf)(held, fcntl.LOCK_EX)
            return restore(one, "--file-locks", seconds=FOR_EVER)


# Numbers


def pid_in_use() -> Told:
    with victim() as one:
        dumped(one)
        with taken(one.pid):
            return restore(one)


def child_pid_in_use() -> Told:
    with victim(
        "import os, time\npid = os.fork()\nif not pid: time.sleep(600)\nopen('pid', 'w').write(str(pid))"
    ) as one:
        dumped(one)
        pid = int((WORK / "pid").read_text())
        with taken(pid):
            return {**restore(one), "pid": pid}


def thread_id_in_use() -> Told:
    code = "import threading, time\none = threading.Thread(target=time.sleep, args=(600,), daemon=True)\n"
    with victim(code + "one.start(); open('tid', 'w').write(str(one.native_id))") as one:
        dumped(one)
        with taken(int((WORK / "tid").read_text())):
            return restore(one)


def session_in_use() -> Told:
    """Its PID is nobody's, but a session goes by it."""
    with victim() as one:
        dumped(one)
        with session(one.pid):
            return restore(one)


# Surroundings


def cgroup(dump: str, back: str) -> Told:
    """Its control group is gone."""
    with group("unified") as place, victim() as one:
        (place / "cgroup.procs").write_text(str(one.pid))
        dumped(one, f"--manage-cgroups={dump}")
        place.rmdir()
        return restore(one, f"--manage-cgroups={back}")


def mounts() -> Told:
    """A mount namespace of its own, dumped with one of its mounts left out, which nobody gives it."""
    script = f"mkdir -p {WORK}/bound && mount --bind /usr/share {WORK}/bound"
    with victim(f"import subprocess; subprocess.run({script!r}, shell=True, check=True)", before="unshare -m") as one:
        dumped(one, "--external", "mnt[/var]:var")
        return restore(one, "--root", "/")


def terminal_missing() -> Told:
    master, slave = os.openpty()
    try:
        with victim("import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)", stdin=slave) as one:
            dumped(one, "--shell-job")
            return restore(one, "--shell-job")
    finally:
        os.close(master)
        os.close(slave)


def peer_missing() -> Told:
    path = WORK / "log.socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        code = f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect({str(path)!r})"
        with victim(code) as one:
            dumped(one, "--ext-unix-sk")
            path.unlink()
            return restore(one, "--ext-unix-sk")


def port_in_use() -> Told:
    with victim("import socket; s = socket.create_server(('127.0.0.1', 47124))") as one:
        dumped(one, before=OLD_KERNEL)
        with socket.create_server(("127.0.0.1", 47124)):
            return restore(one, before=OLD_KERNEL)


def address_missing() -> Told:
    address = ["10.99.0.1/32", "dev", "lo"]
    subprocess.run(["ip", "address", "add", *address], check=True)
    try:
        with victim("import socket; s = socket.create_server(('10.99.0.1', 47125))") as one:
            dumped(one, before=OLD_KERNEL)
            subprocess.run(["ip", "address", "del", *address], check=True)
            return restore(one, before=OLD_KERNEL)
    finally:
        subprocess.run(["ip", "address", "del", *address], stderr=subprocess.DEVNULL, check=False)


def tcp_in_image() -> Told:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with victim(f"import socket; s = socket.create_connection({server.getsockname()!r})") as one:
            peer, _address = server.accept()
            with peer:
                dumped(one, "--tcp-established", "--network-lock=skip", before=OLD_KERNEL)
                return restore(one, "--network-lock=skip", before=OLD_KERNEL)


# The image, the host, and the caller


def broken(pattern: str, how: str) -> Told:
    """A file of the image is gone, short, or not what it was."""
    with victim() as one:
        path = next(dumped(one).glob(pattern))
        data = path.read_bytes()
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(data[: len(data) // 2] if how == "short" else b"\xff" * 8 + data[8:])
        for_ever = how == "short" and path.name.startswith("pages-")
        return restore(one, seconds=FOR_EVER if for_ever else LONG)


def not_root() -> Told:
    with victim() as one:
        dumped(one)
        return restore(one, before=("setpriv", "--reuid=65534", "--clear-groups"))


def no_capability(name: str) -> Told:
    with victim() as one:
        dumped(one)
        return restore(one, before=("capsh", f"--drop={name}", "--shell=/usr/bin/env", "--"))


def no_memory() -> Told:
    """An rlimit below its size."""
    with victim("kept = bytearray(b'x') * (64 << 20)") as one:
        dumped(one)
        return restore(one, before=("prlimit", "--as=20000000"))


def killed() -> Told:
    """A control group below its size."""
    with victim("kept = bytearray(b'x') * (64 << 20)") as one, group("memory") as place:
        dumped(one)
        (place / "memory.limit_in_bytes").write_text(str(32 << 20))
        return restore(one, before=("sh", "-c", f'echo $$ >{place}/cgroup.procs; exec "$@"', "-"))


def well() -> Told:
    with victim() as one:
        dumped(one)
        return restore(one)
