# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bad input gets a clear error before anything is looked at: which argument, what was seen, what is allowed."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _arguments
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError, Wanted
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._engine import ALLOW
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import Operation
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity, list_processes
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._snapshot import Snapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._targets import check_targets, own_ancestors
from tests.unit.plugins.engine.helpers import FIRST_PID, PaperHost


@pytest.mark.parametrize(
    "raw,words",
    [
        ([], "the list is empty"),
        (["abc"], "pids[0]: 'abc' is no PID"),
        ([1, "12 "], "pids[1]: '12 ' is no PID"),
        (["1_000"], "'1_000' is no PID"),
        (["٤٢"], "is no PID"),
        (["\xb2"], "is no PID"),
        (["9" * 5000], "is no PID"),
        ([{"pid": 7, "start_ticks": "9" * 5000}], "pids[0].start_ticks: '999"),
        ([-5], "pids[0]: -5 is no PID"),
        (["-5"], "'-5' is no PID"),
        ([0], "0 is out of range"),
        ([4194305], "4194305 is out of range"),
        ([True], "True is no number"),
        ([None], "None is no number"),
        ([1.0], "1.0 is no number"),
        ([[1]], "[1] is no number"),
        ([7, 8, "7"], "7 is there twice"),
        ([{"pid": 7}], "a dictionary with the keys pid"),
        ([{"pid": 7, "start_ticks": 1, "name": "x"}], "a dictionary with the keys name, pid, start_ticks"),
        ([{"pid": "x", "start_ticks": 1}], "pids[0].pid: 'x' is no PID"),
        ([{"pid": 7, "start_ticks": -1}], "pids[0].start_ticks: -1"),
    ],
)
def test_pids_that_are_none(raw: "list[Any]", words: str) -> None:
    with pytest.raises(ArgumentError) as error:
        _arguments.parse_pids(raw)
    assert words in str(error.value)
    assert str(error.value).startswith("pids")
    assert error.value.allowed


def test_pids_as_templates_and_info_give_them() -> None:
    identity = {"pid": 9, "start_ticks": 12345, "boot_id": "x"}
    assert _arguments.parse_pids([7, "8", identity]) == (Wanted(7), Wanted(8), Wanted(9, 12345, "x"))


@pytest.mark.parametrize("raw", [[], "", 5, {}, {"0": ""}, {"0": None}, {"0": True}, {True: "1"}, "Auto"])
def test_device_maps_that_are_none(raw: Any) -> None:
    with pytest.raises(ArgumentError, match="device_map"):
        _arguments.parse_device_map(raw)


def test_device_maps() -> None:
    assert _arguments.parse_device_map(None) is None
    assert _arguments.parse_device_map("auto") == "auto"
    assert _arguments.parse_device_map({0: "GPU-1", "GPU-1": 0}) == {"0": "GPU-1", "GPU-1": "0"}


def test_a_misspelt_consent_is_no_consent() -> None:
    with pytest.raises(ArgumentError, match="'uvm_managd' is no hazard"):
        _arguments.parse_allow(["uvm_managd"], ALLOW)
    assert _arguments.parse_allow(["uvm_managed", "stopped"], ALLOW) == {"uvm_managed", "stopped"}


def test_ranges() -> None:
    for values in (
        (-1, 1.0, 0.0),
        (0, 0.0, 0.0),
        (0, -1.0, 0.0),
        (0, 86401.0, 0.0),
        (0, 1.0, -1.0),
        (0, float("nan"), 0),
    ):
        with pytest.raises(ArgumentError):
            _arguments.check_ranges(*values)
    _arguments.check_ranges(0, 30.0, 0.0)


def test_a_selection_needs_a_criterion_and_a_guard_needs_parking() -> None:
    with pytest.raises(ArgumentError, match="no criterion is given"):
        _arguments.parse_select({"all": False, "gpus": None})
    assert _arguments.parse_select({"all": True, "unit": None}) == {"all": True}
    with pytest.raises(ArgumentError, match="holder with park off"):
        _arguments.parse_guard("holder", False)
    assert _arguments.parse_guard("auto", True) == "holder"
    assert _arguments.parse_guard("auto", False) == "none"


@pytest.mark.parametrize("raw", ["", "a b", "../x", "x" * 65, "a\n"])
def test_run_ids_that_are_none(raw: str) -> None:
    with pytest.raises(ArgumentError, match="run_id"):
        _arguments.parse_run_id(raw)


def test_run_ids_are_made_up_and_differ() -> None:
    assert _arguments.parse_run_id("night-shift.7") == "night-shift.7"
    assert _arguments.parse_run_id(None) != _arguments.parse_run_id(None)


class TestTargets:
    """On the processes of this machine, and on paper where they would be rare."""

    def snapshot(self, *pids: int) -> Snapshot:
        host = PaperHost(Path("/nonexistent"), count=1).snapshot([])
        return replace(host, processes=list_processes(pids))

    def refuse(self, pid: int, snapshot: Snapshot) -> str:
        with pytest.raises(ArgumentError) as error:
            check_targets([Wanted(pid)], snapshot, (), own_ancestors())
        return str(error.value)

    def test_dead(self) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        assert f"there is no process {pid}" in self.refuse(pid, self.snapshot(pid))

    @pytest.mark.parametrize(
        "status, words",
        [
            ("suspended", "Run shift suspended it; it has ended"),
            ("failed", "Run shift came to its step seize with it;"),
        ],
    )
    def test_one_that_the_journal_knows(self, status: str, words: str) -> None:
        known = SimpleNamespace(
            identity=Identity(4194304, 1, "b"), executable="/bin/job", run_id="shift", status=status, step="seize"
        )
        with pytest.raises(
            ArgumentError, match=f"there is no process 4194304. The journal knows it: /bin/job. {words}"
        ):
            check_targets([Wanted(4194304)], self.snapshot(), [cast(Operation, known)], own_ancestors())

    def test_zombie(self) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        try:
            assert "is a zombie" in self.refuse(pid, self.snapshot(pid))
        finally:
            os.waitpid(pid, 0)

    def test_thread(self) -> None:
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        try:
            tid = thread.native_id
            assert tid is not None
            words = self.refuse(tid, self.snapshot(tid))
            assert f"{tid} is a thread of process {os.getpid()}" in words
        finally:
            done.set()
            thread.join()

    def test_own_ancestor(self) -> None:
        assert "runs this module" in self.refuse(os.getpid(), self.snapshot(os.getpid()))
        assert os.getppid() in own_ancestors() or os.getppid() == 1

    def test_reused(self, tmp_path: Path) -> None:
        host = PaperHost(tmp_path, count=1)
        job = host.jobs[FIRST_PID]
        host.engine("checkpointed").run()
        job.start_ticks, job.state, job.stopped = 99, "running", ""
        with pytest.raises(ArgumentError) as error:
            host.engine("running").run()
        assert "is not the process that run test worked on" in str(error.value)
        assert "started at 99 ticks" in str(error.value) and "started at 4242" in str(error.value)
        host.engine("running", pids=(Wanted(FIRST_PID, 99),)).run()
        with pytest.raises(ArgumentError, match="started at 4242"):
            host.engine("running").run()
        with pytest.raises(ArgumentError, match="another process now"):
            host.engine("running", pids=(Wanted(FIRST_PID, 4242),)).run()
        with pytest.raises(ArgumentError, match="another boot"):
            host.engine("running", pids=(Wanted(FIRST_PID, 99, "other-boot"),)).run()

    def test_reused_and_worked_on_since(self, tmp_path: Path) -> None:
        """As after a dump and a restore: the number is the new one's, and needs no more words."""
        host = PaperHost(tmp_path, count=1)
        job = host.jobs[FIRST_PID]
        host.engine("checkpointed").run()
        job.start_ticks, job.state, job.stopped = 99, "running", ""
        host.engine("checkpointed", pids=(Wanted(FIRST_PID, 99),)).run()
        assert job.state == "checkpointed"
        host.engine("running").run()
        assert job.state == "running"
        job.start_ticks = 101
        with pytest.raises(ArgumentError, match="is not the process that run test worked on"):
            host.engine("running").run()
