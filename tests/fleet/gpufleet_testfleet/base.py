# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base image in the cache: built once, whole or not at all, shared by every fleet of this machine."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from . import aptsource, disk, recipe, recipe_slurm
from .errors import FleetError

_KEEP = 2
_LOG_LINES = 15

# Beyond the plain image: each flavour is an image of its own, built when a fleet first asks for it.
_FLAVOURS: dict[str, ModuleType] = {"slurm": recipe_slurm}


def cache_directory() -> Path:
    return Path(os.environ.get("GPUFLEET_CACHE") or "/var/cache/gpufleet-checkpoint").resolve()


def key(flavour: str = "") -> str:
    """What the image is made of, in short. The plain one does not change with a flavour."""
    parts: list[ModuleType] = [recipe, *([_FLAVOURS[flavour]] if flavour else [])]
    return hashlib.sha256(b"".join(Path(str(part.__file__)).read_bytes() for part in parts)).hexdigest()[:12]


def _prefix(flavour: str) -> str:
    return f"base+{flavour}-" if flavour else "base-"


def packages(flavour: str = "") -> tuple[str, ...]:
    return recipe.PACKAGES + (_FLAVOURS[flavour].PACKAGES if flavour else ())


def use(root: Path) -> int:
    """Mark the image as in use for as long as the returned descriptor is open."""
    fd = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _unused(image: Path) -> bool:
    fd = os.open(image, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def _prune(cache: Path, current: Path, flavour: str) -> None:
    """Drop this flavour's images of older recipes: all but the last used of them, and never one with a host on it."""
    images = (path for path in cache.glob(f"{_prefix(flavour)}*") if path != current)
    others = sorted(images, key=lambda path: path.stat().st_mtime, reverse=True)
    for image in others[_KEEP - 1 :]:
        if _unused(image):
            doomed = cache / f".old-{image.name}"
            image.rename(doomed)
            shutil.rmtree(doomed)


def _debootstrap(target: Path, log: Path, flavour: str) -> None:
    # In namespaces that die with this process: a killed build leaves no mount and no process.
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "slave", "--pid", "--fork"]
    command += ["--kill-child", "debootstrap", "--variant=minbase", f"--include={','.join(packages(flavour))}"]
    command += [recipe.SUITE, str(target)]
    mirror = aptsource.mirror()
    if mirror:
        command.append(mirror)
    with open(log, "wb") as output:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=aptsource.environment(), check=False
        ).returncode
    if status != 0:
        tail = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        details = target / "debootstrap/debootstrap.log"
        if details.exists():
            tail += "\n" + "\n".join(f"  {line}" for line in details.read_text(errors="replace").splitlines()[-5:])
        kept = log.parent.parent / "base-failed.log"
        shutil.copyfile(log, kept)
        raise FleetError(
            f"base image: debootstrap ended with status {status}. The end of its log ({kept}):\n{tail}\n"
            f"Check that the machine's apt sources offer Debian {recipe.SUITE}, and that the disk has room"
        )


def ensure(disk_mib: int, flavour: str = "") -> tuple[Path, Path]:
    """Root of the base image and the disk template of this size, built now if they are not there."""
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    image = cache / f"{_prefix(flavour)}{key(flavour)}"
    template = image / f"disk-{disk_mib}.img"
    if template.exists():
        os.utime(image)
        return image / "root", template

    lock = os.open(cache / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("base image: another process is building it; waiting", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in (*cache.glob(".build-*"), *cache.glob(".old-*"), *cache.glob("base[-+]*/disk-*.stage")):
            shutil.rmtree(leftover)
        for unfinished in cache.glob("base[-+]*/disk-*.partial"):
            unfinished.unlink()
        if not image.exists():
            started = time.monotonic()
            what = f"Debian {recipe.SUITE}{f' with {flavour}' if flavour else ''}"
            print(f"base image: building {what} in {cache} (once, about a minute)", file=sys.stderr)
            build = cache / f".build-{image.name}"
            build.mkdir()
            _debootstrap(build / "root", build / "build.log", flavour)
            recipe.finish(build / "root")
            build.rename(image)
            print(f"base image: done in {time.monotonic() - started:.0f} s", file=sys.stderr)
            _prune(cache, image, flavour)
        if not template.exists():
            disk.make_template(image / "root/var", disk_mib, template)
        os.utime(image)
    finally:
        os.close(lock)
    return image / "root", template
