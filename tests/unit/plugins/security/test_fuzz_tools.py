# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What programs print: CRIU's log, cuda-checkpoint, Slurm's and systemd's tools, with names that users have chosen in
it. Nothing raises but what is documented, and nothing that could not be read is taken for success."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _slurm, _units
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._background import Said
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu import images, log, log_lines
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda import results, tool
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._unit_hold_plan import service_from
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import controller

LOGS = sorted((Path(__file__).parent.parent / "criu" / "logs").glob("*.log"))
REAL = {path.name: path.read_text(errors="replace").split("\n") for path in LOGS}
ODD = st.sampled_from(
    [
        *"\x0b\x0c\x1c\x85\u2028\xa0²٣|=[]@\t",
        *("9" * 5000, "\x1b[2J", "Error (", "(00.000001) ", "pie: 1: ", "%s", "{{ 1 }}"),
    ]
)
TEXT = st.lists(st.one_of(ODD, st.text(max_size=5)), max_size=6).map("".join)
LINE = TEXT.map(lambda text: text.replace("\n", ""))


@given(TEXT, st.sampled_from(["dump", "restore"]))
@example("(00.1) " + "9" * 5000 + ": Error (x.c:1): y", "dump")
@example("(00.000001) Error (criu/files.c:1): " + "9" * 5000, "dump")
def test_any_log_of_criu_is_decoded(text: str, doing: str) -> None:
    log_lines.read(text)
    decoded = log.decode(text, doing)
    assert all(said.isprintable() for said in (decoded.subject, decoded.reason, decoded.remedy, *decoded.lines))


@given(st.sampled_from(sorted(REAL)), st.data())
def test_a_real_log_with_something_else_in_it_is_decoded(name: str, data: st.DataObject) -> None:
    lines = list(REAL[name])
    for _change in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        column = data.draw(st.integers(0, len(lines[at])))
        lines[at] = lines[at][:column] + data.draw(TEXT) + lines[at][data.draw(st.integers(column, column + 20)) :]
    for doing in ("dump", "restore"):
        decoded = log.decode("\n".join(lines), doing)
        assert all(said.isprintable() for said in (decoded.subject, decoded.reason, decoded.remedy, *decoded.lines))


@given(LINE.filter(lambda text: "Dumping finished successfully" not in text))
def test_no_log_without_the_word_of_success_is_a_success(text: str) -> None:
    assert images.is_complete("/nonexistent", "dump", text) is False
    assert images.is_complete("/nonexistent", "dump", text + "Dumping finished successfully") is False


STATUS = st.one_of(st.none(), st.integers(-64, 255))


@given(STATUS, TEXT, TEXT)
@example(0, "1" * 5000, "")
def test_any_words_of_cuda_checkpoint_are_a_reply(status: int | None, out: str, err: str) -> None:
    finished = tool.Finished(status, out, err)
    changed, state, thread = tool.done(finished), tool.read_state(finished), tool.read_thread(finished)
    assert not changed.ok or status == 0 or (status is None and not err.strip())
    assert not state.ok or (state.state in results.STATES.values() and out.strip() == state.state)
    assert not thread.ok or (thread.tid is not None and str(thread.tid) == out.strip())
    for reply in (changed, state, thread):
        assert reply.ok or reply.text


@given(st.sampled_from(sorted(results.STATES.values())), st.integers(1, (1 << 22) - 1))
def test_what_cuda_checkpoint_says_is_what_is_read(state: str, tid: int) -> None:
    assert tool.read_state(tool.Finished(0, state + "\n", "")).state == state
    assert tool.read_thread(tool.Finished(0, f"{tid}\n", "")).tid == tid


WORD = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True)


@given(TEXT)
def test_any_words_of_slurm_are_read_or_refused(text: str) -> None:
    for parse in (_slurm.parse_node, _slurm.parse_jobs):
        try:
            parse(text)
        except _slurm.SlurmError:
            pass


@given(
    st.lists(st.tuples(st.integers(1, 1 << 31), WORD, st.one_of(st.none(), st.integers(0, 1 << 40)), TEXT), max_size=5)
)
@example([(7, "u", None, "x\n8|root|COMPLETED|5|y")])
def test_no_name_of_a_job_hides_a_job(jobs: list[tuple[int, str, int | None, str]]) -> None:
    text = "".join(
        f"{number}|{user}|RUNNING|{'NONE' if end is None else end}|{name}\n" for number, user, end, name in jobs
    )
    try:
        found = _slurm.parse_jobs(text)
    except _slurm.SlurmError:
        return
    seen = [(one.id, one.user, one.end) for one in found]
    for number, user, end, _name in jobs:
        assert (str(number), user, end) in seen


@given(WORD, st.sampled_from(["IDLE", "MIXED+DRAIN", "DOWN*+DRAIN", "ALLOCATED"]), LINE)
@example("n", "IDLE", "gpufleet run [root@²]")
@example("n", "IDLE", "x State=IDLE NodeName=y")
def test_no_reason_changes_what_a_node_is(name: str, state: str, reason: str) -> None:
    line = f"NodeName={name} Arch=x86_64 State={state} ThreadsPerCore=1 Reason={reason} [root@1796025600]\n"
    try:
        node = _slurm.parse_node(line)
    except _slurm.SlurmError:
        return
    assert (node.name, node.state) == (name, state)
    assert _slurm.whose(node, ["run"]) != "ours" or node.reason == "gpufleet run"


@given(TEXT)
def test_what_systemd_does_not_tell_is_unknown(text: str) -> None:
    for said in (Said(0, text), Said(1, text, text), Said(None, problem="no answer")):
        (unit,) = _units.units_of(["a.service"], said)
        assert unit.problem or "LoadState=" in said.out


@given(st.dictionaries(st.sampled_from([*_units.PROPERTIES, "TasksCurrent", "DropInPaths", "BoundBy"]), LINE))
@example({"WatchdogUSec": "9" * 5000 + " x"})
def test_any_property_of_a_unit_is_read(shown: dict[str, str]) -> None:
    found = _units.parse_show("".join(f"{name}={value}\n" for name, value in shown.items()))
    assert found == ([shown] if shown else [])
    _units.unit_of("a.service", shown)
    service_from("a.service", shown)


@given(TEXT)
def test_any_words_about_a_controller_are_known_or_not(text: str) -> None:
    who = controller.parsed(text)
    assert who is None or controller.text(who) == text.strip()[:200]
    for odd in (f"host user {text}:1:b", f"host user 1:{text}:b"):
        controller.parsed(odd)
