# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judgements, pages and selection of tests/gpu and bench: pure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.gpu.gputest import bench_image_report, bench_report, judge, locks, registry, report


def result(**changes: Any) -> Dict[str, Any]:
    process = {"pid": 12, "before": "running", "after": "checkpointed", "changed": True, "plan": ["lock", "checkpoint"]}
    process.update(changes.pop("process", {}))
    return {
        "changed": True,
        "state": "checkpointed",
        "diff": {"before": "a", "after": "b"},
        "processes": [process],
        **changes,
    }


def test_a_true_forecast_has_no_differences() -> None:
    assert judge.differences(result(run_id="1"), result(run_id="2")) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"changed": False}, "changed"),
        ({"diff": {"before": "a", "after": "c"}}, "diff"),
        ({"process": {"after": "locked"}}, "PID 12 after"),
        ({"process": {"plan": []}}, "PID 12 plan"),
        ({"processes": []}, "processes"),
    ],
)
def test_what_did_not_come_true_is_named(changes: Dict[str, Any], word: str) -> None:
    found = judge.differences(result(), result(**changes))
    assert len(found) == 1
    assert found[0].startswith(word)


def test_not_reached_names_the_process_also_when_it_is_missing() -> None:
    assert judge.not_reached(result(), "checkpointed", [12]) == []
    assert judge.not_reached(result(), "running", [12, 13]) == [
        "PID 12: after is 'checkpointed'",
        "PID 13: after is None",
    ]


def test_lacks_takes_alternatives() -> None:
    assert judge.lacks("lock failed with 600 NOT_READY", ["lock", "NOT_READY|600"]) == []
    assert judge.lacks("lock failed", ["lock", "NOT_READY|600"]) == ["NOT_READY|600"]


@pytest.fixture(autouse=True)
def _conformance_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the launchers put it there."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "conformance"))


def test_every_test_has_words_and_a_part_of_the_report() -> None:
    tests = registry.load()
    assert all(one.about for one in tests)
    assert {one.part for one in tests} == set(registry.PARTS)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["bad"], ["bad/input", "bad/device-map", "bad/reused-pid"]),
        (["cycle/plain-?", "no/such"], ["cycle/plain-8", "cycle/plain-4", "cycle/plain-1"]),
    ],
)
def test_selection_by_part_and_by_pattern(patterns: List[str], expected: List[str]) -> None:
    assert [one.name for one in registry.select(registry.load(), patterns)] == expected


def record() -> Dict[str, Any]:
    equal = {"process": "w1", "equal": True}
    return {
        "meta": {"gpus": ["NVIDIA H200 143771 MiB"], "driver": "580.159.04", "versions": {"jax": "0.11.2"}},
        "tests": {
            "cycle/jax-1": {
                "status": "ok",
                "seconds": 70.1,
                "sums": [equal],
                "expectations": [{"what": "a", "ok": True}],
            },
            "gates/traced": {
                "status": "failed",
                "reason": "1 expectations did not hold",
                "expectations": [{"what": "refused | said", "ok": False, "seen": {"msg": "<x>"}}],
            },
            "kills/lane-1": {"status": "ok", "facts": {"hits": {"suspend before the first step worker": 2}}},
            "kills/lane-2": {"status": "ok", "facts": {"hits": {"suspend before the first step worker": 1}}},
        },
        "after": {"live": [], "reservations": {}, "settings changed": {}},
    }


def test_page_counts_and_keeps_the_table_whole() -> None:
    text = report.page(record())
    assert "Tests: 1 failed, 3 ok. Expectations: 1 of 2 held. Checksums compared afterwards: 1, equal: 1." in text
    assert "refused \\| said" in text
    assert "&lt;x>" in text
    assert "| suspend, before the first step | 3 |" in text
    assert "no live operation and no reservation" in text


def test_page_says_what_was_left() -> None:
    left = record()
    left["after"]["reservations"] = {"GPU-1": 5}
    assert "- reservations: {'GPU-1': 5}" in report.page(left)
    assert "no reservation in the journal" not in report.page(left)


def rounds(suspend: float, resume: float) -> List[Dict[str, Any]]:
    return [
        {
            "suspend": suspend + more + 0.5,
            "resume": resume + more + 0.5,
            "suspend own": suspend + more,
            "resume own": resume + more,
            "suspend playbook": suspend + 1,
            "resume playbook": resume + 1,
        }
        for more in (0.0, 0.1, -0.1)
    ]


def test_ratios_are_of_medians() -> None:
    many = {"rounds": {bench_report.LOOP: rounds(34.5, 14.5), bench_report.MODULE: rounds(5, 3)}}
    assert bench_report.ratios(many) == [
        (bench_report.MODULE, 7.0, 5.0),
        (f"process, {bench_report.MODULE}", 35 / 5.5, 15 / 3.5),
        (f"ansible-playbook, {bench_report.MODULE}", 35 / 6, 15 / 4),
    ]


def test_bench_page_says_what_is_met_and_what_is_missed() -> None:
    many = {"processes": 8, "mib": 8192, "gpus": 2, "whole": True, "checksums equal": [True] * 8}
    many["rounds"] = {bench_report.LOOP: rounds(34.5, 14.5), bench_report.MODULE: rounds(7, 3)}
    one = {"mib": 32768, "rounds": {bench_report.MODULE: rounds(10.5, 5), bench_report.RAW: rounds(9.5, 3.5)}}
    text = bench_report.page({"meta": {"gpus": []}, "many": many, "one": one})
    assert "5.00 (at least 7: MISSED)" in text
    assert "5.00 (at least 4.5: met)" in text
    assert "suspend 1.05 (at most 1.1: met), resume 1.25 (at most 1.1: MISSED)" in text
    assert "Not finished." in text


def image_result(**changes: Any) -> Dict[str, Any]:
    image = {"path": "/i/a", "pid": 12, "before": "absent", "after": "present", "changed": True, "bytes": None}
    image.update(changes.pop("image", {}))
    return {"changed": True, "state": "present", "diff": {}, "images": [image], **changes}


def test_a_forecast_of_an_image_need_not_know_its_size() -> None:
    assert judge.image_differences(image_result(), image_result(image={"bytes": 5})) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"changed": False}, "changed"),
        ({"image": {"after": "absent"}}, "/i/a after"),
        ({"image": {"pid": 13}}, "/i/a pid"),
        ({"images": []}, "images"),
    ],
)
def test_what_did_not_come_true_of_an_image_is_named(changes: Dict[str, Any], word: str) -> None:
    found = judge.image_differences(image_result(), image_result(**changes))
    assert len(found) == 1
    assert found[0].startswith(word)


def test_page_shows_the_steps_of_images() -> None:
    done = record()
    image = {"what": "tree", "processes": 4, "device_bytes": 8192 << 20, "bytes": 8700 << 20}
    image["present"] = {"module": 14.5, "steps": {"suspend": 4.4, "dump": 4.75}}
    image["restored"] = {"module": 8.0, "steps": {"verify": 1.5, "resume": 1.25}}
    done["tests"]["image/tree"] = {"status": "ok", "facts": {"images": [image], "compress": "zstd"}}
    text = report.page(done)
    assert "| present | processes | GPU MiB | image MiB | module | suspend | dump |" in text
    assert "| `tree` tree | 4 | 8192 | 8700 | 14.50 | 4.40 | 4.75 |" in text
    assert "| `tree` tree | 4 | 8192 | 8700 | 8.00 | 1.50 | 1.25 |" in text
    assert "- compress: zstd" in text
    assert "- images:" not in text


def image_round(own: float, verify: float, there: Dict[str, float]) -> Dict[str, Any]:
    return {"there": there, "back": {"all": own, "verify": verify}, "bytes": 4096 << 20}


def test_before_the_sync_is_without_the_seal_of_the_slowest_and_without_the_commit() -> None:
    steps = {"stop": 0.5, "suspend": 4.0, "dump": 5.0, "seal": 3.0, "rename": 0.1, "end": 0.4}
    slower = {**steps, "dump": 6.0, "seal": 4.0}
    images = [{"seconds": steps}, {"seconds": slower}]
    assert bench_image_report.before_sync(16.0, images) == pytest.approx(16.0 - 4.0 - 0.5)


def image_rounds() -> Dict[str, List[Dict[str, Any]]]:
    loop = {"there": {"before the sync": 30.0, "sync": 6.0}, "back": {"all": 20.0}, "bytes": 1}
    module = image_round(5.0, 1.0, {"before the sync": 10.0, "all": 18.0})
    return {
        bench_image_report.LOOP: [loop],
        bench_image_report.PLUGIN: [{**loop, "there": {"before the sync": 20.0, "sync": 7.0}}],
        bench_image_report.MODULE: [module, module],
        bench_image_report.MODULE + bench_image_report.COLD: [module],
    }


def test_image_ratios_compare_like_with_like() -> None:
    assert bench_image_report.ratios(image_rounds()) == [
        ("module", "loop", 3.0, 2.0, 4.0, 5.0),
        ("module", "plugin", 2.0, 1.5, 4.0, 5.0),
    ]


def test_image_bench_page_says_what_is_met_and_what_is_missed() -> None:
    done = {"meta": {"gpus": []}, "trees": 4, "mib": 8192, "rounds": image_rounds(), "disk, MiB/s": 455.1}
    text = bench_image_report.page(done)
    assert "| module over plugin | 2.00 (at least 2.5: MISSED) | 1.50 | 4.00 (at least 4: met) | 5.00 |" in text
    assert "| module over loop | 3.00 | 2.00 | 4.00 | 5.00 |" in text
    assert "writes 228 MiB/s: 50% of what the disk takes" in text
    assert "Not finished." in text
    done.update(whole=True)
    done["checksums equal"] = [True, False]
    assert "checksums equal: 1 of 2" in bench_image_report.page(done)


def test_a_test_waits_until_what_it_starts_fits_beside_the_others(tmp_path: Path) -> None:
    assert locks.admit(tmp_path, 0, 60, 100, 0)
    assert locks.admit(tmp_path, 0, 30, 100, 0), "its own, added up"
    child = os.fork()
    if child == 0:
        os._exit(0 if not locks.admit(tmp_path, 0, 20, 100, 0.3) and locks.admit(tmp_path, 1, 20, 100, 0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert json.loads((tmp_path / "gpu0.asked").read_text()) == {str(os.getpid()): 90, str(child): 20}
    assert locks.admit(tmp_path, 0, 5, 100, 0), "what has ended is not counted"
    assert json.loads((tmp_path / "gpu0.asked").read_text()) == {str(os.getpid()): 95}
