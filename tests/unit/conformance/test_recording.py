# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recordings written, read, compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conform.compare import compare, difference, sequence_difference
from tests.conformance.conform.record import Recording, dumps, loads, read, write

LOCK = {"do": "lock w1", "result": "0", "state": "locked"}
LOCK_401 = {"do": "lock w1", "result": "401", "state": "locked"}


def recording() -> Recording:
    made = Recording(meta={"driver": "580.159.04", "gpus": ["NVIDIA H200"]})
    made.put("state/table", "libcuda", [LOCK, LOCK_401])
    made.put("state/table", "cli", [{"do": "lock w1", "result": {"rc": 0}}])
    made.put("nccl/two-ranks", "libcuda", "not applicable: needs 2 GPUs, the host has 1")
    made.put("real/jax", "libcuda", [LOCK], real_only="needs JAX")
    made.put_sequence(
        "libcuda", 1, 2, 10, "lock a=0 locked; unlock a=0 running; end a running: running, checksum equal"
    )
    made.put_sequence("libcuda", 1, 2, 9, "state plain=3; end a running: running, checksum equal")
    return made


def test_what_is_written_is_read() -> None:
    again = loads(dumps(recording()))
    assert again.cases == recording().cases
    assert again.real_only == recording().real_only
    assert again.reasons == {"real/jax": "needs JAX"}
    assert again.sequences == recording().sequences
    assert again.meta == recording().meta


def test_one_observation_a_line_in_a_stable_order() -> None:
    lines = dumps(recording()).splitlines()
    assert sum('"do": "lock w1", "result": "401"' in line for line in lines) == 1
    text = dumps(recording())
    assert text.index('"nccl/two-ranks"') < text.index('"state/table"')
    assert text.index('"9": "state plain=3') < text.index('"10": "lock a=0')


def test_an_empty_recording_is_json() -> None:
    assert json.loads(dumps(Recording())) == {"meta": {}, "cases": {}, "real_only": {}, "reasons": {}, "sequences": {}}


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    write(tmp_path / "r.json", dumps(recording()))
    assert read(tmp_path / "r.json").cases == recording().cases
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_what_is_no_recording_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(ValueError, match=r"r\.json: no recording: 'meta' is missing"):
        read(tmp_path / "r.json")


def test_equal_recordings() -> None:
    report = compare(recording(), recording())
    assert report.ok
    assert "libcuda state/table" in report.equal
    assert "libcuda sequence 9" in report.equal


def test_another_result_is_shown_alone() -> None:
    seen = recording()
    seen.cases["state/table"]["libcuda"] = [LOCK, {**LOCK_401, "result": "0"}]
    report = compare(recording(), seen)
    assert list(report.differences) == ["libcuda state/table"]
    assert "DIFFERENT libcuda state/table" in report.text()
    assert report.differences["libcuda state/table"] == ["  lock w1", '      result: recorded "401", seen here "0"']


def test_evidence_is_compared_field_by_field() -> None:
    old: list[dict[str, Any]] = [{"do": "look w1", "evidence": {"nvml": ["gpu0"], "run": "run"}}, LOCK]
    new: list[dict[str, Any]] = [{"do": "look w1", "evidence": {"nvml": [], "run": "run", "uvmfd": True}}, LOCK]
    assert difference(old, new) == [
        "  look w1",
        '      evidence.nvml: recorded ["gpu0"], seen here []',
        "      evidence.uvmfd: recorded nothing, seen here true",
    ]


def test_an_observation_too_many_or_too_few() -> None:
    assert difference([LOCK], [LOCK, LOCK_401])[0].startswith('+ {"do": "lock w1"')
    assert difference([LOCK, LOCK_401], [LOCK])[0].startswith('- {"do": "lock w1"')


@pytest.mark.parametrize("entry", ["not applicable: needs CRIU", "not run: the budget was used up", "error: it broke"])
def test_a_recorded_case_that_did_not_run_is_a_difference(entry: str) -> None:
    seen = recording()
    seen.cases["state/table"]["cli"] = entry
    assert list(compare(recording(), seen).differences) == ["cli state/table"]


def test_a_missing_case_is_a_difference_on_either_side() -> None:
    seen = recording()
    del seen.cases["state/table"]
    assert sorted(compare(recording(), seen).differences) == ["cli state/table", "libcuda state/table"]
    report = compare(seen, recording())
    assert "record again" in report.differences["cli state/table"][0]


def test_what_the_recorder_could_not_show_is_said_and_no_difference() -> None:
    seen = recording()
    seen.cases["nccl/two-ranks"]["libcuda"] = [LOCK]
    report = compare(recording(), seen)
    assert report.ok
    assert "libcuda nccl/two-ranks" in report.unreferenced


def test_an_error_is_a_difference_even_without_reference() -> None:
    seen = recording()
    seen.cases["nccl/two-ranks"]["libcuda"] = "error: it broke"
    assert list(compare(recording(), seen).differences) == ["libcuda nccl/two-ranks"]


def test_real_only_is_skipped_by_name_with_its_reason() -> None:
    seen = recording()
    seen.real_only = {}
    report = compare(recording(), seen)
    assert report.ok
    assert report.skipped == {"libcuda real/jax": "needs JAX"}
    assert "skipped libcuda real/jax: needs JAX" in report.text()


def test_real_only_is_compared_where_it_ran() -> None:
    seen = recording()
    seen.real_only["real/jax"]["libcuda"] = [LOCK_401]
    assert list(compare(recording(), seen).differences) == ["libcuda real/jax"]


def test_only_the_named_cases_and_backends() -> None:
    seen = recording()
    seen.cases["state/table"]["cli"] = []
    assert compare(recording(), seen, names=["nccl/two-ranks"]).ok
    assert compare(recording(), seen, backends=["libcuda"]).ok
    assert not compare(recording(), seen).ok


def test_a_sequence_shows_the_first_call_that_differs() -> None:
    found = sequence_difference("a=0; b=0; c=0; d=0", "a=0; b=0; c=401; d=401")
    assert found == ["after: a=0; b=0", "- c=0", "+ c=401"]


def test_sequences_differ_when_a_line_is_other_or_missing_or_the_seed_is() -> None:
    seen = recording()
    seen.sequences["libcuda"]["lines"]["9"] = "state plain=304"
    del seen.sequences["libcuda"]["lines"]["10"]
    assert sorted(compare(recording(), seen).differences) == ["libcuda sequence 10", "libcuda sequence 9"]
    seen = recording()
    seen.sequences["libcuda"]["seed"] = 2
    assert list(compare(recording(), seen).differences) == ["libcuda sequences"]
    assert compare(recording(), seen, sequences=False).ok


def test_the_order_of_keys_is_no_difference() -> None:
    assert difference([{"do": "x", "result": "0"}], [{"result": "0", "do": "x"}]) == []
