# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a fleet changes for the whole machine, put back when the last fleet goes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from . import mountinfo, network
from .linux import umount
from .state import RUN, Lock, machine_boot_id, read_json, write_atomically

_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_WANTED = 4096  # a systemd host takes about five, and all hosts count as one user


def _record() -> Path:
    return RUN / "machine.json"


def control_paths(fleet: str) -> Path:
    """Where SSH keeps its control sockets: short, and not shared with a fleet that has the same addresses."""
    return RUN / fleet / "cp"


def _netns_is_mounted() -> bool:
    return any(mount.point == str(network.NETNS_DIRECTORY) for mount in mountinfo.of_process("self"))


def register(fleet: str, directory: Path, needs_inotify: bool) -> list[str]:
    """Enter a fleet; returns what was changed on the machine, in words."""
    said = []
    with Lock(RUN):
        record = read_json(_record())
        if record is None or record.get("machine_boot_id") != machine_boot_id():
            for stale in RUN.glob("*.json"):  # of fleets that a reboot of the machine ended
                stale.unlink()
            record = {"machine_boot_id": machine_boot_id(), "netns_was_mounted": _netns_is_mounted()}
            write_atomically(_record(), json.dumps(record))
        now = int(_INSTANCES.read_text())
        if needs_inotify and now < _WANTED:
            record.setdefault("inotify", now)
            write_atomically(_record(), json.dumps(record))
            _INSTANCES.write_text(str(_WANTED))
            said.append(f"fs.inotify.max_user_instances raised from {now} to {_WANTED} until the last fleet is down")
        write_atomically(RUN / f"{fleet}.json", json.dumps({"directory": str(directory)}))
        control_paths(fleet).mkdir(parents=True, exist_ok=True, mode=0o700)
    return said


def registered() -> dict[str, Path | None]:
    """Fleet id -> its directory."""
    found: dict[str, Path | None] = {}
    for path in RUN.glob("*.json") if RUN.is_dir() else ():
        if path.name != "machine.json":
            data = read_json(path)
            found[path.stem] = Path(data["directory"]) if data and "directory" in data else None
    return found


def unregister(fleet: str) -> list[str]:
    """Strike out a fleet, and put the machine back if it was the last."""
    said: list[str] = []
    if not RUN.is_dir():
        return said
    with Lock(RUN):
        (RUN / f"{fleet}.json").unlink(missing_ok=True)
        shutil.rmtree(RUN / fleet, ignore_errors=True)
        if registered():
            return said
        record = read_json(_record()) or {}
        if record.get("machine_boot_id") == machine_boot_id():
            if "inotify" in record and int(_INSTANCES.read_text()) == _WANTED:
                _INSTANCES.write_text(str(record["inotify"]))
                said.append(f"fs.inotify.max_user_instances put back to {record['inotify']}")
            if not record.get("netns_was_mounted", True) and _netns_is_mounted():
                if not os.listdir(network.NETNS_DIRECTORY):
                    umount(network.NETNS_DIRECTORY)
                    network.NETNS_DIRECTORY.rmdir()
        shutil.rmtree(RUN)
    return said
