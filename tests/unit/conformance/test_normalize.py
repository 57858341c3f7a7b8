# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts made comparable."""

from __future__ import annotations

import pytest

from tests.conformance.conform.normalize import Names, criu_reason, options_in, tool_output, without_versions

GPU = "GPU-0a1b2c3d-1111-2222-3333-444455556666"


def names() -> Names:
    made = Names({GPU: "gpu0"})
    made.add_pid(4711, "w1")
    made.add_pid(47, "w2")
    return made


def test_pids_and_uuids_get_names() -> None:
    text = f'Could not lock on process ID 4711: "device not ready" {GPU}\n'
    assert names().clean(text) == 'Could not lock on process ID <w1>: "device not ready" <gpu0>'


def test_a_pid_inside_a_longer_number_stays() -> None:
    assert names().clean("14711 47110 47") == "14711 47110 <w2>"


def test_small_numbers_are_arguments_not_pids() -> None:
    made = names()
    made.add_pid(1, "init")
    assert made.clean("process ID 1") == "process ID 1"


def test_an_unknown_gpu_does_not_leak_its_uuid() -> None:
    assert names().clean("GPU-ffffffff-1111-2222-3333-444455556666") == "<unknown gpu>"


def test_paths_of_the_run_are_replaced() -> None:
    made = names()
    made.add_text("/tmp/x47/cuda-checkpoint", "cuda-checkpoint")
    assert made.clean("/tmp/x47/cuda-checkpoint: unrecognized option") == "cuda-checkpoint: unrecognized option"


def test_options_of_a_help_text() -> None:
    text = "--get-state --pid <pid>\n--action lock | unlock --pid <pid> [--timeout <ms>]\n--pid|-p\nsome--thing"
    assert options_in(text) == ["--action", "--get-state", "--pid", "--timeout"]


def test_versions_and_addresses_are_replaced() -> None:
    assert without_versions("Version 580.159.04 at 0x7f00") == "Version <version> at <address>"


HELP = "Utility to checkpoint, a utility.\n--get-state --pid <pid>\n--action lock --pid <pid>\n"


def test_a_help_text_is_its_options() -> None:
    assert tool_output(HELP) == {"help": ["--action", "--get-state", "--pid"]}
    assert tool_output("Missing pid\n\n" + HELP) == {
        "help": ["--action", "--get-state", "--pid"],
        "first": "Missing pid",
    }


def test_an_option_that_only_the_complaint_names_is_none_of_the_tool() -> None:
    assert tool_output("unrecognized option '--wrong'\n" + HELP)["help"] == ["--action", "--get-state", "--pid"]


def test_any_other_text_stays() -> None:
    assert tool_output('Could not lock on process ID <w1>: "device not ready"').startswith("Could not lock")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "(00.018) Error (criu/files-reg.c:2183): File work/w1 has bad size 7 (expect 5)",
            "has bad size",
        ),
        ("(00.011) Error (criu/proc_parse.c:113): handle_device_vma plugin failed: No such file", "refuses a device"),
        ("(00.009) Error (criu/files-ext.c:96): Can't dump file 3 of that type (chr 10:229)", "refuses a device"),
        ("(00.002) Error (criu/cr-restore.c:1234): Can't fork for 4711: File exists", "Can't fork: File exists"),
        ("(00.030) Error (criu/image.c:99): write: No space left on device", "No space left on device"),
    ],
)
def test_criu_reasons(line: str, reason: str) -> None:
    log = "(00.001) Version: 4.1.1\n" + line + "\n(00.1) Error (criu/cr-dump.c:2128): Dumping FAILED.\n"
    assert criu_reason(log) == reason


def test_an_unknown_criu_error_is_its_first_line_without_numbers() -> None:
    log = "(00.001) fine\n(00.002)   4711: Error (criu/x.c:1): Odd thing 12 at 0xabc\n(00.003) Error (criu/y.c:2): x\n"
    assert criu_reason(log) == "Error Odd thing N at <address>"


def test_a_log_without_errors() -> None:
    assert criu_reason("(00.001) fine\n") == "no error in the log"
