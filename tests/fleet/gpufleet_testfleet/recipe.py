# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the base image is made of. A change to this file makes a new image."""

from __future__ import annotations

import shutil
from pathlib import Path

SUITE = "trixie"

PACKAGES = (
    "criu",
    "dbus",
    "iproute2",
    "kmod",
    "openssh-server",
    "procps",
    "python3",
    "python3-psutil",
    "rsync",
    "socat",
    "sudo",
    "systemd-sysv",
    "util-linux",
    "zstd",
)

# What a test host never needs and what would cost each boot time, keys that the fleet makes itself, and file systems
# that are the whole machine's.
_MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dev-hugepages.mount",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "getty@tty1.service",
    "ldconfig.service",
    "sshd-keygen.service",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-firstboot.service",
    "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service",
    "systemd-sysusers.service",
    "systemd-update-done.service",
)

# Penalties and start limits protect a server from strangers; here one address opens many sessions at once.
_SSHD = """\
PermitRootLogin prohibit-password
PasswordAuthentication no
MaxStartups 200:30:400
MaxSessions 100
PerSourcePenalties no
PrintMotd no
"""


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def finish(root: Path) -> None:
    """Turn a fresh debootstrap into a base for all hosts: nothing that identifies one, nothing to fetch again."""
    for name in ("dev", "run", "tmp", "var/cache/apt/archives", "var/lib/apt/lists"):
        _empty(root / name)
    for log in (root / "var/log").rglob("*"):
        if log.is_file() and not log.is_symlink():
            log.unlink()
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    for name in ("etc/machine-id", "etc/hostname", "etc/resolv.conf", "etc/fstab"):
        (root / name).unlink(missing_ok=True)
        (root / name).write_text("")
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    for unit in _MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    (root / "etc/ssh/sshd_config.d/00-fleet.conf").write_text(_SSHD)
    default = root / "etc/systemd/system/default.target"
    default.unlink(missing_ok=True)
    default.symlink_to("/usr/lib/systemd/system/multi-user.target")
