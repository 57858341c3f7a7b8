# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo's judge: a process that came back whole passes, and every other way to come back is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.demo.report import (
    boots_problems_of,
    gpu_problems_of,
    jobs_of,
    main,
    problems_of,
    start_time,
    table_of,
    vram_of,
)

STAT = "{pid} (gpusim-workload) {state} 1 {pid} {pid} 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 3 0 {start} 1 2 3"


def look(counter: int, state: str, vram: list[int], start: int = 4711, mode: str = "memory") -> dict[str, Any]:
    stopped = "T" if state == "checkpointed" else "S"
    return {
        "host": "h1",
        "mode": mode,
        "reboot": False,
        "boot_id": "one",
        "names": ["training", "inference"],
        "pids": [210, 220],
        "counters": [str(counter), str(counter + 5)],
        "states": {"210": state, "220": state} if state else {},
        "stats": [STAT.format(pid=pid, state=stopped, start=start) if state else "" for pid in (210, 220)],
        "apps": [f"{pid}, {mib}" for pid, mib in zip((210, 220), vram, strict=False)],
        "gpu_used_mib": [str(sum(vram))],
        "sums": ["aa", "bb"] if state == "running" else [],
    }


@pytest.fixture
def seen() -> dict[str, Any]:
    return {
        "before": look(100, "running", [1088, 576]),
        "suspended": look(110, "checkpointed", []),
        "still_suspended": look(110, "checkpointed", []),
        "after": look(130, "running", [1088, 576]),
    }


@pytest.fixture
def on_disk() -> dict[str, Any]:
    return {
        "before": look(100, "running", [1088, 576], mode="disk"),
        "suspended": look(110, "", [], mode="disk"),
        "still_suspended": look(110, "", [], mode="disk"),
        "after": look(130, "running", [1088, 576], start=9000, mode="disk"),
    }


def write(directory: Path, seen: dict[str, Any], host: str = "h1") -> None:
    for moment, found in seen.items():
        (directory / f"{host}.{moment}.json").write_text(json.dumps({**found, "host": host}))


def test_processes_that_came_back_whole_pass(
    seen: dict[str, Any], on_disk: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, seen)
    for found in on_disk.values():
        found["reboot"] = True
    on_disk["after"]["boot_id"] = "two"
    write(tmp_path, on_disk, "h2")
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("1088 / 0 / 1088") == 2
    assert printed.count("from its image") == 2
    assert printed.count("rebooted meanwhile") == 1
    assert printed.splitlines()[-1] == "processes: 4 passed, 0 failed"


def test_a_process_that_never_went_to_disk_is_told(on_disk: dict[str, Any]) -> None:
    assert [problems_of(job) for job in jobs_of(on_disk)] == [[], []]
    on_disk["suspended"] = look(110, "checkpointed", [], mode="disk")
    assert any("was checkpointed suspended, not gone" in problem for problem in problems_of(jobs_of(on_disk)[0]))


@pytest.mark.parametrize(("reboot", "boot_id", "told"), [(True, "one", "did not reboot"), (False, "two", "rebooted")])
def test_a_reboot_has_to_be_where_it_was_said(on_disk: dict[str, Any], reboot: bool, boot_id: str, told: str) -> None:
    assert boots_problems_of(on_disk) == []
    on_disk["before"]["reboot"] = reboot
    on_disk["after"]["boot_id"] = boot_id
    assert [told in problem for problem in boots_problems_of(on_disk)] == [True]


@pytest.mark.parametrize(
    ("moment", "key", "value", "told"),
    [
        ("after", "states", "locked", "was locked after, not running"),
        ("suspended", "states", "running", "was running suspended, not checkpointed"),
        ("still_suspended", "counters", "111", "counted while suspended, from 110 to 111"),
        ("after", "counters", "110", "did not count on"),
        ("suspended", "counters", "99", "did not count on"),
        ("after", "stats", STAT.format(pid=210, state="S", start=4712), "is another process now"),
        ("after", "stats", STAT.format(pid=210, state="T", start=4711), "is still stopped"),
        ("suspended", "stats", STAT.format(pid=210, state="S", start=4711), "was not stopped while suspended"),
    ],
)
def test_one_process_that_did_not_is_told(
    seen: dict[str, Any],
    moment: str,
    key: str,
    value: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen[moment][key]["210" if key == "states" else 0] = value
    first, second = jobs_of(seen)
    assert any(told in problem for problem in problems_of(first))
    assert problems_of(second) == []
    write(tmp_path, seen)
    assert main([str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "processes: 1 passed, 1 failed"
    assert "demo: h1 training (PID 210): " in captured.err


@pytest.mark.parametrize(
    ("moment", "apps", "told"),
    [
        ("before", ["220, 576"], "held no GPU memory while it ran"),
        ("suspended", ["210, 64"], "held 64 MiB of GPU memory while suspended"),
        ("still_suspended", ["210, 64"], "held 64 MiB of GPU memory while suspended"),
        ("after", ["210, 1024", "220, 576"], "holds 1024 MiB of GPU memory, 1088 MiB before"),
    ],
)
def test_gpu_memory_has_to_go_and_to_come_back(seen: dict[str, Any], moment: str, apps: list[str], told: str) -> None:
    seen[moment]["apps"] = apps
    assert any(told in problem for problem in problems_of(jobs_of(seen)[0]))


@pytest.mark.parametrize(
    ("moment", "used", "told"),
    [
        ("suspended", "65", "65 MiB of GPU memory in use while all were suspended, expected 64 MiB"),
        ("still_suspended", "65", "65 MiB of GPU memory in use while all were suspended, expected 64 MiB"),
        ("after", "1664", "1664 MiB of GPU memory in use in the end, 1728 MiB before"),
    ],
)
def test_the_gpu_as_a_whole_has_to_be_free(
    seen: dict[str, Any], moment: str, used: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, look_ in seen.items():
        look_["gpu_used_mib"] = ["1728" if name in ("before", "after") else "64"]
    assert gpu_problems_of(seen, jobs_of(seen)) == []
    seen[moment]["gpu_used_mib"] = [used]
    assert gpu_problems_of(seen, jobs_of(seen)) == [f"h1: {told}"]
    write(tmp_path, seen)
    assert main([str(tmp_path)]) == 1
    assert "2 passed, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize("sums", [{"before": ["aa", "bb"], "after": ["ab", "bb"]}, {"before": [""], "after": [""]}])
def test_a_changed_or_missing_checksum_is_told(seen: dict[str, Any], sums: dict[str, list[str]]) -> None:
    seen["before"]["pids"] = seen["before"]["pids"][: len(sums["before"])]
    for moment, found in sums.items():
        seen[moment]["sums"] = found
    job = jobs_of(seen)[0]
    assert any("its GPU memory changed" in problem for problem in problems_of(job))
    assert "DIFFERS" in table_of([job])


def test_no_process_at_all_is_a_failure(tmp_path: Path, seen: dict[str, Any]) -> None:
    seen["before"]["pids"] = []
    write(tmp_path, seen)
    assert main([str(tmp_path)]) == 1
    assert main([]) == 2


def test_a_command_name_may_look_like_the_fields_after_it() -> None:
    assert start_time("7 (a) S 1 (b)) R 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0") == 99


def test_a_process_on_two_gpus_is_summed_up() -> None:
    assert vram_of(7, ["7, 10", "8, 20", "7, 30", ""]) == 40
    assert vram_of(9, []) == 0
