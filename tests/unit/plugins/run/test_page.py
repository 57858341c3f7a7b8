# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a run, as data and as a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import page_timeline, record
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.page import page
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.page_style import STYLE
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Entry, Host
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.report import report
from tests.unit.plugins.run.making import BEGAN, RUN_ID, attempt_of, run_of
from tests.unit.plugins.run.sample import BLOCKED, NAMES, WARNED, drained, sample

VOID = frozenset(("meta", "br", "hr", "img", "input", "link"))
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y>&amp;\x00\u202e"


class Page(HTMLParser):
    """Raises AssertionError for what is not closed, or closed in the wrong order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _value in attrs]
        assert len(names) == len(set(names)), (tag, attrs)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):  # type: ignore[union-attr]
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _tag, attributes in self.tags if attribute in attributes]


def made(alive: bool | None = None) -> dict[str, Any]:
    run, hosts, now = sample()
    return report(run, hosts, now, alive)


def test_a_step_says_when_it_failed() -> None:
    host = record.marked(Host(RUN_ID, "h1"), attempt_of(("h1",)))
    for offset, phase in ((1, "claimed"), (2, "suspending")):
        host = record.event(host, phase, BEGAN + offset, {"phase": phase})
    host = record.event(record.failed(host, BEGAN + 3, "no room", ""), "undoing", BEGAN + 5, {})
    text = Page(page(report(run_of(attempt_of(("h1",))), {"h1": host}, BEGAN + 9))).text
    assert "suspending \u2715 failed 08:00:03 08:00:02 3.0 s" in text
    assert text.count("\u2715 failed") == 1


def test_counts() -> None:
    data = made()
    assert data["counts"] == {
        "hosts": 16,
        "untouched": 7,
        "in_progress": 0,
        "finished": 5,
        "failed": 2,
        "undone": 1,
        "lost": 1,
        "processes": {"total": 32, "running": 26, "suspended": 4, "gone": 2, "unknown": 0},
        "images": {"total": 8, "unspent": 0},
        "device_bytes": 8 * 80 << 30,
        "device_bytes_unknown": 0,
        "losses": 2,
    }
    assert [one["host"] for one in data["hosts"]] == list(NAMES)
    assert [one["host"] for one in data["budget"]["failed"]] == [NAMES[4], NAMES[5], NAMES[7], NAMES[8]]
    assert all(one["next"] for one in data["hosts"] if one["outcome"] != record.FINISHED)


@pytest.mark.parametrize(
    ("alive", "stopped", "outcome", "state"),
    [
        (None, "", record.FINISHED, "finished"),
        (True, "", record.IN_PROGRESS, "running"),
        (False, "", record.IN_PROGRESS, "interrupted"),
        (None, "", record.UNTOUCHED, "unknown"),
        (True, "budget", record.UNTOUCHED, "stopped"),
        (None, "", record.FAILED, "incomplete"),
        (None, "", record.UNDONE, "incomplete"),
    ],
)
def test_where_a_run_is(alive: bool | None, stopped: str, outcome: str, state: str) -> None:
    run = run_of(attempt_of(("h1", "h2"), stopped=stopped))
    hosts = {"h1": Host(RUN_ID, "h1", outcome=record.FINISHED), "h2": Host(RUN_ID, "h2", outcome=outcome)}
    data = report(run, hosts, BEGAN + 60, alive)
    assert data["state"] == state
    assert Page(page(data)).text


def test_while_a_run_is_at_work_there_is_nothing_to_do_but_wait() -> None:
    run = run_of(attempt_of(("h1", "h2", "h3")), failures_allowed=2)
    hosts = {"h1": Host(RUN_ID, "h1", outcome=record.UNDONE), "h2": Host(RUN_ID, "h2", outcome=record.IN_PROGRESS)}
    data = report(run, hosts, BEGAN + 60, True)
    assert data["next"] == (
        "Wait: this run is at work, and gpufleet.checkpoint.status shows how far it is. Once it has ended, settle what "
        "failed on h1."
    )
    assert [one["next"][:24] for one in data["hosts"]] == ["Once this run has ended:", "", ""]
    assert "Run the same command" in report(run, hosts, BEGAN + 60, False)["next"]


def test_what_blocked_a_finished_host_is_past() -> None:
    run, hosts, now = sample()
    blocked = replace(hosts[NAMES[0]], findings=(BLOCKED, WARNED))
    data = report(run, {NAMES[0]: blocked}, now)
    assert [one.get("past") for one in data["hosts"][0]["findings"]] == [True, None]
    text = page(report(replace(run, order=(NAMES[0],)), {NAMES[0]: blocked}, now))
    assert '<span class="badge failed">blocking' not in text
    assert "blocking before, settled since" in text
    open_one = replace(hosts[NAMES[4]], findings=(BLOCKED,))
    assert '<span class="badge failed">blocking</span>' in page(report(run, {NAMES[4]: open_one}, now))


def test_a_remedy_can_be_pasted() -> None:
    run, hosts, now = sample()
    finding = {**BLOCKED, "remedy": "sysctl kernel.io_uring_disabled=2"}
    text = page(report(run, {NAMES[4]: replace(hosts[NAMES[4]], findings=(finding,))}, now))
    assert "sysctl kernel.io_uring_disabled=2" in text


def test_memory_is_also_that_of_hosts_which_are_not_suspended_yet() -> None:
    unknown = ({"pid": 1, "device_bytes": None}, {"pid": 2, "device_bytes": None})
    looked = Host(RUN_ID, "h1", processes=unknown, estimate={"bytes": 6 << 30}, outcome=record.UNDONE)
    claimed = Host(RUN_ID, "h2", processes=unknown, outcome=record.IN_PROGRESS)
    suspended = Host(RUN_ID, "h3", processes=({"pid": 3, "device_bytes": 2 << 30},), outcome=record.IN_PROGRESS)
    run = run_of(attempt_of(("h1", "h2", "h3")))
    data = report(run, {one.host: one for one in (looked, claimed, suspended)}, BEGAN)
    assert (data["counts"]["device_bytes"], data["counts"]["device_bytes_unknown"]) == (8 << 30, 2)
    assert "8.0 GiB of GPU memory, not known of 2 processes." in Page(page(data)).text


def test_processes_stand_still_from_the_look_on() -> None:
    host = record.marked(Host(RUN_ID, "h1"), attempt_of(("h1",)))
    for offset, phase in ((1, "claimed"), (2, "suspending")):
        host = record.event(host, phase, BEGAN + offset, {"phase": phase, "processes": [{"pid": 7}]})
    passed = record.event(host, "preflight", BEGAN + 7, {}, ended=True)
    blocked = record.held_off(record.failed(host, BEGAN + 7, "no", ""), BEGAN + 7)
    for one, said in ((passed, "for 20 s at most"), (host, "for 25 s at most"), (blocked, "")):
        undone = record.event(one, "undone", BEGAN + 27, {"phase": "undone"})
        text = Page(page(report(run_of(attempt_of(("h1",))), {"h1": undone}, BEGAN + 40))).text
        assert said in text and ("stood still" in text) is bool(said)


def test_what_is_no_setting_of_a_run_is_not_reported() -> None:
    run = run_of(attempt_of(("h1",)), notify_command=["curl", "-H", "Bearer S3CRET"])
    assert "S3CRET" not in json.dumps(report(run, {}, BEGAN))


def test_the_page_is_well_formed_and_its_links_lead_somewhere() -> None:
    shown = Page(page(made()))
    ids = shown.values("id")
    assert len(ids) == len(set(ids))
    links = shown.values("href")
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert all(link.startswith(("#", "https://github.com/gpufleet/")) for link in links)


def test_the_page_stands_alone() -> None:
    text = page(made())
    shown = Page(text)
    assert not {tag for tag, _attributes in shown.tags} & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not shown.values("src") and not [name for _tag, one in shown.tags for name in one if name.startswith("on")]
    assert re.findall(r"url\([^)]*\)|@import", text) == ["url(#hatch)"]
    policy = [one["content"] for tag, one in shown.tags if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_words_say_what_colours_say() -> None:
    text = Page(page(made())).text
    for word in (*record.PHASES, "finished", "failed", "lost", "put back", "untouched", "no end told", "Attempt 2"):
        assert word in text, word
    for outcome, count in (("finished", 5), ("failed", 2), ("lost", 1), ("put back", 1), ("untouched", 7)):
        assert re.search(rf"\b{count}\s+\S?\s*{outcome}", text), outcome


def test_each_host_that_was_touched_has_one_timeline_and_its_story() -> None:
    run, hosts, now = sample()
    shown = Page(page(report(run, hosts, now)))
    lines = [label for label in shown.values("aria-label") if ": claimed " in label]
    assert sorted(label.split(":")[0] for label in lines) == sorted(NAMES[:9])
    for host in hosts.values():
        assert host.host in shown.text
        assert host.message.split("\n")[0] in shown.text
        for finding in host.findings:
            assert finding["evidence"] in shown.text
    for told in (
        "its directory is missing",
        "/var/lib/gpufleet/images/",
        "slurm, node gpu01: drained by this run",
        "held meanwhile (apt): libnvidia-compute-580, nvidia-driver-580",
        "PID 912 (/usr/bin/nvidia-persistenced)",
        "ana, job 90210",
        "gpu_drain_maintenance_done",
        "What to do next.",
        "Why it stopped.",
    ):
        assert told in shown.text, told


def test_hosts_that_need_somebody_come_first() -> None:
    text = page(made())
    order = re.findall(r'<h3 id="host-(\d+)-name">', text)
    assert order[:4] == ["8", "6", "9", "5"]


def test_what_comes_from_outside_stays_text() -> None:
    run, hosts, now = sample()
    names = (HOSTILE, *NAMES[1:])
    told = {
        "processes": [{"pid": HOSTILE, "executable": HOSTILE, "user": HOSTILE, "unit": HOSTILE, "state": HOSTILE}],
        "images": [{"path": HOSTILE, "pid": HOSTILE, "state": HOSTILE}],
        "findings": [dict.fromkeys(("id", "severity", "subject", "evidence", "reason", "remedy", "option"), HOSTILE)],
        "holders": [{"pid": HOSTILE, "executable": HOSTILE, "user": HOSTILE, "files": [HOSTILE]}],
        "lost": [{"what": HOSTILE, "why": HOSTILE}],
        "scheduler": {"kind": HOSTILE, "node": HOSTILE, "reason": HOSTILE, "ours": True},
        "packages": {"manager": HOSTILE, "held": [HOSTILE], "already": [HOSTILE]},
        "mode": HOSTILE,
    }
    host = record.event(Host(RUN_ID, HOSTILE), HOSTILE, BEGAN, {**told, "message": HOSTILE}, ended=True)
    host = record.failed(record.event(host, "claimed", BEGAN + 1, {}), BEGAN + 2, HOSTILE, HOSTILE)
    first = replace(
        run.attempts[0], stopped=HOSTILE, hosts=names, controller=replace(run.attempts[0].controller, user=HOSTILE)
    )
    hostile = replace(run, run_id=HOSTILE, kind=HOSTILE, order=names, attempts=(first,), settings={"mode": HOSTILE})
    text = page(report(hostile, {**hosts, HOSTILE: host}, now))
    shown = Page(text)
    assert not {tag for tag, _attributes in shown.tags} & {"script", "img"}
    assert "\x00" not in text and "\u202e" not in text
    assert shown.text.count("<script>alert(1)</script>") > 20
    assert "\\x00\\u202e" in shown.text


def test_a_reference_that_is_no_web_address_is_no_link() -> None:
    run, hosts, now = sample()
    finding = {"id": "x", "severity": "warning", "reference": "javascript:alert(1)"}
    text = page(report(run, {**hosts, NAMES[0]: replace(hosts[NAMES[0]], findings=(finding,))}, now))
    assert "javascript" not in text


def test_the_page_is_the_same_from_the_file() -> None:
    data = made()
    assert page(json.loads(json.dumps(data))) == page(data)


def test_64_hosts() -> None:
    names = tuple(f"gpu{number:03}" for number in range(64))
    run = run_of(attempt_of(names, batch=20))
    hosts = {name: drained(Host(RUN_ID, name), BEGAN + 30 * index) for index, name in enumerate(names)}
    text = page(report(run, hosts, BEGAN + 4000))
    assert Page(text).text.count("maintenance") > 64
    assert text.count('role="img"') == 64
    assert len(text) < 1 << 20


def test_nothing_has_begun() -> None:
    for run in (run_of(attempt_of(("h1",), batch=0)), replace(run_of(attempt_of(("h1",))), attempts=(), order=())):
        text = Page(page(report(run, {}, BEGAN))).text
        assert "No process is known yet." in text


def test_a_run_under_way_says_of_when_it_tells() -> None:
    run, hosts, now = sample()
    going = replace(run, attempts=(run.attempts[0],))
    assert report(going, hosts, now)["state"] == "unknown"
    text = Page(page(report(going, hosts, now))).text
    assert "Written 2026-11-30 09:21:40Z." in text
    assert "It tells of that moment; gpufleet.checkpoint.status asks the hosts and writes it anew." in text


def test_what_has_no_end_lasts_until_something_else_was_told() -> None:
    host = Host(
        RUN_ID,
        "h1",
        timeline=(
            Entry("claimed", 100.0, None, attempt=1),
            Entry("before_suspend", 110.0, None, attempt=1),
            Entry("suspending", 150.0, None, attempt=2),
        ),
    )
    assert [(span.entry.what, span.end, span.open) for span in page_timeline.spans(host, 200.0)] == [
        ("claimed", 150.0, True),
        ("before_suspend", 150.0, True),
        ("suspending", 200.0, True),
    ]
    axis = page_timeline.axis_of([host], 200.0)
    assert axis is not None and (axis.begin, axis.end) == (100.0, 200.0)
    assert page_timeline.axis_of([Host(RUN_ID, "h2")], 200.0) is None


def test_an_axis_ends_with_the_last_word_when_nothing_lasts() -> None:
    axis = page_timeline.axis_of([drained(Host(RUN_ID, "h1"), BEGAN)], BEGAN + 86400)
    assert axis is not None and axis.end == BEGAN + 390


@pytest.mark.parametrize("span", [1, 7, 59, 390, 3601, 86400, 10 * 86400, 400 * 86400])
def test_an_axis_has_a_few_round_times(span: int) -> None:
    axis = page_timeline.Axis(BEGAN + 3, BEGAN + 3 + span)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 7
    assert all(axis.begin <= at <= axis.end for at, _text in ticks)
    assert len({text for _at, text in ticks}) == len(ticks)
    assert axis.days is (span >= 86400)


def test_every_bar_can_be_seen_and_lies_on_the_line() -> None:
    text = page(made())
    found = re.findall(r'<rect class="[a-z ]+" x="([\d.]+)%" width="([\d.]+)%"', text)
    assert len(found) > 100
    assert all(float(width) >= 0.7 and float(left) + float(width) <= 96.6 for left, width in found)


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_bars_stand_out(theme: int) -> None:
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", re.findall(r":root \{([^}]*)\}", STYLE)[theme]))
    texts = {
        "paper": ("ink", "soft", "good", "bad", "warn", "link"),
        "card": ("ink", "soft", "good", "bad", "warn"),
        "bad-paper": ("ink", "bad"),
        "note-paper": ("ink",),
        "down-paper": ("ink",),
        "move": ("on-bar",),
        "back": ("on-bar",),
        "undo": ("on-bar",),
        "prepare": ("on-prepare",),
    }
    pairs = [(front, back, 4.5) for back, fronts in texts.items() for front in fronts]
    pairs += [(shape, "paper", 3.0) for shape in ("prepare", "move", "down", "back", "undo", "bad", "soft")]
    for front, back, least in pairs:
        dark, light = sorted((luminance(colours[front]), luminance(colours[back])))
        assert (light + 0.05) / (dark + 0.05) >= least, (front, back)
