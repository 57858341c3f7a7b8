# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Out of the SSH session's control group: where logind ends a session's processes with it (KillUserProcesses=), workers
would be killed when Ansible disconnects. A transient systemd scope is theirs alone, and ends with the last of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import List, Sequence

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines

SECONDS = 10.0
_PAUSE = 0.005


def command(busctl: str, name: str, description: str, pids: Sequence[int]) -> List[str]:
    """The argument list of one call of StartTransientUnit (org.freedesktop.systemd1.Manager)."""
    manager = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
    properties = ["2", "Description", "s", description, "PIDs", "au", str(len(pids)), *map(str, pids)]
    call = [busctl, "--system", "call", *manager, "StartTransientUnit", "ssa(sv)a(sa(sv))"]
    return [*call, f"{name}.scope", "fail", *properties, "0"]


def move(name: str, description: str, pids: Sequence[int]) -> str:
    """Move these processes into a scope of their own. Returns why not, "" when it is done or there is no systemd."""
    busctl = shutil.which("busctl", path="/usr/bin:/bin")
    if not pids or os.geteuid() != 0 or busctl is None or not os.path.isdir("/run/systemd/system"):
        return ""
    try:
        # No AnsibleModule here to run it with, and its run_command has no deadline.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            command(busctl, name, description, pids),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the workers stay in the session's control group: {error}"
    if done.returncode != 0:
        return f"the workers stay in the session's control group: {done.stderr.decode(errors='replace').strip()}"
    return _wait(f"{name}.scope", pids)


def _wait(scope: str, pids: Sequence[int]) -> str:
    """What systemd answers with is a job that it has yet to do. Until then, whatever they fork stays behind."""
    end = time.monotonic() + SECONDS
    while not all(_is_in(scope, pid) for pid in pids):
        if time.monotonic() > end:
            return f"systemd has not moved them into {scope} within {SECONDS:.0f} s"
        time.sleep(_PAUSE)
    return ""


def _is_in(scope: str, pid: int) -> bool:
    """Also where it has ended meanwhile."""
    try:
        with open(f"/proc/{pid}/cgroup", errors="surrogateescape") as stream:
            return any(line.endswith("/" + scope) for line in kernel_lines(stream.read()))
    except OSError:
        return True
