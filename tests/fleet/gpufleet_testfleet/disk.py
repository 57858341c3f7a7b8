# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's disk: an ext4 file with the overlay's upper layer and /var. It is mounted in the host's namespaces only."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from . import linux, loopdev
from .errors import FleetError
from .names import Host


def make_template(var: Path, size_mib: int, image: Path) -> None:
    """A sparse file system with what a fresh host has in /var."""
    stage = image.with_suffix(".stage")
    shutil.rmtree(stage, ignore_errors=True)
    for name in ("upper", "work"):
        (stage / name).mkdir(parents=True)
        (stage / name).chmod(0o755)  # upper is the host's /
    subprocess.run(["cp", "-a", str(var), str(stage / "var")], check=True)
    partial = image.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    try:
        subprocess.run(
            [
                *("mkfs.ext4", "-q", "-F", "-m", "0", "-i", "65536", "-O", "^resize_inode"),
                *("-J", "size=64" if size_mib >= 2048 else "size=16"),
                *("-E", "lazy_itable_init=1,lazy_journal_init=1"),
                *("-d", str(stage), str(partial), f"{size_mib}M"),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        partial.unlink(missing_ok=True)
        raise FleetError(f"disk template of {size_mib} MiB: mkfs.ext4 failed: {error.stderr.strip()}") from error
    except BaseException:  # an interrupt, too: the file is in the cache that all fleets share
        partial.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    partial.rename(image)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy data but not the holes."""
    with open(source, "rb") as src, open(target, "wb") as dst:
        size = os.fstat(src.fileno()).st_size
        dst.truncate(size)
        offset = 0
        while offset < size:
            try:
                start = os.lseek(src.fileno(), offset, os.SEEK_DATA)
            except OSError:
                break  # nothing but a hole is left
            offset = os.lseek(src.fileno(), start, os.SEEK_HOLE)
            os.lseek(src.fileno(), start, os.SEEK_SET)
            os.lseek(dst.fileno(), start, os.SEEK_SET)
            left = offset - start
            while left:
                data = os.read(src.fileno(), min(left, 1 << 20))
                if not data:
                    break
                os.write(dst.fileno(), data)
                left -= len(data)


def wait_until_free(host: Host, seconds: float = 30.0) -> None:
    """Until no loop device of an earlier boot has the disk: two mounts of one file would destroy it."""
    deadline = time.monotonic() + seconds
    while devices := [path for path, name in loopdev.attached().items() if name == host.global_name]:
        if time.monotonic() > deadline:
            raise FleetError(
                f"{host.name}: {seconds:.0f} s after its end its disk is still in use through {', '.join(devices)};"
                " a process outside the host holds one of its mounts"
            )
        time.sleep(0.02)


def mount(image: Path, host: Host, point: Path) -> None:
    wait_until_free(host)
    device = loopdev.attach(image, host.global_name)
    try:
        path = os.readlink(f"/proc/self/fd/{device}")
        # ext4 would write metadata every 5 s unasked, and what a power loss takes would be a matter of luck.
        linux.mount(path, point, "ext4", data="noinit_itable,commit=120")
    finally:
        os.close(device)
