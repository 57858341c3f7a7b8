# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated driver against every recording, then the mutations."""

from __future__ import annotations

import argparse
import fnmatch
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from tests.conformance.conform.record import Recording, read
from tests.conformance.conform.registry import load
from tests.conformance.mutations import MUTATIONS

from .hosts import (
    BUILD,
    CONFORMANCE,
    RECORDINGS_IN_HOST,
    TESTS,
    Clock,
    ControlError,
    Fleet,
    Host,
    build_simulator,
    terminate_cleanly,
)
from .mutants import Campaign, Mutation, check_all

RECORDINGS = CONFORMANCE / "recordings"
_COMPARE_SECONDS = 400.0


@dataclass(frozen=True)
class Reference:
    path: Path
    recording: Recording

    @property
    def gpus(self) -> int:
        return len(self.recording.meta["gpus"])

    @property
    def in_host(self) -> str:
        return f"{RECORDINGS_IN_HOST}/{self.path.name}"


def references(directory: Path) -> List[Reference]:
    found = [Reference(path, read(path)) for path in sorted(directory.glob("*.json"))]
    if not found:
        raise ControlError(f"{directory}: no recordings; make one on a real GPU with tests/conformance/run --record")
    return found


@dataclass
class Comparison:
    """One part of a recording on one host."""

    title: str
    host: Host
    arguments: List[str]
    rc: Optional[int] = None
    out: str = ""
    seconds: float = 0.0

    def run(self) -> None:
        clock = Clock()
        try:
            done = self.host.conform(self.arguments, _COMPARE_SECONDS)
            self.rc, self.out = done.rc, done.out
        except Exception as error:
            self.rc, self.out = 99, f"{type(error).__name__}: {error}"
        self.seconds = clock.seconds

    @property
    def text(self) -> str:
        shown = [line for line in self.out.splitlines() if not line.startswith("[") or "] ok " not in line]
        return "\n".join([f"-- {self.title}: {'equal' if self.rc == 0 else 'DIFFERENT'}, {self.seconds:.0f} s", *shown])


def comparisons(found: Sequence[Reference], hosts: Dict[int, List[Host]]) -> List[Comparison]:
    """Cases and sequences of a recording side by side where there are two hosts for it."""
    planned = []
    for reference in found:
        here = hosts.get(reference.gpus)
        if not here:
            raise ControlError(f"{reference.path}: recorded on {reference.gpus} GPUs: no such host is simulated here")
        compare = ["--compare", reference.in_host]
        name = reference.path.name
        planned.append(Comparison(f"{name}, cases", here[0], [*compare, "--jobs", "6", "--sequences", "0"]))
        if reference.recording.sequences:
            planned.append(Comparison(f"{name}, sequences", here[-1], [*compare, "--no-cases", "--workers", "4"]))
    return planned


def compare_all(planned: List[Comparison]) -> bool:
    """One thread a host, each plays its parts one after another."""

    def play(parts: List[Comparison]) -> None:
        for part in parts:
            part.run()
            print(part.text, flush=True)

    by_host: Dict[int, List[Comparison]] = {}
    for part in planned:
        by_host.setdefault(id(part.host), []).append(part)
    threads = [threading.Thread(target=play, args=(parts,), daemon=True) for parts in by_host.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
    return all(part.rc == 0 for part in planned)


def unmutated(
    mutations: Sequence[Mutation], found: Sequence[Reference], hosts: Dict[int, List[Host]]
) -> List[Comparison]:
    """The cases that the mutations name, on the simulator as it is: they must be equal there to tell anything."""
    planned = []
    for reference in found:
        names = sorted({name for one in mutations if one.gpus == reference.gpus for name in one.cases})
        if names:
            globs = [word for name in names for word in ("--case", name)]
            arguments = ["--compare", reference.in_host, "--jobs", "6", *globs]
            planned.append(Comparison(f"{reference.path.name}, unmutated", hosts[reference.gpus][0], arguments))
    return planned


def chosen(globs: Sequence[str]) -> List[Mutation]:
    if not globs:
        return list(MUTATIONS)
    return [one for one in MUTATIONS if any(fnmatch.fnmatchcase(one.name, glob) for glob in globs)]


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description=__doc__
        if program == "check"
        else "Only the mutations: simulators with one rule broken; each has to be caught.",
    )
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, metavar="DIR")
    parser.add_argument("--mutation", action="append", default=[], metavar="GLOB", help="only these mutations")
    parser.add_argument("--list", action="store_true", help="list the mutations and end")
    if program == "check":
        parser.add_argument("--no-mutations", action="store_true", help="only the comparison")
    return parser


def main(program: str, argv: List[str]) -> int:
    arguments = _parser(program).parse_args(argv)
    mutations = chosen(arguments.mutation)
    if arguments.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for one in mutations:
            print(f"{one.name:40} {one.gpus} GPU, {one.backend}: {', '.join(one.cases)}")
        return 0
    if arguments.mutation and not mutations:
        print(f"{program}: no mutation matches {' '.join(arguments.mutation)}", file=sys.stderr)
        return 2
    terminate_cleanly()
    try:
        return _run(program, arguments, mutations)
    except ControlError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: stopped; its hosts are gone", file=sys.stderr)
        return 130


def _run(program: str, arguments: argparse.Namespace, mutations: List[Mutation]) -> int:
    clock = Clock()
    found = references(arguments.recordings)
    with_mutations = not getattr(arguments, "no_mutations", False)
    if with_mutations:
        check_all(mutations, [case.name for case in load()])
    layer = BUILD / "layer"
    BUILD.mkdir(parents=True, exist_ok=True)
    build_simulator(TESTS / "sim", layer)
    recordings = arguments.recordings
    with Fleet("one", 3, 1, layer, recordings) as one, Fleet("two", 1, 2, layer, recordings) as two:
        hosts = {1: one.hosts, 2: two.hosts}
        planned = comparisons(found, hosts) if program == "check" else unmutated(mutations, found, hosts)
        good = compare_all(planned)
        compared = clock.seconds
        if not good:
            print("the mutations are not tried on a simulator that differs already" if with_mutations else "")
            return _end(clock, compared, good, None)
        campaign = Campaign([*one.hosts, *two.hosts], {reference.gpus: reference.in_host for reference in found})
        caught = campaign.run(mutations) if with_mutations else True
        missed = [verdict for verdict in campaign.verdicts if not verdict.ok]
        for verdict in missed:
            print(verdict.text)
        if with_mutations:
            print(f"{len(campaign.verdicts) - len(missed)} of {len(mutations)} mutations caught")
        return _end(clock, compared, good, caught)


def _end(clock: Clock, compared: float, good: bool, caught: Optional[bool]) -> int:
    ok = good and caught is not False
    print(f"conformance {'ok' if ok else 'FAILED'}: comparison {compared:.0f} s, all {clock.seconds:.0f} s")
    return 0 if ok else 1
