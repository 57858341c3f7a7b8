# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The `criu` executable: where it is, and its command lines.

CRIU never gets a plugin directory that holds anything: its own CUDA plugin would ask the driver about parked
processes, and wait for ever. Nor does it read configuration files: what it did is in the manifest, all of it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import List, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Command
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.options import SHELL_JOB, TCP, Chosen
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.run import PATH, Run, run
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import tool as cuda_tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_criu import parse_version
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

__all__ = ["DUMP_LOG", "LEAST", "Criu", "Run", "dump_argv", "find", "restore_argv", "run"]

DEFAULT = "criu"
LEAST = (4, 0)
SECONDS = 30.0
DUMP_LOG = "dump.log"
#: Gone with the next boot, and then made again.
STATE = "/run/gpufleet"
_GITID = re.compile(r"^GitID:\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Criu:
    """path: absolute. version: (4, 1, 1). gitid: of a build from a repository, "" for none."""

    path: str
    version: Tuple[int, ...]
    gitid: str


def find(executable: str = "") -> Criu:
    """`executable` itself if it has a slash, else that name, or `criu`, on PATH and in the usual places.

    Raises CriuError: it is missing, older than 4.0, or does not say what it is.
    """
    try:
        path = cuda_tool.find(executable or DEFAULT)
    except cuda_tool.ToolError as error:
        raise CriuError(
            executable or DEFAULT,
            str(error),
            "Images are made and restored with CRIU",
            "Install the package criu, version 4.0 or newer, or name the executable",
            "criu_executable",
        ) from None
    said = Command([path, "--version"]).finish(SECONDS)
    words = said.out + "\n" + said.err
    known = parse_version(words)
    if not known:
        first = said.problem or (said.lines[0] if said.lines else f"exit status {said.status} without a word")
        raise CriuError(
            path,
            f"asked for its version, it says: {printable(first[:200])}",
            "Only a CRIU that is known can be relied on with a process",
            f"Run {path} --version by hand, and install CRIU anew",
            "criu_executable",
        )
    version = tuple(int(part) for part in known.split("."))
    if version < LEAST:
        raise CriuError(
            path,
            f"its version is {known}",
            "Older ones than 4.0 fail on current kernels, and write images that lack what this needs",
            "Install CRIU 4.0 or newer",
            "criu_executable",
        )
    gitid = _GITID.search(words)
    return Criu(path, version, gitid.group(1) if gitid and gitid.group(1) != "0" else "")


def dump_argv(criu: Criu, root_pid: int, directory: str, chosen: Chosen, leave: str) -> List[str]:
    """directory: of the image, absolute. leave: "stopped", or "killed" by CRIU itself; see Chosen.must_kill.

    Raises ValueError for what CRIU would misread, CriuError where the directory without plugins can't be had.
    """
    if root_pid <= 1:
        raise ValueError(f"{root_pid} is no PID of a tree")
    if leave not in ("stopped", "killed"):
        raise ValueError(f"leave: {leave!r}")
    words = [criu.path, "dump", "--tree", str(root_pid), *_common(directory, os.path.join(directory, DUMP_LOG))]
    if leave == "stopped":
        words.append("--leave-stopped")
    if TCP in chosen.arguments and not _on_path("iptables-restore") and _on_path("nft"):
        words.append("--network-lock=nftables")
    return [*words, *chosen.arguments]


def restore_argv(criu: Criu, directory: str, chosen: Chosen, log_path: str) -> List[str]:
    """Every task comes back stopped, whatever it was: none may run without its GPU memory.

    directory: of the image; log_path: of the log. Both absolute. Raises ValueError, CriuError as dump_argv.
    """
    words = [criu.path, "restore", *_common(directory, log_path)]
    # CRIU's statistics would be one file more in the image than was hashed.
    words += ["--work-dir", own_directory("criu"), "--restore-detached", "--leave-stopped"]
    if SHELL_JOB in chosen.arguments:
        # The tree gets into CRIU's own session. Were CRIU its parent, the end of CRIU would orphan a process group with
        # stopped members, and the kernel sends such a group SIGHUP and SIGCONT: measured, it dies.
        words.append("--restore-sibling")
    return [*words, *chosen.arguments]


def _common(directory: str, log_path: str) -> List[str]:
    for path in (directory, log_path):
        if not os.path.isabs(path):
            raise ValueError(f"{path} is not absolute")
    words = ["--images-dir", directory, "--log-file", log_path, "-v4"]
    return [*words, "--no-default-config", "--libdir", _empty(own_directory("no-plugins"))]


def own_directory(name: str) -> str:
    """A directory below STATE that is root's alone. Raises CriuError."""
    path = STATE
    for part in ("", name):
        path = os.path.join(path, part) if part else path
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise _unusable(path, f"it can't be made: {error.strerror}") from None
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise _unusable(path, "it is no directory, or others than root can write to it")
    return path


def _empty(path: str) -> str:
    found = os.listdir(path)
    if found:
        raise _unusable(path, f"it holds {printable(found[0])}")
    return path


def _unusable(path: str, evidence: str) -> CriuError:
    return CriuError(
        path,
        evidence,
        "CRIU loads every plugin of the directory that it is given, so it is given one of root's that holds none",
        f"Remove {path}; it is made again",
    )


def _on_path(name: str) -> bool:
    return any(os.access(os.path.join(place, name), os.X_OK) for place in PATH.split(os.pathsep))
