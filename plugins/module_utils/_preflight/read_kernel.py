# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of what the caller may do, and of what the kernel was built and set for."""

from __future__ import annotations

import os
import re
from typing import Optional, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import _files
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import KernelFacts, RightsFacts

_OPTION = "CONFIG_CHECKPOINT_RESTORE"
#: This file exists in kernels with that option, and in no other.
_MARK = "sys/kernel/ns_last_pid"
_IDENTICAL = ["0", "0", "4294967295"]


def parse_config(text: str) -> Optional[bool]:
    """Whether a kernel's configuration has the option; None for a text that is none."""
    if re.search(rf"^{_OPTION}=y$", text, re.MULTILINE):
        return True
    return False if "CONFIG_" in text else None


def _config(proc: str, boot: str, modules: str, release: str) -> Tuple[Optional[bool], str]:
    packed = _files.data(os.path.join(proc, "config.gz"))
    if packed is not None:
        import gzip  # most hosts tell without it

        try:
            return parse_config(gzip.decompress(packed).decode(errors="replace")), "/proc/config.gz"
        except (OSError, EOFError):
            pass
    for path in (os.path.join(boot, f"config-{release}"), os.path.join(modules, release, "config")):
        found = _files.text(path)
        if found is not None:
            return parse_config(found), path
    return None, ""


def read_kernel(release: str, proc: str = "/proc", boot: str = "/boot", modules: str = "/lib/modules") -> KernelFacts:
    """release: as `uname -r` prints it."""
    io_uring = _files.number(os.path.join(proc, "sys/kernel/io_uring_disabled"))
    if os.path.exists(os.path.join(proc, _MARK)):
        return KernelFacts(True, f"/proc/{_MARK}", io_uring)
    built, told_by = _config(proc, boot, modules, release)
    return KernelFacts(built, told_by, io_uring)


def read_rights(proc: str = "/proc") -> RightsFacts:
    status = _files.text(os.path.join(proc, "self/status")) or ""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    mapping = _files.text(os.path.join(proc, "self/uid_map"))
    hidepid = re.search(r" /proc \S+(?: \S+)* - proc \S+ \S*hidepid=(\w+)", _files.text(f"{proc}/self/mountinfo") or "")
    return RightsFacts(
        uid=os.geteuid(),
        capabilities=int(match.group(1), 16) if match else None,
        initial_user_namespace=mapping is None or mapping.split() == _IDENTICAL,
        hidepid=hidepid.group(1) if hidepid else "",
    )
