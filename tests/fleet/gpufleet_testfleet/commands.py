# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running the machine's tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .errors import FleetError

# Descriptors that every child keeps: a command's lock stays taken until its last child is gone, even if it is killed.
KEEP: list[int] = []

_TOOLS = ("cp", "debootstrap", "ip", "mkfs.ext4", "nsenter", "scp", "setpriv", "sftp", "ssh", "ssh-keygen", "unshare")
_TOOLS_SYSTEMD = ("systemd-nspawn",)


def run(argv: list[str], stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        argv,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        check=False,
        pass_fds=KEEP,
    )
    if check and result.returncode != 0:
        said = (result.stderr or result.stdout).strip()
        raise FleetError(f"{' '.join(argv)}: ended with status {result.returncode}: {said}")
    return result


def packages() -> list[str]:
    """The Debian packages that the control machine needs."""
    lines = (Path(__file__).resolve().parent.parent / "apt-packages.txt").read_text().splitlines()
    return [name for line in lines if (name := line.partition("#")[0].strip())]


def require_tools(init: str) -> None:
    wanted = _TOOLS + (_TOOLS_SYSTEMD if init == "systemd" else ())
    missing = [tool for tool in wanted if shutil.which(tool) is None]
    if missing:
        raise FleetError(
            f"this machine lacks {', '.join(missing)}; install what the fleet needs:"
            f" apt-get install --no-install-recommends {' '.join(packages())}"
        )
