# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the operator reads."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _findings
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import (
    DOCS,
    Finding,
    warning_lines,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.hazard import LIVE, comma, names_of, size
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import HAZARDS, OPTIONS, evaluate
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import grouped
from tests.unit.plugins.hazards.helpers import SETS, context, recording, target, the_only
from tests.unit.plugins.hazards.test_recordings import TAKEN

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "hazards.md").read_text()


@pytest.mark.parametrize("where, label", TAKEN)
@pytest.mark.parametrize("action", ["suspend", "resume", "dump"])
def test_every_finding_says_everything(where: str, label: str, action: str) -> None:
    for finding in evaluate(context(recording(label, where), action)):
        for text in (finding.subject, finding.evidence, finding.reason, finding.remedy):
            assert text and text == text.strip() and not text.endswith(".") and "None" not in text
        assert finding.severity in ("blocking", "warning")
        assert finding.option in OPTIONS | {""}
        assert finding.reference == f"{DOCS}#{finding.id}"
        assert finding.as_dict()["id"] == finding.id


def test_options() -> None:
    assert OPTIONS == {
        "cgroup_memory",
        "container",
        "container_probe",
        "controlling_tty",
        "cuda_ipc_possible",
        "deleted_file",
        "external_pipe",
        "external_unix_socket",
        "file_lock",
        "host_memory",
        "mig",
        "mps_client",
        "nccl_communicator",
        "nfs_file",
        "park_unsafe_parent",
        "private_mounts",
        "profiler_attached",
        "rotated_log",
        "slurm_step",
        "socket_option",
        "stopped",
        "systemd_restart",
        "systemd_runtime",
        "systemd_watchdog",
        "tcp_established",
        "unparked",
        "uvm_managed",
        "vmm_export",
        "volatile_file",
        "vram_short",
    }


def test_the_page_has_a_place_for_each_and_names_its_option() -> None:
    rows = {match: line for line in PAGE.splitlines() for match in re.findall(r'<a id="(\w+)"></a>', line)}
    own = set(re.findall(r'\bid="(\w+)"', Path(_findings.__file__).read_text()))
    assert {"busy", "unparked"} < own
    assert set(rows) >= {hazard.id for hazard in HAZARDS} | own
    for hazard in HAZARDS:
        actions = rows[hazard.id].split(" | ")[1]
        assert actions in ("all" if hazard.actions == LIVE else ", ".join(sorted(hazard.actions)),)
        option = rows[hazard.id].rstrip("| ").rsplit("|", 1)[-1] if hazard.option else ""
        assert not hazard.option or f"`{hazard.option}`" in option


def test_a_message() -> None:
    taken = recording("managed")
    finding = the_only(evaluate(context(taken)), "uvm_managed")
    assert finding.pid == target(taken).pid
    assert finding.message() == (
        f"PID {target(taken).pid} (gpusim-workload): it has managed memory (cudaMallocManaged): 1 mapping of "
        "/dev/nvidia-uvm, 128 MiB, beyond CUDA's own 2 MiB for each GPU in use. "
        "The driver refuses to checkpoint it (801), and after one refusal it can never "
        "be checkpointed again (999). Run it without managed memory "
        "(TF_FORCE_UNIFIED_MEMORY of JAX, a managed pool of RAPIDS, CuPy), or leave the process out. "
        "Override: allow: [uvm_managed]."
    )


def test_a_message_without_an_override_offers_none() -> None:
    finding = the_only(evaluate(context(recording("traced"))), "traced")
    assert "Override" not in finding.message()


def test_what_is_allowed_comes_back_as_a_warning() -> None:
    ask = context(recording("managed"))
    refused, allowed = evaluate(ask), evaluate(ask, frozenset(("uvm_managed",)))
    assert [finding.severity for finding in refused if finding.id == "uvm_managed"] == ["blocking"]
    assert [finding.severity for finding in allowed if finding.id == "uvm_managed"] == ["warning"]
    assert "Override" not in next(finding for finding in allowed if finding.id == "uvm_managed").message()
    assert len(refused) == len(allowed)
    assert evaluate(ask, OPTIONS - {"uvm_managed"}) == refused


def test_a_stop_is_allowed_by_its_option_not_by_its_name() -> None:
    ask = context(recording("stopped"))
    assert the_only(evaluate(ask, frozenset(("stopped_or_frozen",))), "stopped_or_frozen").option == "stopped"
    assert [finding for finding in evaluate(ask, frozenset(("stopped",))) if finding.severity == "blocking"] == []


@pytest.mark.parametrize("label", ["frozen", "traced", "no-cuda", "fork", "other-owner", "zombie"])
def test_nothing_overrides_what_has_no_option(label: str) -> None:
    found = evaluate(context(recording(label)), OPTIONS)
    assert [finding.option for finding in found if finding.severity == "blocking"] == [""]


def test_an_unknown_action_is_no_clean_answer() -> None:
    with pytest.raises(ValueError, match="action 'move': dump, lock, resume, suspend are known"):
        evaluate(context(recording("plain"), "move"))


def test_about_one_process_only_what_matters_most() -> None:
    """An ordinary user can see next to nothing of somebody else's process: that is said once."""
    found = evaluate(context(recording("other-owner")))
    assert [finding.id for finding in found] == ["other_owner"]


def test_a_target_that_was_not_seen_is_left_out() -> None:
    assert evaluate(context(recording("plain"), targets=(999999,))) == ()


def test_sizes_and_lists() -> None:
    assert [size(count) for count in (0, 1023, 2048, 3 << 20, 1536 << 20)] == [
        "0 bytes",
        "1023 bytes",
        "2 KiB",
        "3 MiB",
        "1.5 GiB",
    ]
    one = target(recording("plain"))
    assert names_of([]) == ""
    assert names_of([one]) == f"PID {one.pid} (gpusim-workload)"
    assert names_of([one] * 2).count(" and ") == 1
    assert names_of([one] * 12, most=3).endswith(" and 9 more")
    assert comma("abcdefgh") == "a, b, c, d, e, f and 2 more"


def test_a_sentence_gets_one_full_stop() -> None:
    finding = Finding("x", "blocking", "This host", "seen.", "Why?", "Do it", "mig", "", None)
    assert finding.message() == "This host: seen. Why? Do it. Override: allow: [mig]."


def test_a_guard_that_the_journal_does_not_know_is_no_debugger() -> None:
    """Its journal was moved away."""
    taken = recording("plain-parked")
    subject = Subject(replace(target(taken), tracer_pid=5120), None, "unowned")
    guard = replace(target(taken), name="gpufleet-hold")
    assert "kill 5120, which lets go of the process and leaves it stopped" in _findings.traced(subject, guard).message()
    for other in (None, replace(guard, name="gdb")):
        assert "no worker of ours" in _findings.traced(subject, other).evidence


def test_the_screen_gets_each_kind_of_warning_once() -> None:
    def of(pid: int, identifier: str, severity: str = "warning") -> Finding:
        return Finding(identifier, severity, f"PID {pid}", "seen", "why", "do it", "mig", "", pid)

    assert warning_lines([]) == []
    assert warning_lines([of(1, "mig"), of(2, "mig", "blocking"), of(3, "vram_short"), of(4, "mig"), of(5, "mig")]) == [
        "mig: PID 1: seen. why. do it. The same of 2 more: see findings.",
        "vram_short: PID 3: seen. why. do it.",
    ]
    assert grouped([("PID 1", "late"), ("PID 2", "gone"), ("PID 3", "late")]) == ["PID 1, PID 3: late", "PID 2: gone"]


def test_sets_are_there() -> None:
    assert "sim-580" in SETS
