# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook that an alert starts: which hosts it comes to, and when it does nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.eda.alerting import FIT, ROOT, Hosts

ANSIBLES = {"newest": Path(sys.executable).parent, "oldest": ROOT / "build/oldest/bin"}
ALERT = {"gpu_alert_name": "GpuXid", "gpu_alert_allowed": ["GpuXid"]}


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def play(hosts: Hosts, *arguments: str, ansible: str = "newest", **variables: Any) -> tuple[int, str]:
    told = {**ALERT, **variables}
    done = subprocess.run(
        [
            *(str(ANSIBLES[ansible] / "ansible-playbook"), "-i", str(hosts.inventory), "-e", json.dumps(told)),
            *(*arguments, "gpufleet.checkpoint.drain_on_alert"),
        ],
        cwd=hosts.directory,
        env=hosts.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, " ".join(done.stdout.split())


@pytest.mark.parametrize("ansible", sorted(ANSIBLES))
def test_without_more_it_is_a_plan(hosts: Hosts, ansible: str) -> None:
    rc, told = play(hosts, ansible=ansible, gpu_alert_host="n1:9100")
    assert rc == 0, told
    assert hosts.asked == {"n1"}
    assert "n1 1 memory yes" in told and "Collect what is wanted" not in told
    assert not (hosts.directory / "runs").exists() and not (hosts.directory / ".local").exists()


@pytest.mark.parametrize(
    "label",
    [
        "all",
        "*",
        "n*",
        "n1,n2",
        "n1:n2",
        "n1:&gpu",
        "!n1",
        "~n.*",
        "n[1:2]",
        "gpu",
        "n4",
        "ungrouped",
        "n9",
        "",
        "-e",
        "N1",
    ],
)
def test_a_label_that_is_not_exactly_one_host_is_nobody(hosts: Hosts, label: str) -> None:
    rc, told = play(hosts, gpu_alert_host=label, gpu_alert_action="drain")
    assert rc == 2, told
    assert "is not the name of one host in the group all" in told
    assert hosts.asked == set()


def test_only_hosts_of_a_group_if_there_is_one(hosts: Hosts) -> None:
    rc, told = play(hosts, gpu_alert_host="n3", gpu_alert_group="gpu")
    assert rc == 2 and "in the group gpu of the inventory" in told and hosts.asked == set()
    assert play(hosts, gpu_alert_host="n2", gpu_alert_group="gpu")[0] == 0 and hosts.asked == {"n2"}


@pytest.mark.parametrize(
    "variables",
    [
        {"gpu_alert_allowed": []},
        {"gpu_alert_allowed": ["GpuXidOther"]},
        {"gpu_alert_name": "Gpu"},
        {"gpu_alert_action": "reboot"},
    ],
    ids=repr,
)
def test_what_was_not_allowed_is_not_done(hosts: Hosts, variables: dict[str, Any]) -> None:
    rc, told = play(hosts, gpu_alert_host="n1", **variables)
    assert rc == 2 and "Nothing is done on an alert that was not named" in told and hosts.asked == set()


def test_a_host_that_something_speaks_against_is_not_drained(hosts: Hosts) -> None:
    hosts.answers("n1", {"changed": False, "failed": True, "msg": "NVML is missing"})
    rc, told = play(hosts, gpu_alert_host="n1", gpu_alert_action="drain", gpu_drain_maintenance_seconds=1)
    assert rc == 2 and "n1 is not drained" in told and "NVML is missing" in told
    assert not (hosts.directory / ".local").exists()


def test_a_drain_that_does_not_end_well_is_the_last(hosts: Hosts) -> None:
    """The hosts answer the same to everything, so no drain gets far."""
    hosts.answers("n1", {**FIT, "todo": ["suspend"], "phase": "claimed", "run_id": "r", "attempt": 1})
    more: dict[str, Any] = {"gpu_alert_action": "drain", "gpu_drain_maintenance_seconds": 1}
    rc, told = play(hosts, gpu_alert_host="n1", **more)
    assert rc == 2 and hosts.asked == {"n1"}
    hold = hosts.directory / ".local/state/gpufleet/alert-drain"
    assert hold.readlink() == Path("n1")
    rc, told = play(hosts, gpu_alert_host="n2", **more)
    assert rc == 2 and "n2 is left alone" in told and "that the drain of n1" in told and hosts.asked == set()
    hold.unlink()
    assert play(hosts, gpu_alert_host="n2")[0] == 0 and hosts.asked == {"n2"}


def test_check_mode_keeps_nobody_away(hosts: Hosts) -> None:
    play(hosts, "--check", gpu_alert_host="n1", gpu_alert_action="drain", gpu_drain_maintenance_seconds=1)
    assert hosts.asked == {"n1"} and not (hosts.directory / ".local/state/gpufleet/alert-drain").is_symlink()
