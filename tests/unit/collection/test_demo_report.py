# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo's judge: a process that came back whole passes, and every other way to come back is told."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.demo.report import gpu_problems_of, jobs_of, main, problems_of, start_time, table_of, vram_of

STAT = "{pid} (gpusim-workload) {state} 1 {pid} {pid} 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 3 0 {start} 1 2 3"


def look(counter: int, state: str, vram: list[int], start: int = 4711) -> dict[str, Any]:
    return {
        "counters": [str(counter), str(counter + 5)],
        "states": [state, state],
        "stats": [
            STAT.format(pid=pid, state="T" if state == "checkpointed" else "S", start=start) for pid in (210, 220)
        ],
        "apps": [f"{pid}, {mib}" for pid, mib in zip((210, 220), vram, strict=False)],
        "gpu_used_mib": [str(sum(vram))],
    }


@pytest.fixture
def seen() -> dict[str, Any]:
    return {
        "host": "h1",
        "jobs": [{"name": "training", "vram": 1024}, {"name": "inference", "vram": 512}],
        "pids": [210, 220],
        "seen": {
            "before": look(100, "running", [1088, 576]),
            "suspended": look(110, "checkpointed", []),
            "still_suspended": look(110, "checkpointed", []),
            "after": look(130, "running", [1088, 576]),
        },
        "sums": {"before": ["aa", "bb"], "after": ["aa", "bb"]},
    }


def test_processes_that_came_back_whole_pass(
    seen: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("h1.json", "h2.json")]
    for file in files:
        Path(file).write_text(json.dumps(seen))
    assert main(files) == 0
    printed = capsys.readouterr().out
    assert printed.count("1088 / 0 / 1088") == 2
    assert printed.splitlines()[-1] == "processes: 4 passed, 0 failed"


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
    seen["seen"][moment][key][0] = value
    first, second = jobs_of(seen)
    assert any(told in problem for problem in problems_of(first))
    assert problems_of(second) == []
    file = tmp_path / "h1.json"
    file.write_text(json.dumps(seen))
    assert main([str(file)]) == 1
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
    seen["seen"][moment]["apps"] = apps
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
    for name, look_ in seen["seen"].items():
        look_["gpu_used_mib"] = ["1728" if name in ("before", "after") else "64"]
    assert gpu_problems_of(seen, jobs_of(seen)) == []
    seen["seen"][moment]["gpu_used_mib"] = [used]
    assert gpu_problems_of(seen, jobs_of(seen)) == [f"h1: {told}"]
    file = tmp_path / "h1.json"
    file.write_text(json.dumps(seen))
    assert main([str(file)]) == 1
    assert "2 passed, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize("sums", [{"before": ["aa", "bb"], "after": ["ab", "bb"]}, {"before": [""], "after": [""]}])
def test_a_changed_or_missing_checksum_is_told(seen: dict[str, Any], sums: dict[str, list[str]]) -> None:
    seen = deepcopy(seen)
    seen["pids"] = seen["pids"][: len(sums["before"])]
    seen["sums"] = sums
    job = jobs_of(seen)[0]
    assert any("its GPU memory changed" in problem for problem in problems_of(job))
    assert "DIFFERS" in table_of([job])


def test_no_process_at_all_is_a_failure(tmp_path: Path, seen: dict[str, Any]) -> None:
    file = tmp_path / "h1.json"
    file.write_text(json.dumps({**seen, "pids": []}))
    assert main([str(file)]) == 1
    assert main([]) == 2


def test_a_command_name_may_look_like_the_fields_after_it() -> None:
    assert start_time("7 (a) S 1 (b)) R 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0") == 99


def test_a_process_on_two_gpus_is_summed_up() -> None:
    assert vram_of(7, ["7, 10", "8, 20", "7, 30", ""]) == 40
    assert vram_of(9, []) == 0
