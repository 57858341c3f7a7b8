# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run over 16 hosts in which whatever can become of a host has become of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run import record, words
from ansible_collections.gpufleet.checkpoint.plugins.plugin_utils._run.record import Attempt, Host, Run
from tests.unit.plugins.run.making import BEGAN, CONTROLLER, RUN_ID

GIB = 1 << 30
NAMES = tuple(f"gpu{number:02}.rack{(number - 1) // 4 + 1}.example" for number in range(1, 17))
BOOT = "6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11"
BLOCKED = {
    "id": "uvm_managed",
    "severity": "blocking",
    "subject": "PID 5203 (/opt/trainer/bin/python3.12)",
    "evidence": "it has 3.0 GiB of managed memory",
    "reason": "The driver refuses to suspend such a process, and after one refusal it refuses it for ever",
    "remedy": "Leave it out with gpu_drain_select, or end it before the drain",
    "option": "",
    "reference": "https://github.com/gpufleet/checkpoint/blob/main/docs/hazards.md#uvm_managed",
    "pid": 5203,
}
WARNED = {
    "id": "persistence_off",
    "severity": "warning",
    "subject": "this host",
    "evidence": "persistence mode is off on 4 GPUs",
    "reason": "The driver is loaded anew for each process, which takes seconds",
    "remedy": "Run nvidia-persistenced",
    "option": "",
    "reference": "https://github.com/gpufleet/checkpoint/blob/main/docs/hazards.md#persistence_off",
    "pid": None,
}
#: Seconds that each phase of a host lasts.
LENGTHS = {"claimed": 6, "suspending": 14, "suspended": 2, "maintenance": 340, "restoring": 19, "restored": 9}
FIRST = Attempt(1, 1, CONTROLLER, BEGAN, NAMES, 4, "")
SECOND = Attempt(2, 1, replace(CONTROLLER, pid=19022), BEGAN + 3900, (NAMES[7], NAMES[4], NAMES[5], *NAMES[8:]), 3, "")
STOPPED = (
    f"Run {RUN_ID} stops before batch 3, because the budget is used up. 3 of 16 hosts failed, 2 may "
    f"(gpu_drain_failures_allowed): {NAMES[4]}: undone: preflight: 1 finding blocks; {NAMES[5]}: no word since claimed "
    f"at 2026-11-30 09:06:40Z; {NAMES[7]}: lost: 2 processes did not come back"
)


def processes(first: int, state: str) -> tuple[Mapping[str, Any], ...]:
    programs = (
        "/opt/trainer/bin/python3.12",
        "/opt/trainer/bin/python3.12",
        "/usr/bin/tritonserver",
        "/usr/bin/python3",
    )
    owners: tuple[Mapping[str, Any], ...] = (
        {"slurm_job": "90210"},
        {"slurm_job": "90210"},
        {"unit": "inference.service"},
        {},
    )
    users = ("ana", "ana", "triton", "mira")
    return tuple(
        {
            "identity": {"pid": first + index, "start_ticks": 1893412 + index, "boot_id": BOOT},
            "executable": program,
            "user": users[index],
            "device_bytes": (8 + 8 * index) * GIB,
            "state": state,
            **owners[index],
        }
        for index, program in enumerate(programs)
    )


def images(first: int, state: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {
            "path": f"/var/lib/gpufleet/images/{RUN_ID}/pid-{first + index}",
            "pid": first + index,
            "state": state,
            "bytes": int((8 + 8 * index) * GIB * 1.04),
        }
        for index in range(4)
    )


def drained(host: Host, at: float, until: str = "released", stretch: float = 1.0) -> Host:
    """Through the phases, with hooks in them, up to this one."""
    hooks = {
        "claimed": ("before_suspend", "scheduler_drain"),
        "suspending": ("preflight", "cuda_checkpoint" if host.mode == "memory" else "criu_image"),
        "restored": ("after_restore", "health", "scheduler_release"),
    }
    for phase, length in LENGTHS.items():
        host = record.event(host, phase, at, {"phase": phase})
        if phase == until:
            return host
        inner = hooks.get(phase, ())
        for index, hook in enumerate(inner):
            part = length * stretch / (len(inner) + 1)
            host = record.event(host, hook, at + part * (index + 0.4), {})
            host = record.event(host, hook, at + part * (index + 1.2), {}, ended=True)
        at += length * stretch
    return record.event(host, "released", at, {"phase": "released"})


def sample() -> tuple[Run, dict[str, Host], float]:
    """The run, its hosts, and when that was all that was known."""
    settings = {
        "mode": "memory",
        "select": {"all": True, "users": []},
        "serial": [1, "25%"],
        "failures_allowed": 2,
        "scheduler": "slurm",
        "declares": ["reboot"],
        "store": "/var/lib/gpufleet/images",
        "window": 3600,
    }
    stopped = replace(SECOND, stopped=STOPPED)
    run = Run(RUN_ID, "drain", BEGAN - 4, settings, "f00d", NAMES, (FIRST, stopped))
    hosts: dict[str, Host] = {}
    for index, name in enumerate(NAMES):
        batch = 1 if index == 0 else 2 + (index - 1) // 4
        mode = "disk" if index in (2, 7) else "memory"
        blank = Host(RUN_ID, name, mode=mode, boot_id=BOOT)
        hosts[name] = record.marked(blank, replace(FIRST, batch=batch)) if batch <= 3 else blank
    start = {1: BEGAN + 3, 2: BEGAN + 420, 3: BEGAN + 870}
    for index in (0, 1, 2, 3, 6):
        hosts[NAMES[index]] = told(
            drained(hosts[NAMES[index]], start[hosts[NAMES[index]].batch], stretch=1 + index / 40), index
        )
    hosts[NAMES[2]] = replace(hosts[NAMES[2]], images=images(5020, "spent"))
    hosts[NAMES[0]] = replace(hosts[NAMES[0]], findings=(WARNED,))
    hosts[NAMES[4]] = undone(hosts[NAMES[4]], start[2])
    hosts[NAMES[5]] = unreachable(hosts[NAMES[5]], start[3])
    hosts[NAMES[7]] = lost(hosts[NAMES[7]], start[3])
    hosts[NAMES[8]] = suspended(hosts[NAMES[8]])
    hosts = {name: replace(host, next=words.of_host(host)) for name, host in hosts.items()}
    return run, hosts, BEGAN + 4900


def told(host: Host, index: int, state: str = "running") -> Host:
    stamp = {
        "kind": "slurm",
        "node": host.host.split(".")[0],
        "ours": True,
        "reason": f"gpufleet {RUN_ID}",
        "jobs": [90210],
    }
    packages = {"manager": "apt", "held": ["libnvidia-compute-580", "nvidia-driver-580"], "already": [], "why": ""}
    return replace(host, processes=processes(5000 + 10 * index, state), scheduler=stamp, packages=packages)


def undone(host: Host, at: float) -> Host:
    """Something blocks; tried twice."""
    for attempt, begin in ((FIRST, at), (SECOND, SECOND.began + 400)):
        host = record.marked(host, replace(attempt, batch=2))
        host = drained(host, begin, until="suspending")
        host = record.event(host, "preflight", begin + 8, {"findings": [BLOCKED, WARNED]})
        host = record.failed(
            host, begin + 9.4, "preflight: 1 finding blocks: PID 5203 has 3.0 GiB of managed memory", ""
        )
        host = record.event(host, "undoing", begin + 9.6, {"phase": "undoing"})
        host = record.event(host, "undone", begin + 12, {"phase": "undone"})
        host = record.failed(
            host, begin + 12.1, "preflight: 1 finding blocks: PID 5203 has 3.0 GiB of managed memory", ""
        )
    return told(host, 20)


def unreachable(host: Host, at: float) -> Host:
    host = record.marked(host, replace(SECOND, batch=2))
    host = record.event(host, "claimed", SECOND.began + 100, {"phase": "claimed"})
    host = record.event(host, "before_suspend", SECOND.began + 101, {})
    return replace(host, outcome=record.FAILED, message="no word since before_suspend at 2026-11-30 09:06:41Z")


def lost(host: Host, at: float) -> Host:
    """Killed in the maintenance, and two images were gone when it went on."""
    host = told(drained(host, at, until="maintenance"), 7, "suspended")
    host = record.marked(host, replace(SECOND, batch=1))
    for offset, phase in ((5, "maintenance"), (60, "restoring")):
        host = record.event(host, phase, SECOND.began + offset, {"phase": phase})
    gone = [
        {"what": f"image /var/lib/gpufleet/images/{RUN_ID}/pid-{5070 + index}", "why": "its directory is missing"}
        for index in range(2)
    ]
    host = record.event(host, "criu_image", SECOND.began + 62, {"lost": gone})
    host = record.failed(host, SECOND.began + 81, "restore: criu_image: 2 of 4 processes did not come back", "")
    states = ("gone", "gone", "running", "running")
    known = tuple({**one, "state": state} for one, state in zip(host.processes, states, strict=True))
    spent = ("missing", "missing", "spent", "spent")
    kept = tuple({**one, "state": state} for one, state in zip(images(5070, ""), spent, strict=True))
    holder = {
        "pid": 912,
        "executable": "/usr/bin/nvidia-persistenced",
        "user": "nvidia-persistenced",
        "files": ["/dev/nvidia0"],
    }
    return replace(host, processes=known, images=kept, holders=(holder,), lost=tuple(gone))


def suspended(host: Host) -> Host:
    """It failed in the maintenance, so it stays suspended."""
    host = record.marked(host, replace(SECOND, batch=2))
    host = told(drained(host, SECOND.began + 90, until="maintenance"), 8, "suspended")
    said = "maintenance: Replace the fan: non-zero return code\nipmitool: Unable to establish IPMI v2 session"
    return record.failed(host, SECOND.began + 300, said, "")
