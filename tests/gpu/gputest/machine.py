# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the machine is, and how it is made ready: versions, settings that must not change, memory that shows itself."""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, Dict, Optional

GIB = 1 << 30
_HUGE = Path("/sys/kernel/mm/transparent_hugepage")
_VERSIONS = """
import importlib.metadata as m, json
names = ("torch", "jax", "jaxlib", "cupy-cuda13x", "numpy", "nvidia-ml-py")
found = {}
for name in names:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def settings() -> Dict[str, str]:
    """What a run must leave as it was."""
    found = {str(path): read(path) for path in (_HUGE / "enabled", _HUGE / "defrag", _HUGE / "shmem_enabled")}
    return {name: value for name, value in found.items() if value}


def meminfo(field: str) -> int:
    for line in read(Path("/proc/meminfo")).splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def versions(python: str, site: str) -> Dict[str, str]:
    """Of what the tests use, as that interpreter sees it."""
    import json

    env = {**os.environ, "PYTHONPATH": ":".join(one for one in (site, os.environ.get("PYTHONPATH", "")) if one)}
    found: Dict[str, str] = {"python": platform.python_version(), "kernel": platform.release()}
    code = _VERSIONS + "\nimport ansible.release as r, sys; print(r.__version__); print(sys.version.split()[0])"
    done = subprocess.run([python, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{python} can't import ansible: {done.stderr.decode(errors='replace').strip()[-400:]}")
    lines = done.stdout.decode().splitlines()
    found.update(json.loads(lines[0]))
    found["ansible-core"] = lines[1]
    found["python"] = lines[2]
    return found


def find_nccl(python: str) -> str:
    """The library that PyTorch brings; "" where there is none."""
    for base in (Path(python).parent.parent, Path(python).resolve().parent.parent):
        found = sorted(base.glob("lib/python*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
        if found:
            return str(found[0])
    return ""


def collection_hash(root: Path) -> str:
    """Of what is under test."""
    digest = hashlib.sha256()
    for path in sorted((root / "plugins").rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def commit(root: Path) -> str:
    """The commit, where git can tell; a copy of a working tree has none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def unpack(wheels: Path, to: Path) -> str:
    """The wheels as a directory for PYTHONPATH; "" without wheels."""
    found = sorted(glob.glob(str(wheels / "*.whl")))
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(to)
    # As pip does when it installs them.
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-q", "-j", "0", str(to)], check=False)
    return str(to) if found else ""


def install_collection(root: Path, to: Path) -> str:
    """A copy of what an operator would install, below `to`, for ANSIBLE_COLLECTIONS_PATH."""
    place = to / "ansible_collections" / "gpufleet" / "checkpoint"
    place.mkdir(parents=True)
    for name in ("plugins", "meta"):
        shutil.copytree(root / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("galaxy.yml", "README.md", "LICENSE"):
        if (root / name).exists():
            shutil.copy2(root / name, place / name)
    return str(to)


def grow(gib: int, workers: int = 16) -> Optional["subprocess.Popen[bytes]"]:
    """Use so much memory once, in a process of its own: some virtual machines show theirs only then."""
    if gib <= 0:
        return None
    code = (
        "import mmap, os, sys\n"
        "total, workers = int(sys.argv[1]), int(sys.argv[2])\n"
        "for _ in range(workers):\n"
        "    if os.fork() == 0:\n"
        "        size = total // workers\n"
        "        area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "        area.madvise(mmap.MADV_HUGEPAGE)\n"
        "        for at in range(0, size, 4096):\n"
        "            area[at] = 1\n"
        "        os._exit(0)\n"
        "for _ in range(workers):\n"
        "    os.wait()\n"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(gib * GIB), str(workers)], start_new_session=True)


class Growing:
    """Memory on its way; `path` appears once it is there."""

    def __init__(self, gib: int, path: Path) -> None:
        self.before = meminfo("MemTotal")
        self._began = time.monotonic()
        self._path = path
        self._process = grow(gib)
        self.seconds = 0.0
        self.after = self.before
        self.poll()

    def poll(self) -> bool:
        if self._path.exists():
            return True
        if self._process is not None and self._process.poll() is None:
            return False
        self.seconds = round(time.monotonic() - self._began, 1)
        self.after = meminfo("MemTotal")
        self._path.touch()
        return True

    def wait(self) -> None:
        if self._process is not None:
            self._process.wait()
        self.poll()

    def to_json(self) -> Dict[str, Any]:
        now = meminfo("MemTotal")
        return {"MemTotal before": self.before, "after": self.after, "seconds": self.seconds, "at the end": now}
