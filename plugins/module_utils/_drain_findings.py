# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What should be known of a host in a drain, as findings."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._device_holders import DeviceHolder
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._drain_judge import Lost, Verdict
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import BLOCKING, WARNING, Finding

DOCS = "https://github.com/gpufleet/checkpoint/blob/main/docs/drain.md"


def of(verdict: Verdict, holders: Sequence[DeviceHolder], declares: Sequence[str]) -> Tuple[Finding, ...]:
    found: List[Finding] = [lost(one) for one in verdict.lost]
    found.extend(suspended_by_others(pid) for pid in verdict.others)
    found.extend(device_holder(one, "gpu_reset" in declares) for one in holders)
    return tuple(found)


def lost(one: Lost) -> Finding:
    return Finding(
        id="lost",
        severity=BLOCKING,
        subject=one.what,
        evidence=one.why,
        reason="It does not come back by itself",
        remedy="Look at its own output and at the kernel log, and start it anew; to go on without it, accept the loss",
        option="accept_loss",
        reference=DOCS,
        pid=None,
    )


def suspended_by_others(pid: int) -> Finding:
    return Finding(
        id="suspended_by_others",
        severity=WARNING,
        subject=f"PID {pid}",
        evidence="it was suspended before this drain, by somebody else",
        reason="It is left as it is, and is not brought back at the end",
        remedy="See with cuda_checkpoint_info which run did, and resume it with cuda_checkpoint",
        option="",
        reference=DOCS,
        pid=pid,
    )


def device_holder(one: DeviceHolder, blocking: bool) -> Finding:
    return Finding(
        id="device_holder",
        severity=BLOCKING if blocking else WARNING,
        subject=f"{one.name} of {one.user}",
        evidence=f"it has {', '.join(one.files)} open or mapped",
        reason="A GPU that is in use can't be reset, and its driver can't be unloaded",
        remedy="Stop it for the time of the maintenance, if that resets a GPU or changes the driver",
        option="",
        reference=DOCS,
        pid=one.pid,
    )


def packages(evidence: str) -> Finding:
    return Finding(
        id="driver_packages",
        severity=WARNING,
        subject="packages of the NVIDIA driver",
        evidence=evidence,
        reason="A driver that is upgraded while processes are suspended can't resume them",
        remedy="Keep automatic upgrades off this host until it is released",
        option="",
        reference=DOCS,
        pid=None,
    )
