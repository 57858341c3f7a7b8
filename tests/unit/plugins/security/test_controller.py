# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a managed host that is in other hands can do to the controller, and to the look at the other hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import answers, page, record, report
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.directory import Directory
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Host, RecordError
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.state import Refused
from tests.unit.plugins.run.making import RUN_ID, attempt_of, run_of
from tests.unit.plugins.run.test_events import Fleet

#: Of a host that a run has, as gpu_drain_info returns it.
ROW: dict[str, Any] = {
    "run_id": RUN_ID,
    "runs": [RUN_ID],
    "kind": "drain",
    "phase": "suspended",
    "attempt": 1,
    "controller": "ops1 mira 4711:880000:5a0c6a52-7f0e-4c58-8b1a-1f4d7ce0a001",
    "mode": "memory",
    "opened": 1796025600.0,
    "since": 1796025700.0,
    "closed": None,
    "message": "",
    "boot_id": "5a0c6a52-7f0e-4c58-8b1a-1f4d7ce0a001",
    "timeline": [{"phase": "claimed", "at": 1796025600.0, "attempt": 1, "message": ""}],
    "processes": [{"pid": 10, "state": "suspended", "device_bytes": 1, "executable": "/usr/bin/python3"}],
    "images": [],
    "lost": [],
    "scheduler": {},
    "packages": {},
}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(tmp_path, monkeypatch)


def look(fleet: Fleet, event: str, **rows: Any) -> dict[str, Any]:
    fleet.facts = {name: {"gpu_drain_seen": {"drain": rows.get(name, {}), "cuda": []}} for name in fleet.names}
    return fleet.tell(event, settings={"run_directory": str(fleet.directory / "runs"), "given": True})


def wrong_rows() -> Iterator[Any]:
    for run_id in ("../../elsewhere", "/elsewhere", "..", ".", "a/b", "a\nb", 7, ["x"], {"x": 1}, "x" * 65):
        yield {**ROW, "run_id": run_id, "runs": [run_id]}
    for field, value in (
        ("timeline", [{"phase": "claimed", "at": "now"}]),
        ("timeline", [{"phase": "claimed", "at": 1e300}]),
        ("timeline", 7),
        ("failures", [7]),
        ("failures", [{"phase": "claimed", "attempt": 1, "at": 1e300, "message": ""}]),
        ("phase", ["claimed"]),
        ("phase", "<script>"),
        ("opened", "x"),
        ("since", 1e300),
        ("attempt", "many"),
        ("processes", [7]),
        ("processes", [{"pid": {}, "device_bytes": "much"}]),
        ("lost", "x"),
        ("lost", [7]),
        ("images", {"state": 1}),
        ("scheduler", "none"),
        ("scheduler", {"kind": "slurm", "jobs": 7}),
        ("packages", {"held": 7}),
    ):
        yield {**ROW, field: value}
    yield 7
    deep: Any = 1
    for _level in range(900):
        deep = [deep]
    yield {**ROW, "scheduler": {"kind": deep}}


WRONG = list(wrong_rows())


@pytest.mark.parametrize("row", WRONG, ids=range(len(WRONG)))
def test_a_host_names_no_place_on_the_controller_and_stops_no_look(fleet: Fleet, row: Any) -> None:
    fleet.directory.chmod(0o755)
    told = look(fleet, "status", a=row, b=ROW)
    assert set(os.listdir(fleet.directory / "runs")) <= {RUN_ID}
    assert os.listdir(fleet.directory) == ["runs"]
    assert fleet.directory.stat().st_mode & 0o777 == 0o755
    assert "b suspended" in told["hosts"]["b"]["line"] and "c no drain" in told["hosts"]["c"]["line"]
    assert told["hosts"]["a"]["phase"] == "no answer" and "what it returned can't be used" in told["hosts"]["a"]["line"]
    assert json.loads(Path(told["report"]).with_name("report.json").read_text())["counts"]["hosts"] == 1
    decided = look(fleet, "recover", a=row, b=ROW)
    assert decided["hosts"]["a"]["do"] == "report" and not decided["hosts"]["a"]["run"]
    assert decided["hosts"]["b"]["run"]["run_id"] == RUN_ID


def test_a_run_is_not_called_like_a_directory_above(fleet: Fleet) -> None:
    for run_id in ("..", "."):
        fleet.run_settings = {"run_id": run_id}
        with pytest.raises(Refused, match="is no name of a run"):
            fleet.tell("begin")


@pytest.mark.parametrize(
    "data",
    [
        {"phase": "suspended", "outcome": "<script>"},
        {"phase": "suspended", "processes": [{"pid": 1, "device_bytes": "much"}]},
        {"phase": "suspended", "processes": [7]},
        {"phase": "suspended", "scheduler": {"kind": "slurm", "jobs": 7}},
        {"phase": "suspended", "estimate": {"bytes": float("inf")}},
        {"preflight": {"findings": [3]}},
    ],
)
def test_no_result_of_a_host_makes_the_record_of_its_run_unreadable(fleet: Fleet, data: dict[str, Any]) -> None:
    run = fleet.tell("begin")
    fleet.tell("batch", "a", ("a",), run=run)
    try:
        fleet.tell("host", "a", what="suspended", ended=True, data=data, run=run)
    except RecordError as error:
        assert "can't be recorded" in str(error)
    place = Directory(run["directory"])
    assert place.host("a") is not None
    fleet.tell("failed", "a", data={"task": "Suspend", "msg": "x", "phase": "claimed"}, ended=True, run=run)
    fleet.tell("end_batch", "a", ("a",), run=run)
    assert json.loads((Path(run["directory"]) / "report.json").read_text())["counts"]["failed"] == 1


def test_a_directory_of_somebody_elses_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o755)
    (tmp_path / RUN_ID).symlink_to(tmp_path / "theirs")
    with pytest.raises(RecordError, match="it is no directory"):
        Directory(str(tmp_path / RUN_ID)).create()
    assert os.listdir(tmp_path / "theirs") == [] and (tmp_path / "theirs").stat().st_mode & 0o777 == 0o755


def test_a_record_of_another_run_or_host_is_refused(tmp_path: Path) -> None:
    place = Directory(str(tmp_path / RUN_ID))
    place.create()
    place.change_run(lambda _old: run_of(attempt_of(("a",))))
    place.change_host("a", lambda host: host)
    hosts = tmp_path / RUN_ID / "hosts"
    (hosts / "b.json").write_text((hosts / "a.json").read_text())
    with pytest.raises(RecordError, match="it is of host a"):
        place.host("b")
    os.rename(tmp_path / RUN_ID, tmp_path / "other")
    with pytest.raises(RecordError, match=f"it is of run {RUN_ID}"):
        Directory(str(tmp_path / "other")).run()


class Tags(HTMLParser):
    """What a browser sees: elements, their attributes, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes.update(name for name, _value in attrs)
        self.links.update(str(value) for name, value in attrs if name == "href")


def seen(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    return tags


# Markup, a terminal's commands, and halves of a pair.
HOSTILE = st.sampled_from(
    [
        *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'--><svg onload=x>", "&#60;b"),
        *("javascript:a", 'https://x" onclick="y', "\x1b]0;x\x07", "\udc80", "\x00", "\u202e", "{{ 7 * 7 }}"),
    ]
)
VALUE = st.one_of(HOSTILE, st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.none())
ANY = st.recursive(
    VALUE, lambda one: st.lists(one, max_size=3) | st.dictionaries(HOSTILE, one, max_size=3), max_leaves=6
)
KEYS = st.sampled_from([*ROW, "estimate", "findings", "holders", "outcome", "next", "preflight"])
NAMES = ("pid", "id", "state", "executable", "device_bytes", "subject", "severity", "reference", "why", "files")
ROWS = st.lists(st.dictionaries(st.sampled_from(NAMES), ANY, max_size=5), max_size=3)


@given(st.dictionaries(KEYS, ANY | ROWS, max_size=6), HOSTILE)
def test_whatever_a_host_returns_is_text_on_the_page(data: dict[str, Any], name: str) -> None:
    run = run_of(attempt_of((name,)))
    try:
        host = answers.recordable(name, lambda: record.event(Host(RUN_ID, name), "suspended", 1796025601.0, data))
    except RecordError:
        return
    text = page.page(report.report(run, {name: host}, 1796025700.0))
    tags = seen(text)
    assert not tags.elements & {"script", "img", "iframe", "object", "embed", "link", "form", "base"}
    assert not {one for one in tags.attributes if one.startswith("on") or one == "src"}
    assert not {one for one in tags.links if not one.startswith(("#", "https://"))}
    assert text.isprintable() or all(one.isprintable() or one == "\n" for one in text)
    assert record.host_from_json(json.loads(json.dumps(record.host_to_json(host)))).host == name


@given(ANY | st.dictionaries(KEYS, ANY | ROWS, max_size=6))
def test_any_answer_is_shown_or_refused(row: Any) -> None:
    try:
        answers.check_seen("a", {"drain": row})
    except answers.Unusable:
        pass


WRITTEN = st.one_of(st.binary(max_size=40), ANY.map(lambda one: json.dumps(one, default=str).encode()))


@given(content=WRITTEN, data=st.data())
def test_any_file_in_a_run_directory_is_a_record_or_is_refused(
    tmp_path: Path, content: bytes, data: st.DataObject
) -> None:
    place = Directory(str(tmp_path / RUN_ID))
    place.create()
    whole = record.run_to_json(run_of(attempt_of(("a",))))
    field = data.draw(st.sampled_from(sorted(whole)))
    for written in (content, json.dumps({**whole, field: data.draw(ANY)}, default=str).encode()):
        (tmp_path / RUN_ID / "run.json").write_bytes(written)
        (tmp_path / RUN_ID / "hosts" / "a.json").write_bytes(written)
        for read in (place.run, place.hosts):
            try:
                read()
            except RecordError:
                pass


def test_a_record_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    place = Directory(str(tmp_path / RUN_ID))
    place.create()
    (tmp_path / RUN_ID / "run.json").write_text("[" * 200000)
    with pytest.raises(RecordError, match="it is no record of a run"):
        place.run()
