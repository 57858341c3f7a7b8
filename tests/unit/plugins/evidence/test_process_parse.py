# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of /proc/PID, parsed."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _process_parse as parse

MAPS = """\
200600000-200800000 rw-s 00000000 00:05 713                              /dev/nvidia0
200800000-204000000 rw-s 00000000 00:05 712                              /dev/nvidiactl
204a00000-204c00000 rw-s 204a00000 00:05 720                             /dev/nvidia-uvm
7ff280000000-7ff290000000 rw-s 7ff280000000 00:05 720                    /dev/nvidia-uvm
7ff2b8000000-7ff2b8001000 r--p 00000000 08:01 99                         /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
7ff2b8001000-7ff2b8002000 r-xp 00001000 08:01 99                         /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
7ff2b8100000-7ff2b8101000 r--p 00000000 08:01 98                         /opt/venv/lib/libcudart.so.13
7ff2b8200000-7ff2b8201000 r--p 00000000 08:01 97                         /opt/my venv/nccl/lib/libnccl.so.2
7ff2b8300000-7ff2b8301000 r--p 00000000 08:01 96                         /usr/lib/libnvidia-ml.so.1 (deleted)
7ff2b8400000-7ff2b8500000 rw-s 00000000 00:1a 5                          /dev/shm/nccl-AbCdEf (deleted)
7ff2b8600000-7ff2b8700000 rw-p 00000000 00:00 0                          [heap]
7ff2b8700000-7ff2b8800000 rw-p 00000000 00:00 0
"""


def test_maps() -> None:
    found = parse.parse_maps(MAPS)
    assert found.devices == (
        ("/dev/nvidia0", 0x200600000, 2 << 20),
        ("/dev/nvidiactl", 0x200800000, 56 << 20),
        ("/dev/nvidia-uvm", 0x204A00000, 2 << 20),
        ("/dev/nvidia-uvm", 0x7FF280000000, 256 << 20),
    )
    assert found.libraries == ("libcuda.so.580.159.04", "libnccl.so.2", "libnvidia-ml.so.1")
    assert found.shm_files == ("/dev/shm/nccl-AbCdEf (deleted)",)


@pytest.mark.parametrize("separator", "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
def test_a_file_may_have_any_name(separator: str) -> None:
    """The kernel escapes nothing but the line feed."""
    line = f"7f0000000000-7f0000001000 rw-s 00000000 00:1a 5   /tmp/x{separator}/dev/nvidia-uvm\n"
    assert parse.parse_maps(line + MAPS) == parse.parse_maps(MAPS)
    assert parse.parse_status(f"Name:\tx{separator}Tgid: 7\nTgid:\t590\n")["Tgid"] == "590"
    assert parse.parse_status(f"Name:\tx{separator}NStgid: 7\n").keys() == {"Name"}


def test_a_name_of_anonymous_memory_is_no_path() -> None:
    line = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0   [anon:/dev/nvidia-uvm]\n"
    assert parse.parse_maps(line) == parse.parse_maps("")


@pytest.mark.parametrize(
    "line, matters",
    [
        (b"7f00-7f01 r--p 0 08:01 1 /usr/lib/libcuda.so.1\n", True),
        (b"7f00-7f01 rw-s 0 00:05 1 /dev/nvidia0\n", True),
        (b"7f00-7f01 r-xp 0 08:01 1 /usr/bin/nvidia-cuda-mps-server\n", True),
        (b"7f00-7f01 r-xp 0 08:01 1 /usr/lib/libcudart.so.13\n", False),
        (b"7f00-7f01 r-xp 0 08:01 1 /usr/lib/libc.so.6\n", False),
    ],
)
def test_which_processes_matter(line: bytes, matters: bool) -> None:
    assert parse.may_matter(line) is matters


def stat_line(name: str, state: str = "S", flags: int = 4194304, threads: int = 3) -> str:
    return f"12 ({name}) {state} 7 12 11 34816 -1 {flags} 0 0 0 0 4 5 0 0 20 0 {threads} 0 1309668 296771584 35253 18"


@pytest.mark.parametrize("name", ["python3", "a) S 1 2 (b", "tmux: server", "", "two words"])
def test_stat_of_any_name(name: str) -> None:
    found = parse.parse_stat(stat_line(name))
    assert found == parse.Stat(name, "S", 7, 12, 11, 34816, -1, False, 3, 1309668)


def test_stat_knows_kernel_threads_and_refuses_a_cut_line() -> None:
    found = parse.parse_stat(stat_line("kworker/0:1", flags=0x00208040))
    assert found is not None and found.kernel_thread
    assert parse.parse_stat(stat_line("x")[:40]) is None
    assert parse.parse_stat("") is None


def test_limits() -> None:
    text = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max data size             805306368            unlimited            bytes     \n"
        "Max address space         unlimited            unlimited            bytes     \n"
        "Max nice priority         0                    0                    \n"
    )
    assert parse.parse_limits(text) == {"Max data size": 805306368, "Max address space": None, "Max nice priority": 0}


def test_environment_keeps_nothing_else() -> None:
    data = b"HOME=/root\0TOKEN=secret\0WORLD_SIZE=8\0CUDA_MPS_PIPE_DIRECTORY=/run/mps\0NOTHING\0MY_WORLD_SIZE=3\0"
    assert parse.parse_environment(data) == {"WORLD_SIZE": "8", "CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}


def test_descriptors() -> None:
    found = parse.sort_descriptors(
        [
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidiactl",
            "/dev/null",
            "socket:[17]",
            "pipe:[4]",
            "pipe:[4]",
            "pipe:[5]",
            "pipe:[6]",
            "pipe:[7]",
            "pipe:[7]",
            "pipe:[7]",
            "anon_inode:[eventfd]",
            "anon_inode:[io_uring]",
            "/dev/shm/nccl-x",
            "/home/user/nvidia",
        ]
    )
    assert found.devices == ("/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidiactl")
    assert found.inodes == (17,)
    assert found.anonymous == ("[eventfd]", "[io_uring]")
    assert found.shm_files == ("/dev/shm/nccl-x",)
    assert found.lone_pipes == 2


@pytest.mark.parametrize(
    "names, pids, owns",
    [
        (["@cuda-uvmfd-4026531836-590"], [590], True),
        (["@cuda-uvmfd-4026532266-1"], [3417, 1], True),  # in a PID namespace
        (["@cuda-uvmfd-4026531836-590"], [591], False),  # a forked child has the parent's
        (["@cuda-uvmfd-4026531836-5901"], [590], False),
        (["/run/cuda-uvmfd-1-590"], [590], False),
        ([], [590], False),
    ],
)
def test_socket_of_the_memory_manager(names: list[str], pids: list[int], owns: bool) -> None:
    assert parse.owns_uvm_socket(names, pids) is owns


@pytest.mark.parametrize(
    "state, wchan, frozen",
    [
        ("S", "do_freezer_trap", True),
        ("D", "__refrigerator", True),
        ("S", "futex_wait_queue", False),
        ("R", "0", False),
        ("S", "0", None),  # the kernel does not tell
        ("D", "io_schedule", None),
        ("D", "", None),
    ],
)
def test_freezer_by_where_it_waits(state: str, wchan: str, frozen: object) -> None:
    assert parse.waits_in_freezer(state, wchan) is frozen
