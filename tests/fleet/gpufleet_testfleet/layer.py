# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated driver: a root file system layer, copied so that a rebuild does not change it under running hosts.

To it comes nvidia-ml-py, which operators install on a host with GPUs: one file, from build/venv.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from . import commands
from .errors import FleetError
from .state import Lock

_CHECKOUT = Path(__file__).resolve().parents[3]
_DIST_PACKAGES = "usr/lib/python3/dist-packages"
# In Debian these are links into /usr; a directory of that name in a layer above would hide the link and all below it.
_MERGED = ("bin", "lib", "lib64", "sbin")


def _newest(directory: Path) -> float:
    return max((path.stat().st_mtime for path in directory.rglob("*") if path.is_file()), default=0.0)


def _build(target: Path) -> None:
    """Run tests/sim/build if a source is newer than what it made."""
    builder = _CHECKOUT / "tests/sim/build"
    if not builder.is_file():
        raise FleetError(f"simulated driver: {builder} is missing; name a layer with --sim DIR or use --gpus 0")
    if target.is_dir() and target.stat().st_mtime > _newest(builder.parent):
        return
    result = subprocess.run(
        ["setpriv", "--pdeathsig", "KILL", str(builder), str(target)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        tail = "\n".join(f"  {line}" for line in result.stdout.splitlines()[-15:])
        raise FleetError(f"simulated driver: {builder} ended with status {result.returncode}, and said:\n{tail}")


def _copy(layer: Path, target: Path) -> None:
    if not layer.is_dir():
        raise FleetError(f"--sim {layer}: no such directory")
    hidden = [name for name in _MERGED if (layer / name).is_dir() and not (layer / name).is_symlink()]
    if hidden:
        raise FleetError(f"--sim {layer}: its /{hidden[0]} would hide the host's own; put the files below /usr")
    shutil.rmtree(target, ignore_errors=True)
    for command in (["cp", "-a", "--", f"{layer}/.", str(target)], ["chown", "-R", "root:root", "--", str(target)]):
        commands.run(command)
    target.chmod(0o755)


def add_pynvml(venv: Path, target: Path) -> None:
    """For the python3 of the hosts. A layer that has it keeps its own; without tests/setup there is none to give."""
    place = target / _DIST_PACKAGES / "pynvml.py"
    found = sorted(venv.glob("lib/python3*/site-packages/pynvml.py"))
    if place.exists() or not found:
        return
    for directory in reversed(place.relative_to(target).parents[:-1]):
        (target / directory).mkdir(mode=0o755, exist_ok=True)
    shutil.copyfile(found[0], place)
    place.chmod(0o644)


def copy(source: Path | None, target: Path) -> None:
    """Copy the given layer, or the one that tests/sim/build makes."""
    if source is not None:
        _copy(source, target)
    else:
        built = _CHECKOUT / "build/sim/root"
        with Lock(built.parent):  # another fleet of this checkout may want it at the same time
            _build(built)
            _copy(built, target)
    add_pynvml(_CHECKOUT / "build/venv", target)
