# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings that follow from a run's own knowledge: the journal, the backend, what the driver answered."""

from __future__ import annotations

from typing import Optional

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._cuda.results import NAMES
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.finding import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._process import ProcessSnapshot
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import WORKER_NAME, Subject
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

DOCS = "https://github.com/gpufleet/checkpoint/blob/main/docs/hazards.md"
OWN_OPTIONS = frozenset(("checkpoint_refused", "parked_unowned", "unparked"))


def busy(subject: Subject) -> Finding:
    operation = subject.operation
    worker = operation.worker.pid if operation is not None and operation.worker is not None else 0
    step = operation.step if operation is not None else "?"
    run = operation.run_id if operation is not None else "?"
    return Finding(
        id="busy",
        severity="blocking",
        subject=subject.name,
        evidence=f"worker PID {worker} of run {run} is at step {step}",
        reason="One worker at a time drives a process; a driver call is never ended half way",
        remedy="Wait until it is done, and run the task again; longer with step_timeout",
        option="",
        reference=f"{DOCS}#busy",
        pid=subject.pid,
    )


def refused_before(subject: Subject, code: int, allowed: bool) -> Finding:
    return Finding(
        id="checkpoint_refused",
        severity="warning" if allowed else "blocking",
        subject=subject.name,
        evidence=f"the driver has refused a checkpoint of it before ({code} {NAMES.get(code, 'UNKNOWN')})",
        reason="After one refusal the driver refuses every later checkpoint of that process (999)",
        remedy="It can only be suspended once it has been started anew; leave it out until then",
        option="checkpoint_refused",
        reference=f"{DOCS}#checkpoint_refused",
        pid=subject.pid,
    )


def traced(subject: Subject, tracer: Optional[ProcessSnapshot]) -> Finding:
    """tracer: None for one that can't be seen."""
    pid = subject.process.tracer_pid
    if tracer is not None and tracer.name == WORKER_NAME:
        evidence = f"PID {pid} ({WORKER_NAME}) guards it, and is not in this journal"
        remedy = (
            f"Name the journal that knows it. If there is none any more: kill {pid}, which lets go of the process and "
            "leaves it stopped; then run the task again"
        )
    else:
        name = "" if tracer is None else f" ({printable(tracer.name)})"
        evidence = f"PID {pid}{name}, which is no worker of ours, traces it, and it has lost its guard"
        remedy = f"End or detach PID {pid} (a debugger, strace), and run the task again"
    return Finding(
        id="traced",
        severity="blocking",
        subject=subject.name,
        evidence=evidence,
        reason="Only one tracer can be attached to a process: it can neither be held nor resumed",
        remedy=remedy,
        option="",
        reference=f"{DOCS}#traced",
        pid=subject.pid,
    )


def unowned(subject: Subject) -> Finding:
    return Finding(
        id="parked_unowned",
        severity="blocking",
        subject=subject.name,
        evidence="stopped, and its CUDA state is suspended, but this host's journal does not know it",
        reason="Who suspended and stopped it is not known, nor how much GPU memory it needs to come back",
        remedy="Find out who did (another journal, cuda-checkpoint by hand), or take it over",
        option="parked_unowned",
        reference=f"{DOCS}#parked_unowned",
        pid=subject.pid,
    )


def unparked(subject: Subject, allowed: bool) -> Finding:
    return Finding(
        id="unparked",
        severity="warning" if allowed else "blocking",
        subject=subject.name,
        evidence="the driver's tool knows --toggle only and names no restore thread, so the process can't be held",
        reason="Its threads run on while it has no GPU; a process that polls streams, as JAX does, dies of that",
        remedy="Use driver 555 or newer; consent only for workloads that are known to survive",
        option="unparked",
        reference=f"{DOCS}#unparked",
        pid=subject.pid,
    )


def window(subject: Subject) -> Finding:
    return Finding(
        id="unparked",
        severity="warning",
        subject=subject.name,
        evidence="park is off",
        reason="Its threads run while it has no GPU, and also if the worker dies during the step; a process that polls "
        "events or streams, as JAX does, dies of that",
        remedy="Leave park on, unless a thread has to run while the process is suspended",
        option="unparked",
        reference=f"{DOCS}#unparked",
        pid=subject.pid,
    )


def unknown_state(subject: Subject) -> Finding:
    failure = subject.failure
    said = failure.text if failure is not None and failure.text else f"its CUDA state is {subject.view.state}"
    return Finding(
        id="state_unknown",
        severity="blocking",
        subject=subject.name,
        evidence=said,
        reason="What to do depends on the state that is read; it is never assumed",
        remedy=(failure.remedy if failure is not None else "")
        or "Look at it with cuda_checkpoint_info, and run the task again",
        option="",
        reference=f"{DOCS}#state_unknown",
        pid=subject.pid,
    )
