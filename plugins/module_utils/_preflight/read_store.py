# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of the place where images are to lie."""

from __future__ import annotations

import os
import stat
from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import _files
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import StoreFacts
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import kernel_lines


def parse_kind(mountinfo: str, device: str) -> str:
    """The kind of file system with this device number, "8:1"; "" for none."""
    for line in kernel_lines(mountinfo):
        left, separator, right = line.partition(" - ")
        first, last = left.split(" "), right.split(" ")
        if separator and len(first) > 2 and first[2] == device:
            return last[0]
    return ""


def _existing(path: str) -> str:
    """The path itself, or the nearest directory above it that is there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _writable(status: os.stat_result) -> bool:
    """By others than its owner; the group of root counts as root."""
    return bool(status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != 0))


def _open_to_others(path: str) -> str:
    """The topmost directory on the way, the last one included, that others than root or the caller may write."""
    trusted = {0, os.geteuid()}
    ways = [path]
    while ways[-1] != "/":
        ways.append(os.path.dirname(ways[-1]))
    for way in reversed(ways):
        status = os.stat(way)
        # Others may add names below a sticky directory, but not rename what is there; the last one must not be such.
        sticky = bool(status.st_mode & stat.S_ISVTX) and way != path
        if status.st_uid not in trusted or (_writable(status) and not sticky):
            return way
    return ""


def read_store(path: str, mountinfo: str = "/proc/self/mountinfo") -> StoreFacts:
    """Raises nothing: what is wrong is the answer."""
    if not os.path.isabs(path):
        return StoreFacts(path, path, "it is not an absolute path", None, "", False, "")
    place = os.path.realpath(_existing(os.path.normpath(path)))
    try:
        status = os.stat(place)
        if not stat.S_ISDIR(status.st_mode):
            return StoreFacts(path, place, f"{place} is no directory", None, "", False, "")
        space = os.statvfs(place)
        device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
        kind = parse_kind(_files.text(mountinfo) or "", device)
        free: Optional[int] = space.f_bavail * space.f_frsize
        read_only = bool(space.f_flag & os.ST_RDONLY)
        return StoreFacts(path, place, "", free, kind, read_only, _open_to_others(place))
    except OSError as error:
        return StoreFacts(path, place, f"{place} can't be looked at: {error.strerror}", None, "", False, "")
