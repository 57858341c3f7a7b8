# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole fleet: up, down, destroy-all."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import base, cgroups, commands, disk, inventory, layer, machine, network, ready, seed, sweep
from .boot import PATH
from .errors import FleetError
from .names import PREFIX, Host
from .options import Options
from .state import Directory, Fleet, read_json, write_atomically

_EXECUTABLE = Path(__file__).resolve().parent.parent / "fleet.py"
_FAILURE_LOG = "failed-up.log"
_ENTER_SECONDS = 30.0


def _say(text: str) -> None:
    print(text, flush=True)


def _remove(directory: Directory) -> None:
    """Everything of the fleet but its empty directory."""
    host_directories = sorted(directory.hosts.glob("h*")) if directory.hosts.is_dir() else []
    sweep.sweep(directory.fleet, host_directories)
    if directory.path.is_dir():
        for entry in sorted(directory.path.iterdir(), key=lambda path: path == directory.state):  # the state goes last
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    for line in machine.unregister(directory.fleet):
        _say(line)


def _exists(directory: Directory) -> bool:
    return directory.state.exists() or directory.fleet in sweep.fleets()


def launch(fleet: Fleet, host: Host) -> None:
    """Start the host's supervisor, which outlives this command."""
    files = fleet.directory.host(host)
    boots = (read_json(files.run) or {}).get("boots", 0)
    write_atomically(files.run, json.dumps({"phase": "starting", "boots": boots}) + "\n")
    environment = {
        "PATH": os.environ.get("PATH", PATH),
        "FLEET_DIR": str(fleet.directory.path),
        "FLEET_PREFIX": PREFIX.removesuffix("-"),
        "LC_ALL": "C",
    }
    with open(files.log, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_EXECUTABLE), "_supervise", host.name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",
            start_new_session=True,
            pass_fds=commands.KEEP,
        )
    process.returncode = 0  # not ours to wait for: it goes on when this command ends


class _Unseen:
    """Children that no sweep would find yet: supervisors just started, before they enter their cgroup.

    Each child has the write end of a pipe until it has entered, or ended. An interrupt may come between the start of
    a child and the moment when we know its PID, so a list of PIDs would not do.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        commands.KEEP.append(self._write)

    def wait(self) -> None:
        """Until there are none. No child is started after this."""
        commands.KEEP.remove(self._write)
        os.close(self._write)
        select.select([self._read], [], [], _ENTER_SECONDS)
        os.close(self._read)


def _create(fleet: Fleet, template: Path) -> None:
    directory = fleet.directory
    network.create_control(directory.fleet)
    inventory.make_key(directory)
    if fleet.options.gpus:
        layer.copy(Path(fleet.options.sim) if fleet.options.sim else None, directory.layer)
    keys: dict[str, str] = {}
    for host in fleet.hosts:
        files = directory.host(host)
        for path in (files.path, files.disk, files.root):
            path.mkdir(parents=True)
        keys[host.name] = seed.make(fleet, host)
        disk.copy_sparse(template, files.image)
        launch(fleet, host)
    inventory.write(fleet, keys)


def _logs(fleet: Fleet) -> str:
    parts = [f"== {host.name}\n{ready.log_tail(fleet.directory, host, 200)}\n" for host in fleet.hosts]
    return "".join(parts)


def up(directory: Directory, options: Options) -> None:
    began = time.monotonic()
    commands.require_tools(options.init)
    hierarchies = cgroups.find()
    if _exists(directory):
        _say(f"fleet {directory.fleet}: removing the one that was in {directory.path}")
        _remove(directory)
    root, template = base.ensure(options.disk, options.flavour)
    fleet = Fleet(directory, options, root)
    fleet.save()
    for line in machine.register(directory.fleet, directory.path, options.init == "systemd"):
        _say(line)
    unseen = _Unseen()
    try:
        _create(fleet, template)
        done = ready.wait(fleet, fleet.hosts, began)
    except BaseException:
        unseen.wait()
        logs = _logs(fleet)
        _remove(directory)
        (directory.path / _FAILURE_LOG).write_text(logs)
        print(f"nothing is left of the fleet but its logs: {directory.path / _FAILURE_LOG}", file=sys.stderr)
        raise
    if not cgroups.has_memory(hierarchies):
        _say("this machine gives cgroups no memory controller: hosts can't be given memory limits")
    for host in fleet.hosts:
        state, seconds = done[host.name]
        hint = "" if state == "running" else f"; see: fleet exec {host.name} systemctl --failed"
        _say(f"{host.name:4} {host.address:12} {state:9} {seconds:5.1f} s{hint}")
    _say(f"{len(done)} hosts up in {time.monotonic() - began:.1f} s; inventory {directory.inventory}")


def down(directory: Directory) -> None:
    began = time.monotonic()
    if not _exists(directory):
        _remove(directory)  # a failed up leaves its log
        _say(f"no fleet in {directory.path}: nothing to do")
        return
    _remove(directory)
    _say(f"fleet {directory.fleet} removed in {time.monotonic() - began:.1f} s")


def destroy(fleet: str, directory: Directory | None) -> None:
    """One fleet of this machine, whether or not its directory is still known."""
    if directory is not None:
        _remove(directory)
    else:
        sweep.sweep(fleet, [])
        for line in machine.unregister(fleet):
            _say(line)
    _say(f"fleet {fleet}{f' in {directory.path}' if directory else ''} removed")


def require_root() -> None:
    if os.geteuid() != 0:
        raise FleetError(f"the fleet needs root (namespaces, mounts, cgroups); this is uid {os.geteuid()}: use sudo")
