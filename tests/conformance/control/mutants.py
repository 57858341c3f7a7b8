# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deliberately wrong simulators: each must be caught by the cases that are named for its rule."""

from __future__ import annotations

import json
import queue
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

from .hosts import BUILD, TESTS, Clock, ControlError, Host, archive, build_simulator

SIMULATOR = TESTS / "sim"
_RUN_SECONDS = 90.0
# A mutant that never answers is caught by that; no need to wait for it for long.
_PATIENCE = 3.0


@dataclass(frozen=True)
class Mutation:
    """`old` occurs once in `file` (of tests/sim) and becomes `new`; each of `cases` must differ then."""

    name: str
    file: str
    old: str
    new: str
    cases: Tuple[str, ...]
    gpus: int = 1
    backend: str = "libcuda"


@dataclass(frozen=True)
class Verdict:
    mutation: Mutation
    caught: Tuple[str, ...]
    missed: Tuple[str, ...]
    trouble: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.trouble and not self.missed

    @property
    def text(self) -> str:
        word = "caught" if self.ok else "TROUBLE" if self.trouble else "MISSED"
        line = f"{word:7} {self.seconds:5.1f}s {self.mutation.name}"
        if self.trouble:
            return f"{line}: {self.trouble}"
        if self.missed:
            return f"{line}: no difference in {', '.join(self.missed)}"
        return f"{line}: {', '.join(self.caught)}"


def mutate_text(text: str, mutation: Mutation) -> str:
    """The mutated source; an error unless the snippet is there exactly once."""
    count = text.count(mutation.old)
    if count != 1:
        raise ControlError(
            f"{mutation.name}: the snippet occurs {count} times in {mutation.file}, not once: {mutation.old!r}"
        )
    if mutation.old == mutation.new:
        raise ControlError(f"{mutation.name}: changes nothing")
    return text.replace(mutation.old, mutation.new)


def check_all(mutations: Sequence[Mutation], known_cases: Sequence[str], source: Path = SIMULATOR) -> None:
    """Every mutation applies, and names cases that exist; before an hour is spent on building."""
    names = set()
    for mutation in mutations:
        if mutation.name in names:
            raise ControlError(f"two mutations are called {mutation.name}")
        names.add(mutation.name)
        unknown = sorted(set(mutation.cases) - set(known_cases))
        if unknown or not mutation.cases:
            raise ControlError(f"{mutation.name}: no such case: {', '.join(unknown) or 'none is named'}")
        mutate_text((source / mutation.file).read_text(), mutation)


def verdict_of(mutation: Mutation, report: Mapping[str, object], seconds: float) -> Verdict:
    """From the report of the comparison: each named case must differ, in any of the backends that ran."""
    different = report.get("different")
    if not isinstance(different, dict):
        return Verdict(mutation, (), mutation.cases, "the run left no report", seconds)
    caught, missed, unseen = [], [], []
    for name in mutation.cases:
        lines = [" ".join(text) for key, text in different.items() if key.split(" ", 1)[-1] == name]
        if any("not run:" in line for line in lines):
            unseen.append(name)
        elif lines:
            caught.append(name)
        else:
            missed.append(name)
    trouble = f"not reached in {_RUN_SECONDS:g} s: {', '.join(unseen)}" if unseen else ""
    return Verdict(mutation, tuple(caught), tuple(missed), trouble, seconds)


def build_mutant(mutation: Mutation, scratch: Path) -> Path:
    """Archive of the mutated simulator's layer."""
    source = scratch / mutation.name / "sim"
    shutil.rmtree(scratch / mutation.name, ignore_errors=True)
    shutil.copytree(SIMULATOR, source)
    target = source / mutation.file
    target.write_text(mutate_text(target.read_text(), mutation))
    layer = scratch / mutation.name / "layer"
    build_simulator(source, layer, quick=True)
    packed = scratch / f"{mutation.name}.tar"
    archive(layer, ["usr"], packed)
    shutil.rmtree(scratch / mutation.name)
    return packed


def run_mutant(mutation: Mutation, packed: Path, host: Host, recording: str) -> Verdict:
    clock = Clock()
    host.install(packed)
    report = "/tmp/mutation-report.json"
    host.must(["rm", "-f", report])
    arguments = ["--compare", recording, "--report", report, "--backend", mutation.backend, "--jobs", "4"]
    arguments += ["--patience", str(_PATIENCE)]
    for name in mutation.cases:
        arguments += ["--case", name]
    done = host.conform(arguments, _RUN_SECONDS)
    left = host.run(["cat", report], 30)
    if left.rc != 0:
        return Verdict(mutation, (), mutation.cases, f"the run ended with {done.rc}: {done.out[-400:]}", clock.seconds)
    return verdict_of(mutation, json.loads(left.out), clock.seconds)


@dataclass
class Campaign:
    """All mutations over some hosts: one thread a host, the mutants built by it as well."""

    hosts: List[Host]
    recordings: Dict[int, str]  # GPUs of the host -> path in the host
    verdicts: List[Verdict] = field(default_factory=list)

    def run(self, mutations: Sequence[Mutation], scratch: Path = BUILD / "mutants") -> bool:
        scratch.mkdir(parents=True, exist_ok=True)
        waiting: Dict[int, "queue.SimpleQueue[Mutation]"] = {}
        for mutation in mutations:
            if mutation.gpus not in self.recordings:
                self._add(Verdict(mutation, (), mutation.cases, f"no recording of a host with {mutation.gpus} GPUs"))
                continue
            waiting.setdefault(mutation.gpus, queue.SimpleQueue()).put(mutation)
        threads = [
            threading.Thread(target=self._work, args=(host, waiting[host.gpus], scratch))
            for host in self.hosts
            if host.gpus in waiting
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
        shutil.rmtree(scratch, ignore_errors=True)
        return len(self.verdicts) == len(mutations) and all(verdict.ok for verdict in self.verdicts)

    def _work(self, host: Host, waiting: "queue.SimpleQueue[Mutation]", scratch: Path) -> None:
        while True:
            try:
                mutation = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                packed = build_mutant(mutation, scratch)
                verdict = run_mutant(mutation, packed, host, self.recordings[mutation.gpus])
                packed.unlink()
            except Exception as error:  # one mutant must not end the campaign
                verdict = Verdict(mutation, (), mutation.cases, f"{type(error).__name__}: {error}")
            self._add(verdict)

    def _add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        print(verdict.text, flush=True)
