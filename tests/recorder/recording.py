# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A recording: a snapshot of the host with where, when and of what it was taken."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import pwd
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._around_read import look_around
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot

from .scrub import Scrubber

#: Rises when recordings change their meaning; older ones are then taken again.
VERSION = 2
_WHENCE = ("about", "recorder", "kernel", "driver", "date", "gpus", "commands")
_NEEDED = (*_WHENCE, "simulated", "uid", "targets", "held", "raw", "snapshot")


@dataclass(frozen=True)
class Recording:
    """targets: PIDs that it is about. raw: PID -> the kernel's texts. held: PID -> GPU UUID -> bytes before a suspend.
    uid: of whoever took it. simulated: no real GPU."""

    about: str
    recorder: int
    kernel: str
    driver: str
    date: str
    gpus: List[str]
    simulated: bool
    uid: int
    targets: List[int]
    commands: Dict[str, List[str]]
    raw: Dict[int, Dict[str, Any]]
    held: Dict[int, Dict[str, Optional[int]]]
    snapshot: Snapshot


def take(
    about: str,
    targets: Sequence[int],
    held: Mapping[int, Mapping[str, Optional[int]]],
    uid: Optional[int] = None,
) -> Dict[str, Any]:
    """Reads the host now. uid: read as that user (needs root)."""
    data = _read(targets) if uid is None else _as_user(targets, uid)
    return {
        "about": about,
        "raw": {str(pid): raw(pid) for pid in targets if uid is None},
        "recorder": VERSION,
        "kernel": platform.release(),
        "driver": data["host"]["driver_version"],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "gpus": [gpu["name"] for gpu in data["gpus"]],
        "simulated": Path("/run/gpusim/host").exists(),
        "uid": os.geteuid() if uid is None else uid,
        "targets": list(targets),
        "commands": {
            str(one["identity"]["pid"]): one["command"]
            for one in data["processes"]
            if one["identity"]["pid"] in targets
        },
        "held": {str(pid): dict(sizes) for pid, sizes in held.items()},
        "snapshot": data,
    }


def _read(targets: Sequence[int]) -> Dict[str, Any]:
    """With everything around the targets."""
    return _snapshot.to_data(look_around(_snapshot.read_snapshot(targets), targets, "dump"))


def raw(pid: int) -> Dict[str, Any]:
    """The kernel's own texts about a process, as far as they concern GPUs; what can't be read is left out."""
    base = Path(f"/proc/{pid}")
    found: Dict[str, Any] = {}
    for name in ("stat", "status", "cgroup", "limits", "wchan"):
        with contextlib.suppress(OSError):
            found[name] = (base / name).read_text(errors="replace")
    with contextlib.suppress(OSError):
        lines = (base / "maps").read_text(errors="replace").splitlines()
        words = ("/dev/", "libcu", "libnccl", "libnvidia-ml", "Injection")
        found["maps"] = [line for line in lines if any(word in line for word in words)]
    with contextlib.suppress(OSError):
        found["fd"] = sorted(os.readlink(one) for one in (base / "fd").iterdir())
    return found


def _as_user(targets: Sequence[int], uid: int) -> Dict[str, Any]:
    from tests.conformance.conform.child import Child

    child = Child(lambda: _read(targets), uid)
    if not child.wait(120):
        raise RuntimeError(f"reading as user {uid} took more than 120 s")
    if child.value is None:
        raise RuntimeError(f"reading as user {uid} failed")
    value: Dict[str, Any] = child.value
    return value


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def scrubber(*directories: Path) -> Scrubber:
    """For what is known of this machine. directories: those of the run."""
    root = Path(__file__).resolve().parents[2]
    paths = {str(Path.home()): "/root" if os.geteuid() == 0 else "/home/user", str(root): "/collection"}
    paths.update({str(directory.resolve()): "/work" for directory in directories})
    paths.setdefault(tempfile.gettempdir(), "/tmp")
    user = _user_name()
    return Scrubber(paths, {platform.node(): "host", **({} if user == "root" else {user: "user"})})


def save(path: Path, data: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    new.rename(path)


def load(path: Path) -> Recording:
    """Raises ValueError for a recording that lacks what makes it one."""
    data = json.loads(path.read_text())
    lacking = [name for name in _NEEDED if name not in data or (name in _WHENCE and not data[name])]
    if lacking:
        raise ValueError(f"{path}: lacks {', '.join(lacking)}; take it again with tests/recorder")
    if data["recorder"] != VERSION:
        raise ValueError(f"{path}: taken by recorder {data['recorder']}, this is {VERSION}; take it again")
    return Recording(
        about=data["about"],
        recorder=data["recorder"],
        kernel=data["kernel"],
        driver=data["driver"],
        date=data["date"],
        gpus=data["gpus"],
        simulated=data["simulated"],
        uid=data["uid"],
        targets=data["targets"],
        commands=data["commands"],
        raw={int(pid): texts for pid, texts in data["raw"].items()},
        held={int(pid): sizes for pid, sizes in data["held"].items()},
        snapshot=_snapshot.from_data(data["snapshot"]),
    )
