# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All or nothing away from running, each for itself towards it; nothing is done twice, nothing is left half way."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._engine import Failed, Refused
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._host import read_boot_id
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._outcome import Outcome
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._report import report
from tests.unit.plugins.engine.helpers import FIRST_PID, GIB, PaperHost


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


FOURTH = FIRST_PID + 3
NOT_READY = Outcome(ok=False, state="running", step="lock", code=600, text="device not ready")
NOT_SUPPORTED = Outcome(ok=False, state="locked", step="checkpoint", code=801, text="operation not supported")
NO_ROOM = Outcome(ok=False, state="checkpointed", stopped="us", step="restore", code=2, text="out of memory")
DIED = Outcome(ok=False, state="unknown", lost_worker=True)
BUSY = Outcome(ok=False, state="checkpointed", stopped="us", step="restore", text="another run", busy=True)
SILENT = Outcome(ok=False, state="unknown", late=True)


@pytest.fixture
def host(tmp_path: Path) -> PaperHost:
    return PaperHost(tmp_path)


def test_eight_go_and_come_back_and_a_second_run_does_nothing(host: PaperHost) -> None:
    engine = host.engine("checkpointed")
    engine.run()
    assert host.states() == ["checkpointed"] * 8
    assert report(engine)["changed"]
    host.commands.clear()
    again = host.engine("checkpointed")
    again.run()
    assert not report(again)["changed"]
    assert host.commands == [], "a parked process is not even asked"
    back = host.engine("running")
    back.run()
    assert host.states() == ["running"] * 8
    assert report(back)["changed"]
    last = host.engine("running")
    last.run()
    assert not report(last)["changed"]


def test_nobody_is_checkpointed_before_everybody_is_locked(host: PaperHost) -> None:
    host.engine("checkpointed", parallel=2).run()
    order = [do for _pid, do in host.commands if do in ("lock", "suspend")]
    assert order == ["lock"] * 8 + ["suspend"] * 8


def test_what_was_done_before_a_run_had_to_wait_for_another_is_told(host: PaperHost) -> None:
    host.engine("checkpointed").run()
    host.fail(FOURTH, "resume", *[BUSY] * 3)
    engine = host.engine("running")
    engine.run()
    processes = report(engine)["processes"]
    assert [process["changed"] for process in processes] == [True] * 8
    assert [process["before"] for process in processes] == ["checkpointed"] * 8
    assert [process["seconds"] for process in processes] == [{"resume": 0.5}] * 8
    assert [do for pid, do in host.commands if pid != FOURTH].count("resume") == 7


@pytest.mark.parametrize("do,failure", [("lock", NOT_READY), ("suspend", NOT_SUPPORTED)])
def test_one_of_eight_fails_and_all_end_as_they_began(host: PaperHost, do: str, failure: Outcome) -> None:
    host.jobs[FOURTH].state = "running"
    host.fail(FOURTH, do, failure)
    engine = host.engine("checkpointed")
    with pytest.raises(Failed) as failed:
        engine.run()
    assert host.states() == ["running"] * 8
    message = str(failed.value)
    assert f"PID {FOURTH} (train): {failure.step} failed with {failure.code}" in message
    assert message.count(" failed ") == 1
    shown = report(engine)
    assert not shown["changed"]
    assert [process["after"] for process in shown["processes"]] == ["running"] * 8
    assert shown["processes"][3]["error"]["code"] == failure.code


def test_what_began_locked_goes_back_to_locked(host: PaperHost) -> None:
    host.jobs[FIRST_PID].state = "locked"
    host.fail(FOURTH, "suspend", NOT_SUPPORTED)
    with pytest.raises(Failed):
        host.engine("checkpointed").run()
    assert host.states() == ["locked"] + ["running"] * 7


def test_rollback_off_leaves_everything_for_a_person(host: PaperHost) -> None:
    host.fail(FOURTH, "lock", NOT_READY)
    engine = host.engine("checkpointed", rollback=False)
    with pytest.raises(Failed, match="rollback is off"):
        engine.run()
    assert host.states()[3] == "running"
    assert set(host.states()) == {"running", "locked"}
    assert report(engine)["changed"]


def test_a_failed_way_back_is_named(host: PaperHost) -> None:
    host.fail(FOURTH, "suspend", NOT_SUPPORTED)
    host.fail(FIRST_PID, "resume", NO_ROOM)
    engine = host.engine("checkpointed")
    with pytest.raises(Failed) as failed:
        engine.run()
    assert f"Not taken back: PID {FIRST_PID} (train): restore failed with 2" in str(failed.value)
    assert host.states() == ["checkpointed"] + ["running"] * 7
    assert report(engine)["processes"][0]["after"] == "checkpointed"


def test_the_way_back_needs_room_too(host: PaperHost) -> None:
    """Somebody else has taken the memory meanwhile: a restore without room would lose the process."""
    host.free_bytes = 0
    host.fail(FOURTH, "suspend", NOT_SUPPORTED)
    engine = host.engine("checkpointed", parallel=1)
    with pytest.raises(Failed) as failed:
        engine.run()
    assert "resume" not in [do for _pid, do in host.commands]
    assert host.states() == ["checkpointed"] * 3 + ["running"] * 5
    assert "Not taken back: PID" in str(failed.value) and "make room on that GPU" in str(failed.value)
    assert [one["parked"] for one in report(engine)["processes"]] == [True] * 3 + [False] * 5


def test_a_resume_that_ended_half_way_is_no_success(host: PaperHost) -> None:
    host.engine("checkpointed").run()
    half_way = Outcome(ok=True, state="locked")
    host.fail(FOURTH, "resume", half_way)
    host.engine("running").run()
    assert host.jobs[FOURTH].log[-2:] == ["resume", "unlock"]
    assert host.states() == ["running"] * 8


def test_a_lock_is_never_without_a_timeout(host: PaperHost) -> None:
    host.engine("locked", lock_timeout=0.0001).run()
    assert host.timeouts_ms == [1] * 8, "0 would wait for ever"


def test_towards_running_seven_run_and_the_eighth_is_named(host: PaperHost) -> None:
    host.engine("checkpointed").run()
    host.fail(FOURTH, "resume", NO_ROOM)
    engine = host.engine("running")
    with pytest.raises(Failed) as failed:
        engine.run()
    assert host.states() == ["running"] * 3 + ["checkpointed"] + ["running"] * 4
    assert f"PID {FOURTH} (train): restore failed with 2" in str(failed.value)
    assert host.jobs[FOURTH].log.count("resume") == 1, "a process that the driver gave up on is not tried again"
    assert [process["changed"] for process in report(engine)["processes"]] == [True] * 3 + [False] + [True] * 4


def test_what_can_be_tried_again_is_tried_once_more(host: PaperHost) -> None:
    host.engine("checkpointed").run()
    host.fail(FOURTH, "resume", replace(NO_ROOM, code=None, text="could not be held in time"))
    host.engine("running").run()
    assert host.states() == ["running"] * 8
    assert host.jobs[FOURTH].log.count("resume") == 2


def test_a_worker_that_dies_is_replaced_and_the_rest_taken_back(host: PaperHost) -> None:
    host.fail(FOURTH, "suspend", DIED)
    with pytest.raises(Failed, match="its worker"):
        host.engine("checkpointed").run()
    assert host.states() == ["running"] * 8


def test_a_silent_driver_call_is_unknown_and_left_alone(host: PaperHost) -> None:
    host.fail(FOURTH, "suspend", SILENT)
    engine = host.engine("checkpointed", step_timeout=5)  # the others have the time, whatever else goes on
    with pytest.raises(Failed, match=r"no answer of the driver within 5 s"):
        engine.run()
    shown = report(engine)
    assert shown["processes"][3]["after"] == "unknown"
    assert shown["processes"][3]["error"]["remedy"].endswith("carries on from whatever the driver finished.")
    assert host.jobs[FOURTH].log.count("resume") == 0
    assert [state for index, state in enumerate(host.states()) if index != 3] == ["running"] * 7


def test_what_a_dead_worker_left_open_is_settled_by_the_next_run(host: PaperHost) -> None:
    host.engine("locked").run()
    journal = open_journal(host.journal_path)
    for operation in (journal.latest(host.identity(pid)) for pid in host.jobs):
        assert operation is not None
        journal.step(operation.id, "lock", status="active", worker=Identity(2, 1, read_boot_id()))
    for check in (True, False):
        engine = host.engine("locked", check=check)
        engine.run()
        assert not report(engine)["changed"]
        assert len(journal.live(read_boot_id())) == (8 if check else 0)
    journal.close()


def test_workers_are_left_in_peace_or_abandoned(host: PaperHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is told to leave keeps a lock; one that is abandoned undoes it."""
    host.engine("locked").run()
    until(lambda: sorted(host.left) == sorted(host.jobs))
    host.left.clear()
    broken = host.engine("checkpointed")

    def fails(*_arguments: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(broken, "_keep_guards", fails)
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    until(lambda: host.serving == 0)
    assert host.left == []


def test_check_mode_foresees_what_a_run_does_and_touches_nothing(host: PaperHost) -> None:
    for goal in ("checkpointed", "running"):
        before = host.states()
        foreseen_engine = host.engine(goal, check=True)
        foreseen_engine.run()
        foreseen = report(foreseen_engine)
        assert host.states() == before
        engine = host.engine(goal)
        engine.run()
        came = report(engine)
        assert foreseen["changed"] is True and came["changed"] is True
        assert foreseen["diff"] == came["diff"]
        for name in ("before", "after", "plan", "parked", "changed", "gpus"):
            assert [one[name] for one in foreseen["processes"]] == [one[name] for one in came["processes"]], name


def test_vram_is_counted_over_all_that_come_back(tmp_path: Path) -> None:
    host = PaperHost(tmp_path, count=4, free_bytes=100 * GIB)
    host.engine("checkpointed").run()
    host.free_bytes = GIB // 2
    with pytest.raises(Refused) as refused:
        host.engine("running").run()
    assert {finding.id for finding in refused.value.findings} == {"vram_short"}
    assert "allow: [vram_short]" in str(refused.value)
    assert host.states() == ["checkpointed"] * 4


def test_what_has_room_comes_back_and_the_rest_is_named(tmp_path: Path) -> None:
    host = PaperHost(tmp_path, count=4, free_bytes=100 * GIB)
    host.engine("checkpointed").run()
    host.free_bytes = 3 * GIB
    for check in (True, False):
        engine = host.engine("running", check=check)
        with pytest.raises(Failed) as failed:
            engine.run()
        assert f"PID {FOURTH} (train)" in str(failed.value) and "allow: [vram_short]" in str(failed.value)
        assert [one["after"] for one in report(engine)["processes"]] == ["running"] * 3 + ["checkpointed"]
    assert host.states() == ["running"] * 3 + ["checkpointed"]


def test_the_arguments_of_a_process_are_not_shown_unless_asked_for(host: PaperHost) -> None:
    engine = host.engine("locked")
    engine.run()
    assert "secret" not in str(report(engine))
    shown = host.engine("locked", full_command=True)
    shown.run()
    assert "secret" in str(report(shown)["processes"][0]["command"])


def test_who_was_suspended_and_has_ended_is_told_until_a_run_was_to_bring_all_back(host: PaperHost) -> None:
    everything = {"pids": (), "select": {"all": True}}
    host.engine("checkpointed", **everything, run_id="first").run()
    del host.jobs[FOURTH]
    words = f"PID {FOURTH} (/usr/bin/train), suspended by run first, has ended since: it does not come back"

    def told(goal: str, **changed: object) -> bool:
        engine = host.engine(goal, **everything, **changed)
        engine.run()
        return any(warning.startswith(words) for warning in engine.warnings)

    assert told("checkpointed", check=True) and told("checkpointed")
    assert told("running", check=True), "looking alone does not make it known"
    assert told("running")
    assert not told("running") and not told("checkpointed")
    assert host.states() == ["checkpointed"] * 7


def test_who_has_ended_for_its_image_or_before_it_was_suspended_is_not_lost(host: PaperHost) -> None:
    everything = {"pids": (), "select": {"all": True}}
    host.engine("locked", **everything).run()
    del host.jobs[FIRST_PID]
    host.engine("checkpointed", **everything, run_id="dump").run()
    with open_journal(host.journal_path) as journal:
        journal.begin_image(
            lineage="a", path="/i", run_id="other", root=host.identity(FOURTH), leave="killed", worker=None
        )
    del host.jobs[FOURTH]
    engine = host.engine("running", **everything)
    engine.run()
    assert not [warning for warning in engine.warnings if "has ended since" in warning]


def test_the_diff_shows_a_new_guard_and_what_was_interrupted(host: PaperHost) -> None:
    host.engine("checkpointed").run()
    engine = host.engine("checkpointed")
    engine.run()
    first, second = engine.subjects[:2]
    first.plan = ("guard",)
    second.kind, second.mended = "interrupted", True
    assert second.operation is not None
    second.operation = replace(second.operation, step="checkpoint")
    diff = report(engine)["diff"]
    words = [text.splitlines() for text in (diff["before"], diff["after"])]
    assert words[0][0].endswith(": checkpointed, parked, no guard")
    assert words[1][0].endswith(": checkpointed, parked, guarded")
    assert words[0][1].endswith(": interrupted at checkpoint") and words[1][1].endswith(": checkpointed, parked")
    assert words[0][2] == words[1][2]
