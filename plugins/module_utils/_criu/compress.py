# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory in an image, compressed with zstd on all cores; and beside the image, unpacked, for CRIU to read."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
import subprocess
from typing import Dict, List, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import hidden
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.content import NAME
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.manifest import BYTES, Manifest
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import PATH
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import lines, printable

SUFFIX = ".zst"
#: Memory hardly gets smaller with more effort, and a process stands still meanwhile.
LEVEL = "-1"
_MAGIC = 0xFD2FB528
#: Names in one command line.
_BATCH = 1000
_MARGIN = 16 << 20


def find() -> str:
    """The path of zstd. Raises CriuError."""
    found = shutil.which("zstd", path=PATH)
    if found is None:
        raise CriuError(
            "zstd",
            f"it is in none of {PATH}",
            "Images are compressed and unpacked with it.",
            "Install the package zstd.",
            "compress: none",
        )
    return found


def compress_argv(zstd: str, names: Sequence[str]) -> List[str]:
    """Each name becomes one with .zst, its own goes; on all cores."""
    return [zstd, "-T0", LEVEL, "--quiet", "--force", "--rm", "--", *names]


def unpack_argv(zstd: str, source: str, target: str) -> List[str]:
    return [zstd, "--decompress", "--quiet", "--force", "-o", target, "--", source]


def compress(directory: str, names: Sequence[str]) -> Tuple[str, ...]:
    """These files of the directory; empty ones stay as they are. Returns the new names. Raises CriuError: then some may
    be compressed, and others not."""
    zstd = find()
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"name {name!r}")
    full = [name for name in names if os.stat(os.path.join(directory, name)).st_size]
    for start in range(0, len(full), _BATCH):
        process = _start(compress_argv(zstd, full[start : start + _BATCH]), directory)
        _finish(process, directory, "compressed")
    for name in full:
        os.chmod(os.path.join(directory, name + SUFFIX), 0o600)
    return tuple(name + SUFFIX for name in full)


def unpack(path: str, manifest: Manifest) -> str:
    """A directory beside the image, on the same file system, with the names that CRIU knows: what was compressed is
    unpacked, the rest are hard links. Goes with discard(), or by itself when this process has ended.

    Raises CriuError: no zstd, no room, damage; OSError.
    """
    zstd = find()
    packed = [one.name for one in manifest.chunks if one.name.endswith(SUFFIX)]
    sizes = {name: _unpacked_size(path, name) for name in packed}
    names = [_plain(name) for name in packed] + [one.name for one in manifest.chunks if one.name not in sizes]
    if len(set(names)) < len(names):
        others = set(names[len(packed) :])
        twice = next(name for name in packed if _plain(name) in others)
        raise _damaged(path, twice, f"{_plain(twice)} is there as well")
    _check_room(path, sum(sizes.values()))
    work = hidden.make(path, hidden.WORK)
    try:
        for one in manifest.chunks:
            if one.name not in sizes:
                _link(os.path.join(path, one.name), os.path.join(work, one.name))
        _unpack_all(zstd, path, work, sizes)
    except BaseException:
        discard(work)
        raise
    return work


def discard(work: str) -> None:
    """What unpack() has made. Raises OSError."""
    hidden.discard(work)


def _plain(name: str) -> str:
    return name[: -len(SUFFIX)]


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)  # a file system without hard links
        os.chmod(target, 0o600)


def _unpack_all(zstd: str, path: str, work: str, sizes: Dict[str, int]) -> None:
    """One zstd uses one core for this, so several at once, the largest file first."""
    waiting = sorted(sizes, key=lambda name: sizes[name])
    running: List[Tuple[str, subprocess.Popen[bytes]]] = []
    try:
        while waiting or running:
            while waiting and len(running) < len(os.sched_getaffinity(0)):
                name = waiting.pop()
                target = os.path.join(work, _plain(name))
                process = _start(unpack_argv(zstd, os.path.join(path, name), target), work)
                running.append((name, process))
                _limit(process.pid, sizes[name])
            name, process = running.pop(0)
            _finish(process, os.path.join(path, name), "unpacked")
            target = os.path.join(work, _plain(name))
            os.chmod(target, 0o600)
            if os.stat(target).st_size != sizes[name]:
                raise _damaged(path, name, f"it unpacks to {os.stat(target).st_size} bytes instead of {sizes[name]}")
    finally:
        for _name, process in running:
            process.kill()
            process.communicate()


def _limit(pid: int, size: int) -> None:
    """It can't write more than its header says, whatever follows there."""
    try:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))
    except (OSError, ValueError):
        pass  # it has ended already


def _unpacked_size(path: str, name: str) -> int:
    """Bytes, out of the header of its only frame (RFC 8878, 3.1.1). Raises CriuError, OSError."""
    with open(os.path.join(path, name), "rb") as stream:
        head = stream.read(18)
    if len(head) < 6 or struct.unpack_from("<I", head)[0] != _MAGIC:
        raise _damaged(path, name, "it does not begin as zstd's files do")
    descriptor = head[4]
    single = bool(descriptor & 0x20)
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(head) < start + width:
        raise _damaged(path, name, "it does not say how large it is unpacked")
    size = int.from_bytes(head[start : start + width], "little") + (256 if width == 2 else 0)
    if size > BYTES:
        raise _damaged(path, name, f"it claims to be {size} bytes unpacked")
    return size


def _damaged(path: str, name: str, evidence: str) -> CriuError:
    return CriuError(
        os.path.join(path, name),
        evidence,
        "It is not what was compressed, so it is not the memory of the process.",
        "Look with verify: full, and bring the image from its origin again.",
    )


def _check_room(path: str, needed: int) -> None:
    directory = os.path.dirname(path)
    seen = os.statvfs(directory)
    free = seen.f_bavail * seen.f_frsize
    if free < needed + _MARGIN:
        raise CriuError(
            directory,
            f"{free >> 20} MiB are free, {(needed + _MARGIN) >> 20} MiB are needed",
            "A compressed image is unpacked beside itself before CRIU reads it.",
            "Free space there, or copy the image to a larger file system.",
        )


def _start(argv: Sequence[str], directory: str) -> subprocess.Popen[bytes]:
    # No AnsibleModule here, and its run_command would wait for one after the other.
    return subprocess.Popen(  # pylint: disable=ansible-bad-function
        list(argv),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": PATH, "LC_ALL": "C"},
        start_new_session=True,
    )


def _finish(process: subprocess.Popen[bytes], subject: str, what: str) -> None:
    """Raises CriuError."""
    said = process.communicate()[1].decode(errors="replace").strip()
    if process.returncode == 0:
        return
    if process.returncode == -signal.SIGXFSZ:
        raise _damaged(*os.path.split(subject), "it unpacks to more than it says")
    words = "; ".join(printable(line) for line in lines(said)[-3:])
    full = "No space left" in said or "Disk quota" in said
    raise CriuError(
        subject,
        f"it could not be {what}: {words or f'zstd ended with status {process.returncode}'}",
        "",
        "Free space on that file system." if full else "Look at what zstd says.",
        "" if what == "unpacked" else "compress: none",
    )
