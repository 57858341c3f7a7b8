# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /proc and NVML say, reduced to evidence."""

from __future__ import annotations

from typing import Any, Dict

from tests.conformance.conform.evidence import nccl_of, of_process, rss_class
from tests.conformance.conform.proc import (
    MIB,
    Mapping,
    Snapshot,
    how_often,
    parse_maps,
    parse_status,
    parse_unix,
    uvm_extra,
)

MAPS = """\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/work load
200000000-200200000 rw-s 00000000 00:05 7 /dev/nvidiactl
7f0000000000-7f0000200000 rw-s 00000000 00:05 1157 /dev/nvidia-uvm
7f0010000000-7f0020000000 rw-s 7f0010000000 00:05 1157 /dev/nvidia-uvm
7ffc0000-7ffd0000 rw-p 00000000 00:00 0
"""


def running(**changes: Any) -> Snapshot:
    values: Dict[str, Any] = {
        "pid": 100,
        "state": "S",
        "rss_anon": 300 * MIB,
        "descriptors": ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia0", "/dev/nvidiactl", "/tmp/out"),
        "mappings": tuple(parse_maps(MAPS)),
        "sockets": ("@cuda-uvmfd-4026531836-100",),
    }
    return Snapshot(**{**values, **changes})


def test_maps_keep_paths_with_blanks_and_anonymous_ranges() -> None:
    found = parse_maps(MAPS)
    assert found[0] == Mapping(0x400000, 0x452000, "/usr/bin/work load")
    assert found[-1].path == ""


def test_the_first_uvm_mapping_of_two_mib_is_normal() -> None:
    assert uvm_extra(tuple(parse_maps(MAPS))) == [256 * MIB]


def test_a_uvm_mapping_of_another_size_is_never_the_normal_one() -> None:
    assert uvm_extra((Mapping(0, 4 * MIB, "/dev/nvidia-uvm"),)) == [4 * MIB]


def test_unix_sockets_by_inode() -> None:
    text = "Num RefCount Protocol Flags Type St Inode Path\nf: 2 0 10000 1 1 12 @cuda-uvmfd-1-2\ne: 2 0 10000 1 1 13\n"
    assert parse_unix(text) == {"12": "@cuda-uvmfd-1-2", "13": ""}


def test_status_fields() -> None:
    assert parse_status("Name:\tx\nState:\tT (stopped)\n")["State"] == "T (stopped)"


def test_counts_are_classes() -> None:
    assert [how_often(n) for n in (0, 1, 2, 7)] == ["none", "once", "more", "more"]


def test_rss_classes() -> None:
    assert rss_class(356 * MIB, 100 * MIB, 256 * MIB) == "holds the device memory"
    assert rss_class(101 * MIB, 100 * MIB, 256 * MIB) == "does not"
    assert rss_class(300 * MIB, 100 * MIB, 256 * MIB) == "holds a part"


def test_evidence_of_a_running_process() -> None:
    found = of_process(running(), 290 * MIB, 256 * MIB, ["gpu0"], True)
    assert found == {
        "life": "alive",
        "nvml": ["gpu0"],
        "run": "run",
        "open": ["nvidia-uvm", "nvidia0", "nvidiactl"],
        "mapped": ["nvidia-uvm"],
        "nvidiactl": "once",
        "uvm_extra": "once",
        "uvm_extra_size": "the workload's or more",
        "uvmfd": True,
        "rss": "does not",
        "counter": "moves",
    }


def test_evidence_of_a_stopped_and_of_a_traced_process() -> None:
    assert of_process(running(state="T"), 0, MIB, None, None)["run"] == "stop"
    assert of_process(running(state="t"), 0, MIB, None, None)["run"] == "traced"


def test_a_dead_process_has_no_descriptors_to_speak_of() -> None:
    assert of_process(Snapshot(100), 0, MIB, [], False) == {"life": "dead", "nvml": [], "counter": "stands"}
    assert of_process(Snapshot(100, state="Z"), 0, MIB, [], None)["life"] == "zombie"


def test_nccl_evidence() -> None:
    assert nccl_of(running()) == {"nccl_socket": False, "nccl_shm": False}
    seen = running(sockets=("@tmp/nccl-socket-1-2",), descriptors=("/dev/shm/nccl-AbC",))
    assert nccl_of(seen) == {"nccl_socket": True, "nccl_shm": True}
