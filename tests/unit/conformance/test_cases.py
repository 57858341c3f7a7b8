# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of cases itself."""

from __future__ import annotations

import ctypes

from tests.conformance.conform import backend
from tests.conformance.conform.backend import Cli, LockArgs, OtherArgs, Request, RestoreArgs, _struct, uuid_bytes
from tests.conformance.conform.host import Host, limit_gpus
from tests.conformance.conform.options import PROFILES, Options
from tests.conformance.conform.registry import SANITY, load, scope, select

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
KNOWN = {
    "root",
    "criu",
    "nccl",
    "mps",
    "smi",
    "pidns",
    "mount",
    "memory_cgroup",
    "freezer_cgroup",
    "torch",
    "jax",
    "cupy",
    "sysctl",
    "kernel_threads",
    "real_gpu",
}


def test_requirements_are_known_so_that_none_is_silently_met() -> None:
    for case in load():
        for requirement in case.requires:
            assert requirement in KNOWN or requirement.startswith("gpus>="), (case.name, requirement)


def test_every_case_runs_on_a_backend_that_exists_and_says_what_it_shows() -> None:
    for case in load():
        assert set(case.backends) <= {"libcuda", "cli"}
        assert case.backends
        assert "/" in case.name


def test_a_host_with_two_gpus_shows_what_needs_two_and_one_case_more() -> None:
    cases = load()
    assert scope(cases, 1) == cases
    names = [case.name for case in scope(cases, 2)]
    assert SANITY in names
    assert "map/swap" in names
    assert "map/bad" not in names


def test_selection_by_glob() -> None:
    assert [case.name for case in select(load(), ["state/t*"])] == ["state/table", "state/two-processes"]


def test_a_host_says_why_it_lacks_something() -> None:
    host = Host("580", "13.0", ((UUID, "NVIDIA H200", 1024),), "", None, None, {"criu": "needs CRIU"})
    assert host.lacks("gpus>=1") == ""
    assert host.lacks("gpus>=2") == "needs 2 GPUs, the host has 1"
    assert host.lacks("criu") == "needs CRIU"
    assert host.lacks("root") == ""
    assert limit_gpus(host, 0).lacks("gpus>=1") == "needs 1 GPUs, the host has 0"


def test_argument_structs_are_64_bytes_and_zero_but_for_what_is_asked() -> None:
    assert ctypes.sizeof(LockArgs) == ctypes.sizeof(RestoreArgs) == ctypes.sizeof(OtherArgs) == 64
    assert bytes(_struct(Request("lock", 1, timeout_ms=500))) == (500).to_bytes(4, "little") + bytes(60)
    assert bytes(_struct(Request("checkpoint", 1))) == bytes(64)
    assert bytes(_struct(Request("restore", 1))) == bytes(64)
    assert any(bytes(_struct(Request("unlock", 1, args="reserved"))))


def test_device_pairs() -> None:
    args = _struct(Request("restore", 1, device_map=((UUID, UUID),)))
    assert args.count == 1
    assert bytes(args.pairs[0].old) == bytes(args.pairs[0].new) == bytes.fromhex("00112233445566778899aabbccddeeff")
    assert uuid_bytes(UUID) == uuid_bytes(UUID[4:])


def test_command_lines() -> None:
    cli = Cli("cuda-checkpoint")
    assert cli.argv(Request("state", 7)) == ["cuda-checkpoint", "--get-state", "--pid", "7"]
    assert cli.argv(Request("toggle", 7)) == ["cuda-checkpoint", "--toggle", "--pid", "7"]
    assert cli.argv(Request("lock", 7, timeout_ms=500))[1:] == ["--action", "lock", "--pid", "7", "--timeout", "500"]
    assert cli.argv(Request("restore", 7, device_map=(("a", "b"), ("b", "a"))))[-2:] == ["--device-map", "a=b,b=a"]


def test_a_call_that_does_not_come_back_is_no_answer_and_can_be_cut() -> None:
    pending = Cli("sleep").start_argv(["100"])
    assert pending.wait(0.05) is None
    pending.kill()


def test_output_and_exit_code_of_the_tool_are_kept() -> None:
    reply = Cli("sh").start_argv(["-c", "echo out; echo err >&2; exit 1"]).wait(10)
    assert reply is not None
    assert reply.result == {"rc": 1, "out": "out", "err": "err"}
    assert not reply.ok


def test_a_library_call_in_its_own_process() -> None:
    # getpid takes no arguments and so serves as a function that answers.
    backend.FUNCTIONS["getpid"] = "getpid"
    try:
        pending = backend.Libcuda("libc.so.6").start(Request("getpid", 0))
        reply = pending.wait(10)
    finally:
        del backend.FUNCTIONS["getpid"]
    assert reply is not None
    assert reply.result == str(pending.pid)


def test_patience_can_be_shortened() -> None:
    options = Options("sim", "w", "criu", "l", "c", "n", "p", False, 5.0)
    assert options.sizes.patience == 5.0
    assert Options.from_json(options.to_json()) == options
    assert Options("sim", "w", "criu", "l", "c", "n", "p", False).sizes == PROFILES["sim"]
