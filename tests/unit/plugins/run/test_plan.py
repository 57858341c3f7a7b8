# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan says of hosts, and its table."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.plan import plan, table

GIB = 1 << 30
FINDING = {
    "id": "uvm_managed",
    "severity": "blocking",
    "subject": "PID 71 (/usr/bin/python3)",
    "evidence": "it has managed memory",
    "reason": "The driver refuses it",
    "remedy": "Leave it out with select",
    "option": "uvm_managed",
    "capabilities": ["suspend", "dump", "migrate"],
}

BLOCKED = (
    "uvm_managed: PID 71 (/usr/bin/python3): it has managed memory. The driver refuses it. "
    "Leave it out with select. Override: gpu_drain_allow: [uvm_managed]"
)


def preflight(processes: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "findings": [],
        "processes": [{"pid": pid} for pid in range(processes)],
        "estimate": {
            "device_bytes": 8 * GIB * processes,
            "image_bytes": 9 * GIB * processes,
            "total_seconds": {"suspend": 10.0 * processes, "dump": 50.0 * processes},
        },
        **more,
    }


def seen(**more: Any) -> dict[str, Any]:
    return {"mode": "memory", "preflight": preflight(), "drain": {"drain": None}, "scheduler": {}, **more}


def test_a_ready_host() -> None:
    made = plan({"h1": seen(), "h2": seen(mode="disk", scheduler={"kind": "slurm", "ours": True, "jobs": [1, 2]})}, 1)
    assert made["batches"] == [["h1"], ["h2"]]
    first, second = made["hosts"]
    assert first == {
        "host": "h1",
        "batch": 1,
        "mode": "memory",
        "ready": True,
        "processes": 4,
        "bytes": 32 * GIB,
        "image_bytes": None,
        "seconds": 40.0,
        "blockers": [],
        "warnings": [],
        "held_by": "",
        "scheduler": "-",
    }
    assert (second["image_bytes"], second["seconds"], second["scheduler"]) == (36 * GIB, 200.0, "slurm, 2 jobs")
    assert made["totals"] == {
        "hosts": 2,
        "ready": 2,
        "batches": 2,
        "processes": 8,
        "bytes": 64 * GIB,
        "image_bytes": 36 * GIB,
        "seconds": 240.0,
    }


def test_a_batch_takes_as_long_as_its_slowest_host() -> None:
    made = plan({"h1": seen(), "h2": seen(mode="disk"), "h3": seen()}, [1, 2])
    assert made["totals"]["seconds"] == 240.0


def test_what_blocks_only_the_other_mode_does_not_block() -> None:
    finding = {**FINDING, "id": "journald_stdio", "capabilities": ["dump"]}
    for mode, ready in (("memory", True), ("disk", False)):
        (host,) = plan({"h1": seen(mode=mode, preflight=preflight(findings=[finding]))})["hosts"]
        assert host["ready"] is ready
        assert len(host["blockers"]) == (not ready)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            {"preflight": preflight(findings=[FINDING])},
            BLOCKED,
        ),
        ({"preflight": None, "unreachable": True}, "It does not answer, so nothing is known of it"),
        ({"preflight": {"failed": True, "msg": "needs root"}}, "needs root"),
        ({"preflight": None}, "gpu_preflight gave no answer"),
        ({"errors": ["slurm: the job 7 ends inside the window"]}, "slurm: the job 7 ends inside the window"),
        (
            {
                "drain": {
                    "drain": {
                        "run_id": "r9",
                        "phase": "suspended",
                        "since": 1796025600.0,
                        "controller": "ops2 bo 71:88:b",
                    }
                }
            },
            "It is held by run r9, suspended since 2026-11-30 08:00:00Z, by bo on ops2",
        ),
    ],
)
def test_what_blocks(told: dict[str, Any], words: str) -> None:
    made = plan({"h1": seen(**told), "h2": seen()})
    assert made["hosts"][0]["blockers"] == [words]
    assert [host["ready"] for host in made["hosts"]] == [False, True]
    assert made["totals"]["ready"] == 1
    shown = table(made)
    assert f"  h1: {words[:60]}" in shown
    assert "NO" in shown.splitlines()[2]


@pytest.mark.parametrize("phase", ["released", "undone", ""])
def test_a_drain_that_is_over_holds_nothing(phase: str) -> None:
    (host,) = plan({"h1": seen(drain={"drain": {"run_id": "r9", "phase": phase}})})["hosts"]
    assert (host["ready"], host["held_by"]) == (True, "")


def test_a_drain_of_the_scheduler_that_is_not_ours_is_a_warning() -> None:
    stamp = {"kind": "slurm", "ours": False, "reason": "bad fan"}
    (host,) = plan({"h1": seen(scheduler=stamp)})["hosts"]
    assert host["ready"]
    assert host["warnings"] == ["slurm: somebody else has drained it (bad fan), and it is left so"]
    assert host["scheduler"] == "slurm, not ours"


def test_a_time_that_is_not_known_is_not_guessed() -> None:
    made = plan({"h1": seen(), "h2": seen(preflight=None, unreachable=True)})
    assert made["totals"]["seconds"] is None
    assert made["hosts"][1]["processes"] is None


def test_the_table() -> None:
    results = {f"gpu{number}.example": seen(mode="disk" if number == 2 else "memory") for number in (1, 2)}
    assert table(plan(results, 1)).splitlines() == [
        "host          batch  mode    ready   processes  GPU memory     image        time  scheduler",
        "------------  -----  ------  ------  ---------  ----------  --------  ----------  ---------",
        "gpu1.example      1  memory  yes             4    32.0 GiB         -        40 s  -",
        "gpu2.example      2  disk    yes             4    32.0 GiB  36.0 GiB  3 min 20 s  -",
        "------------  -----  ------  ------  ---------  ----------  --------  ----------  ---------",
        "2 hosts           2          2 of 2          8    64.0 GiB  36.0 GiB  4 min 00 s",
        "",
        "Times are estimates, there and back, without the maintenance; batches run one after another.",
    ]


def test_the_table_is_never_wider_than_120_columns() -> None:
    finding = {**FINDING, "evidence": "it has managed memory " * 20}
    stamp = {"kind": "kubernetes", "ours": False, "pods": ["p"] * 40, "reason": "r" * 200}
    results = {
        f"{'very-long-name-' * 8}{number}": seen(mode="disk", preflight=preflight(findings=[finding]), scheduler=stamp)
        for number in range(200)
    }
    lines = table(plan(results, [1, "10%"])).splitlines()
    assert max(len(line) for line in lines) <= 120
    joined = " ".join(line.strip() for line in lines)
    assert joined.count("uvm_managed: PID 71") == 1, "a text about many hosts is told once"
    assert any("and 180 more" in line for line in lines)


def test_no_hosts() -> None:
    assert plan({})["totals"]["hosts"] == 0
    assert "0 hosts" in table(plan({}))
