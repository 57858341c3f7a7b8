# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version 2 freezer around a parked process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold import freezer, park, process
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.errors import HoldError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hold.guard import guard
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import Identity
from tests.unit.plugins.hold.helpers import Holder, Target, bring_back, held, resume, until


def unified() -> Optional[Path]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _dash, right = line.partition(" - ")
        if right.split()[0] == "cgroup2" and os.access(left.split()[4], os.W_OK):
            return Path(left.split()[4])
    return None


needs_v2 = pytest.mark.skipif(os.geteuid() != 0 or unified() is None, reason="needs root and a writable cgroup v2")


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of version 2 of our own."""
    root = unified()
    assert root is not None
    path = root / f"hold-test-{os.getpid()}"
    path.mkdir()
    yield path
    for below in path.iterdir():
        if below.is_dir():
            below.rmdir()
    path.rmdir()


def enter(group: Path, target: Target) -> None:
    (group / "cgroup.procs").write_text(str(target.pid))


def own_group(target: Target) -> str:
    return next(line[3:] for line in Path(f"/proc/{target.pid}/cgroup").read_text().splitlines() if line[:3] == "0::")


def park_frozen(target: Target) -> None:
    def work() -> None:
        _reply, hold = park.suspend(target.target, target.call("c", 1))
        freezer.freeze(target.identity)
        park.let_go(hold, run=False)

    held(work)


@needs_v2
def test_a_frozen_process_runs_nothing_without_any_guard_and_comes_back(group: Path) -> None:
    with Target(30, "spin") as target:
        enter(group, target)
        home = own_group(target)
        park_frozen(target)
        child = freezer.frozen_by_us(target.identity)
        assert child is not None and Path(child).parent == group
        assert own_group(target) == f"{home}/gpufleet-checkpoint-{target.pid}-{target.identity.start_ticks}"
        before = target.counters()
        for _number in range(200):
            os.kill(target.pid, signal.SIGCONT)
        time.sleep(0.05)
        assert target.counters() == before
        held(lambda: resume(target))
        target.assert_runs()
        assert own_group(target) == home
        assert not Path(child).exists()


@needs_v2
def test_in_the_group_where_it_happens_to_be() -> None:
    with Target(3) as target:
        home = own_group(target)
        park_frozen(target)
        bring_back(target)
        target.assert_runs()
        assert own_group(target) == home


@needs_v2
def test_frozen_and_guarded_at_once(group: Path) -> None:
    """And the guard is killed afterwards, when somebody has continued the process and it has only been frozen since."""

    def work(tell: Callable[[Any], None]) -> str:
        _reply, hold = park.suspend(target.target, target.call("c", 1))
        freezer.freeze(target.identity)
        tell("guarding")
        return guard(hold)

    with Target(30, "spin") as target, Holder(work) as holder:
        enter(group, target)
        assert holder.next() == "guarding"
        before = target.counters()
        for _number in range(20):
            os.kill(target.pid, signal.SIGCONT)
            time.sleep(0.001)
        time.sleep(0.05)
        assert target.counters() == before
        holder.kill()
        time.sleep(0.05)
        assert target.counters() == before
        bring_back(target)
        target.assert_runs()
        assert freezer.frozen_by_us(target.identity) is None


@needs_v2
def test_it_is_not_frozen_twice_and_thawed_once(group: Path) -> None:
    with Target(3) as target:
        enter(group, target)
        assert freezer.thaw(target.identity) is False
        first = freezer.freeze(target.identity)
        assert freezer.freeze(target.identity) == first
        assert process.read_host(f"{first}/cgroup.freeze") == "1"
        assert freezer.thaw(target.identity) is True
        assert freezer.thaw(target.identity) is False
        target.assert_runs()


@needs_v2
def test_a_frozen_process_can_be_killed_and_the_next_sweeps_up(group: Path) -> None:
    with Target(3) as target, Target(3) as other:
        enter(group, target)
        enter(group, other)
        park_frozen(target)
        os.kill(target.pid, signal.SIGKILL)
        assert target.popen.wait(5) == -signal.SIGKILL
        (left,) = [path for path in group.iterdir() if path.is_dir()]
        assert left.name.startswith(f"gpufleet-checkpoint-{target.pid}-")
        park_frozen(other)
        (left,) = [path for path in group.iterdir() if path.is_dir()]
        assert left.name.startswith(f"gpufleet-checkpoint-{other.pid}-")
        held(lambda: resume(other))
        other.assert_runs()


@needs_v2
def test_a_holder_that_died_half_way_through_thawing(group: Path) -> None:
    with Target(6) as target:
        enter(group, target)
        park_frozen(target)
        child = freezer.frozen_by_us(target.identity)
        assert child is not None and freezer.is_frozen(target.identity)
        (Path(child) / "cgroup.freeze").write_text("0")
        until(lambda: not freezer.is_frozen(target.identity), "thawed")
        target.assert_still()
        bring_back(target)
        target.assert_runs()
        assert freezer.frozen_by_us(target.identity) is None


@needs_v2
def test_a_group_to_which_it_can_not_go_back(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been given controllers meanwhile, say. That is no reason to keep the process from running."""
    write = freezer._write

    def refuse(identity: Identity, directory: str, name: str, value: str) -> None:
        write(identity, directory if Path(directory) != group else "/nowhere", name, value)

    with Target(3) as target:
        enter(group, target)
        park_frozen(target)
        monkeypatch.setattr(freezer, "_write", refuse)
        held(lambda: resume(target))
        target.assert_runs()
        assert freezer.frozen_by_us(target.identity) is not None
        assert not freezer.is_frozen(target.identity)


@needs_v2
def test_a_group_that_can_have_no_child_is_named(group: Path) -> None:
    (group / "cgroup.max.descendants").write_text("0")
    with Target(3) as target:
        enter(group, target)
        with pytest.raises(HoldError) as caught:
            freezer.freeze(target.identity)
        assert f"no group can be made in {group}" in str(caught.value)
        assert "guard: holder" in caught.value.remedy
        target.assert_runs()


@needs_v2
def test_a_threaded_group_is_refused(group: Path) -> None:
    (group / "t").mkdir()
    (group / "t" / "cgroup.type").write_text("threaded")
    with Target(3) as target:
        enter(group / "t", target)
        with pytest.raises(HoldError, match="'threaded'"):
            freezer.freeze(target.identity)
        target.assert_runs()
        enter(unified() or group, target)


def test_a_host_without_version_2_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "read_host", lambda path: "")
    with Target(1) as target:
        with pytest.raises(HoldError) as caught:
            freezer.freeze(target.identity)
        assert "version 2 can't be seen" in caught.value.evidence
        assert freezer.frozen_by_us(target.identity) is None
        assert freezer.thaw(target.identity) is False
        until(lambda: target.counters()[0] > 0, "it runs")
