# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the evidence of a host and its processes comes to: findings, estimate, verdict, result. Reads the journal, and
what lies around the processes; changes nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import List, Optional, Sequence, Tuple

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _findings, _plan
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._hazards.registry import Finding
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight import (
    capabilities,
    drivers,
    estimate,
    report,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.concern import EVERYTHING, Concern
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.driver_findings import version_of
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.evidence import Evidence
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.facts import HostFacts, Moved
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.host_findings import look
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.options import Options, Verdict
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.process_findings import (
    driver_concerns,
    running_without_gpu,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.read_containers import visible_gpus
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._preflight.system_findings import criu_version
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._subject import Subject


def is_suspended(subject: Subject) -> bool:
    return subject.kind in (_plan.PARKED, _plan.RUNAWAY) or bool(subject.process.looks_suspended)


def decide(options: Options, evidence: Evidence, subjects: List[Subject], facts: HostFacts) -> Verdict:
    work = _work(evidence, subjects)
    facts = replace(facts, moved=_moved(work, options.window))
    concerns = capabilities.accept([*look(facts), *_about(evidence, subjects, facts)], options.allow)
    for subject in subjects:
        subject.findings.extend(one.finding for one in concerns if one.finding.pid == subject.pid)
    decided = capabilities.decide(concerns, options.required)
    failed = capabilities.failures(concerns, options.required, options.fail_on)
    return Verdict(
        report.result(report.Report(facts, subjects, concerns, decided, work), options.full_command),
        capabilities.message(failed, options.required) if failed else "",
    )


def _work(evidence: Evidence, subjects: Sequence[Subject]) -> estimate.Work:
    known = estimate.rates({step: evidence.journal.history(step) for step in estimate.STEPS.values()})
    loads = [
        estimate.Load(
            subject.pid,
            None if subject.device_bytes is None else subject.total_bytes,
            subject.process.rss_anon_bytes,
            is_suspended(subject),
        )
        for subject in subjects
    ]
    return estimate.work(loads, known, os.cpu_count() or 1)


def _moved(work: estimate.Work, window: Optional[float]) -> Moved:
    return Moved(
        image=work.image,
        unknown=work.unknown,
        count=len(work.each),
        seconds=estimate.of_capabilities(work.seconds),
        window=window,
    )


def _about(evidence: Evidence, subjects: Sequence[Subject], facts: HostFacts) -> List[Concern]:
    """What speaks against the processes."""
    found: List[Finding] = []
    for subject in subjects:
        code = evidence.journal.refused(subject.process.identity)
        if subject.kind == _plan.UNOWNED or (subject.kind == _plan.INTERRUPTED and subject.operation is None):
            # With consent the survey calls it interrupted; it is told all the same.
            found.append(_findings.unowned(subject))
        elif subject.kind == _plan.BUSY:
            found.append(_findings.busy(subject))
        elif subject.kind == _plan.RUNAWAY:
            found.append(running_without_gpu(subject.process))
        elif code is not None and not is_suspended(subject):
            found.append(_findings.refused_before(subject, code, allowed=False))
    by_pid = {subject.pid: subject for subject in subjects}

    evidence.survey.criu = criu_version(facts.criu.version)

    def evaluate(action: str, pids: Sequence[int]) -> Tuple[Finding, ...]:
        return evidence.survey.evaluate(action, [by_pid[pid] for pid in pids])

    running = [subject for subject in subjects if not is_suspended(subject)]
    suspended = [subject.pid for subject in subjects if is_suspended(subject)]
    version = version_of(facts)
    needs_look = version and not drivers.has(version, drivers.SOME_GPUS)
    return [
        *(Concern(finding, EVERYTHING) for finding in found),
        *driver_concerns(
            [subject.process for subject in running],
            version,
            visible_gpus(subject.pid for subject in running) if needs_look else {},
            facts.gpu_count,
        ),
        *capabilities.ask(evaluate, [subject.pid for subject in running], suspended),
    ]
