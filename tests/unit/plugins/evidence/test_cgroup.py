# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups of both versions, in directories that look like them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _cgroup
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cgroup import Cgroups, Mount

MIB = 1 << 20


def tree(root: Path, groups: Dict[str, Dict[str, str]]) -> None:
    for path, files in groups.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (root / path / name).write_text(text)


STAT = "anon 1000\nfile 900\nshmem 700\ninactive_file 100\nactive_file 60\nslab_reclaimable 40\nslab_unreclaimable 9\n"


def v2(tmp_path: Path, real_root: bool = True) -> Cgroups:
    tree(
        tmp_path,
        {
            "": {"cgroup.controllers": "memory"}
            if real_root
            else {"cgroup.events": "frozen 0\n", "memory.max": "max\n"},
            "a.slice": {
                "cgroup.events": "populated 1\nfrozen 0\n",
                "cgroup.freeze": "0\n",
                "memory.max": f"{100 * MIB}\n",
                "memory.high": f"{80 * MIB}\n",
                "memory.current": f"{50 * MIB}\n",
                "memory.stat": STAT,
            },
            "a.slice/b.service": {"cgroup.events": "populated 1\nfrozen 0\n", "cgroup.freeze": "0\n"},
        },
    )
    return Cgroups((Mount(2, (), "/", str(tmp_path)),))


def test_v2_every_ancestor_is_read(tmp_path: Path) -> None:
    found = v2(tmp_path).of((("", "/a.slice/b.service"),))
    assert [group.path for group in found] == ["/a.slice/b.service", "/a.slice", "/"]
    service, slice_, root = found
    assert (slice_.memory_max, slice_.memory_high, slice_.memory_current) == (100 * MIB, 80 * MIB, 50 * MIB)
    assert slice_.reclaimable == 200, "file pages of tmpfs are not given back"
    assert service.memory_max is None and service.memory_current is None and not service.accounts_memory
    assert [group.frozen for group in found] == [False, False, False]
    assert not root.hidden_ancestors and all(group.unreadable == () for group in found)


def test_v2_frozen_above_is_frozen(tmp_path: Path) -> None:
    reader = v2(tmp_path)
    (tmp_path / "a.slice/cgroup.freeze").write_text("1\n")
    found = reader.of((("", "/a.slice/b.service"),))
    assert [group.frozen for group in found] == [False, True, False]
    assert _cgroup.frozen(found) is True


def test_v2_in_a_namespace_what_is_above_stays_unknown(tmp_path: Path) -> None:
    found = v2(tmp_path, real_root=False).of((("", "/a.slice/b.service"),))
    assert [group.hidden_ancestors for group in found] == [False, False, True]


def v1(tmp_path: Path, real_root: bool = True) -> Cgroups:
    marker = {"release_agent": ""} if real_root else {}
    none = f"{(1 << 63) - 4096}\n"
    tree(
        tmp_path,
        {
            "memory": {**marker, "memory.limit_in_bytes": none, "memory.usage_in_bytes": "7\n", "memory.stat": ""},
            "memory/job": {
                "memory.limit_in_bytes": f"{64 * MIB}\n",
                "memory.usage_in_bytes": f"{MIB}\n",
                "memory.stat": "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 30\n",
            },
            "freezer": marker,
            "freezer/job": {"freezer.state": "FREEZING\n"},
        },
    )
    return Cgroups(
        (
            Mount(1, ("memory",), "/", str(tmp_path / "memory")),
            Mount(1, ("freezer",), "/", str(tmp_path / "freezer")),
        )
    )


def test_v1_memory_and_freezer_are_groups_of_their_own(tmp_path: Path) -> None:
    lines = (("name=systemd", "/job"), ("freezer", "/job"), ("memory", "/job"), ("cpu,cpuacct", "/"))
    found = v1(tmp_path).of(lines)
    assert [(group.hierarchy, group.path) for group in found] == [
        ("freezer", "/job"),
        ("freezer", "/"),
        ("memory", "/job"),
        ("memory", "/"),
    ]
    assert found[0].frozen is True and found[1].frozen is False
    assert (found[2].memory_max, found[2].memory_current, found[2].reclaimable) == (64 * MIB, MIB, 330)
    assert found[3].memory_max is None, "the largest number is no limit"
    assert not found[3].hidden_ancestors
    assert _cgroup.frozen(found) is True


def test_v1_in_a_namespace(tmp_path: Path) -> None:
    found = v1(tmp_path, real_root=False).of((("memory", "/job"),))
    assert [group.hidden_ancestors for group in found] == [False, True]


def test_a_hierarchy_that_is_not_mounted_is_unknown(tmp_path: Path) -> None:
    found = Cgroups((Mount(2, (), "/", str(tmp_path)),)).of((("memory", "/job"), ("freezer", "/job")))
    assert [group.unreadable for group in found] == [("memory",), ("frozen",)]
    assert _cgroup.frozen(found) is None
    assert found[0].accounts_memory


def test_a_process_outside_the_namespace_is_unknown(tmp_path: Path) -> None:
    found = v2(tmp_path).of((("", "/../elsewhere"),))
    assert [(group.path, group.frozen, group.unreadable) for group in found] == [
        ("/../elsewhere", None, ("memory", "frozen"))
    ]


def test_a_bind_mount_of_a_part(tmp_path: Path) -> None:
    v2(tmp_path)
    reader = Cgroups((Mount(2, (), "/outer", str(tmp_path)),))
    found = reader.of((("", "/outer/a.slice"),))
    assert [(group.path, group.memory_max) for group in found] == [("/outer/a.slice", 100 * MIB), ("/outer", None)]
    assert _cgroup.frozen(reader.of((("", "/other"),))) is None


def test_what_may_not_be_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = v2(tmp_path)
    real = open

    def opened(path: object, *rest: object) -> object:
        if str(path).endswith(("a.slice/memory.max", "a.slice/cgroup.events")):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", opened)
    found = reader.of((("", "/a.slice/b.service"),))
    assert found[1].unreadable == ("memory", "frozen") and found[1].frozen is None
    assert _cgroup.frozen(found) is None


def test_a_group_is_read_once_for_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = v2(tmp_path)
    first = reader.of((("", "/a.slice/b.service"),))
    (tmp_path / "a.slice/memory.max").write_text("1\n")
    assert reader.of((("", "/a.slice"),)) == first[1:]


def test_texts() -> None:
    mountinfo = (
        "32 24 0:27 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw\n"
        "33 32 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "34 32 0:29 /docker/x /sys/fs/cgroup/my\\040unified ro - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    cpu, unified = _cgroup.parse_mounts(mountinfo)
    assert cpu.version == 1 and {"cpu", "cpuacct"} <= set(cpu.controllers)
    assert unified == Mount(2, (), "/docker/x", "/sys/fs/cgroup/my unified")
    lines = _cgroup.parse_membership("4:memory:/a:b\n1:name=systemd:/x (deleted)\n0::/user.slice\n")
    assert lines == (("memory", "/a:b"), ("name=systemd", "/x"), ("", "/user.slice"))


def test_this_process_on_this_machine() -> None:
    found = _cgroup.read_cgroups(os.getpid())
    assert found, "every kernel that is supported has control groups"
    assert _cgroup.frozen(found) is not True
    assert _cgroup.read_cgroups(2**22 + 1) == ()
