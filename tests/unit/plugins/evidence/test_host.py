# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's own numbers."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _host

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (b)\nGCC version:\n"
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Wed Mar 19 05:34:02 UTC 2025\nGCC version: 12.2.0\n"
)
TWO = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  610.57  Tue Sep 1 00:00:00 UTC 2026\n"


@pytest.mark.parametrize(
    "text, version",
    [(OPEN, "580.159.04"), (CLOSED, "550.163.01"), (TWO, "610.57"), ("GCC version: 12.2.0\n", ""), ("", "")],
)
def test_driver_version(text: str, version: str) -> None:
    assert _host.parse_driver_version(text) == version


def test_meminfo() -> None:
    text = "MemTotal:       24684092 kB\nHugePages_Total:       0\nMemAvailable:    1024 kB\n"
    assert _host.parse_meminfo(text) == {"MemTotal": 24684092 * 1024, "MemAvailable": 1 << 20}


def test_choice() -> None:
    assert _host.parse_choice("always [madvise] never\n") == "madvise"
    assert _host.parse_choice("") == ""


def test_this_machine() -> None:
    host = _host.read_host()
    assert host.boot_id == _host.read_boot_id() and len(host.boot_id) == 36
    assert host.kernel == os.uname().release and host.effective_uid == os.geteuid()
    assert host.memory_total and host.memory_available and host.memory_available <= host.memory_total
    assert host.unreadable == ()
    first, second = (int(part) for part in re.findall(r"\d+", host.kernel)[:2])
    assert host.socket_credentials is False or (first, second) < (6, 16)


def test_headroom_binds_only_where_it_is_strict() -> None:
    host = replace(_host.read_host(), commit_limit=100, committed=30)
    assert replace(host, overcommit_memory=0).commit_headroom is None
    assert replace(host, overcommit_memory=1).commit_headroom is None
    assert replace(host, overcommit_memory=2).commit_headroom == 70
    assert replace(host, overcommit_memory=2, committed=130).commit_headroom == 0


def test_driver_branch() -> None:
    host = _host.read_host()
    assert replace(host, driver_version="580.159.04").driver_branch == 580
    assert replace(host, driver_version="").driver_branch == 0
