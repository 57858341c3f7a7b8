# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that make one host different from another: a layer of its own, so that no power loss takes them."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from . import commands, seed_slurm
from .names import CONTROL_ADDRESS, Host
from .options import gpusim_conf
from .state import Fleet

INIT = "/usr/lib/gpufleet-testfleet/init"
_INSIDE = Path(__file__).resolve().parent / "inside"
_POWER_COMMANDS = ("halt", "poweroff", "reboot", "shutdown")


def _path(root: Path, name: str) -> Path:
    """A file's path in the layer, its directories made: theirs are the modes that the host will see."""
    path = root / name.lstrip("/")
    for parent in reversed(path.relative_to(root).parents):
        directory = root / parent
        if not directory.is_dir():
            directory.mkdir()
            directory.chmod(0o755)
    return path


def _write(root: Path, name: str, text: str, mode: int = 0o644) -> None:
    path = _path(root, name)
    path.write_text(text)
    path.chmod(mode)


def hosts_file(fleet: Fleet, host: Host) -> str:
    lines = ["127.0.0.1 localhost", f"127.0.1.1 {host.name}", f"{CONTROL_ADDRESS} control"]
    lines += [f"{other.address} {other.name}" for other in fleet.hosts if other != host]
    return "\n".join(lines) + "\n"


def _slurm(fleet: Fleet, host: Host, root: Path) -> None:
    names = [other.name for other in fleet.hosts]
    for name, text in seed_slurm.files(names).items():
        _write(root, name, text)
    for unit in seed_slurm.masked(names, host.name):
        _path(root, f"etc/systemd/system/{unit}").symlink_to("/dev/null")


def make(fleet: Fleet, host: Host) -> str:
    """Fill the host's layer and return its public host key."""
    root = fleet.directory.host(host).seed
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    root.chmod(0o755)
    _write(root, "etc/hostname", f"{host.name}\n")
    _write(root, "etc/hosts", hosts_file(fleet, host))
    _write(root, "etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    _write(root, "root/.ssh/authorized_keys", fleet.directory.key.with_suffix(".pub").read_text(), 0o600)
    for directory in ("root", "root/.ssh"):
        (root / directory).chmod(0o700)
    key = _path(root, "etc/ssh/ssh_host_ed25519_key")
    commands.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.name, "-f", str(key)])
    if fleet.options.gpus:
        _write(root, "etc/gpusim.conf", gpusim_conf(fleet.options, host))
    if fleet.options.flavour == "slurm":
        _slurm(fleet, host, root)
    if fleet.options.init == "none":
        _write(root, INIT, (_INSIDE / "init.py").read_text(), 0o755)
        for name in _POWER_COMMANDS:
            _write(root, f"usr/sbin/{name}", (_INSIDE / "shutdown.sh").read_text(), 0o755)
    return key.with_suffix(".pub").read_text()
