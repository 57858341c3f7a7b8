# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel's files say: mounts, cgroups, processes."""

import os

import pytest

from tests.fleet.gpufleet_testfleet import cgroups, mountinfo, processes, supervisor
from tests.fleet.gpufleet_testfleet.errors import FleetError

HYBRID = """\
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:5 master:7 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
PURE = "29 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"


def test_mountinfo() -> None:
    line = "36 35 98:0 /a\\040b /mnt\\134x\\012y rw,noatime master:1 shared:2 - ext3 /dev/a\\040b rw,errors=continue\n"
    assert mountinfo.parse(line) == [
        mountinfo.Mount("/a b", "/mnt\\x\ny", "ext3", "/dev/a b", frozenset({"rw", "errors=continue"}))
    ]


def test_mountinfo_without_a_source_or_cut_short() -> None:
    assert mountinfo.parse("1 0 0:1 / / rw -\n\nnonsense\n") == []
    assert mountinfo.parse("1 0 0:1 / /x rw - tmpfs  rw\n")[0].source == ""


def test_mounts_of_this_process() -> None:
    assert any(mount.point == "/proc" and mount.fstype == "proc" for mount in mountinfo.of_process("self"))
    assert mountinfo.of_process(2**22 + 1) == []


def test_cgroups_of_a_hybrid_machine() -> None:
    found = cgroups.from_mounts(mountinfo.parse(HYBRID))
    assert str(found.unified) == "/sys/fs/cgroup/unified"
    assert {name: str(path) for name, path in found.v1.items()} == {
        "memory": "/sys/fs/cgroup/memory",
        "name=systemd": "/sys/fs/cgroup/systemd",
    }


def test_cgroups_of_an_ordinary_machine() -> None:
    found = cgroups.from_mounts(mountinfo.parse(PURE))
    assert str(found.unified) == "/sys/fs/cgroup"
    assert found.v1 == {}


def test_no_v2_at_all() -> None:
    with pytest.raises(FleetError, match="no cgroup2 file system"):
        cgroups.from_mounts(mountinfo.parse(HYBRID.rpartition("41 31")[0]))


def test_processes() -> None:
    own = os.getpid()
    state, start = processes.state_and_start(own) or ("", 0)
    assert state == "R" and start > 0
    assert processes.is_alive(own)
    assert not processes.is_alive(2**22 + 1)
    assert {own, os.getppid()} <= processes.ancestors(own)
    assert processes.pids_inside(own)[0] == own
    assert processes.init_of([own]) is None
    assert processes.namespace(own, "net") == os.readlink("/proc/self/ns/net")


def wait_status(code: int = 0, killed: int = 0) -> int:
    return code << 8 | killed


@pytest.mark.parametrize(
    "init,status,phase",
    [
        ("none", wait_status(killed=1), "reboot"),
        ("none", wait_status(killed=2), "off"),
        ("none", wait_status(killed=9), "failed"),
        ("none", wait_status(code=0), "failed"),
        ("none", wait_status(code=133), "failed"),
        ("systemd", wait_status(code=133), "reboot"),
        ("systemd", wait_status(code=0), "off"),
        ("systemd", wait_status(killed=1), "failed"),
        ("systemd", wait_status(killed=9), "failed"),
        ("systemd", wait_status(code=1), "failed"),
    ],
)
def test_how_a_boot_ended(init: str, status: int, phase: str) -> None:
    assert supervisor.ending(init, status)[0] == phase
