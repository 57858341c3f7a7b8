# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated hosts for the cases, through tests/fleet/fleet; always taken down again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Dict, List, Optional, Type

CONFORMANCE = Path(__file__).resolve().parent.parent
TESTS = CONFORMANCE.parent
FLEET = TESTS / "fleet" / "fleet.py"
BUILD = TESTS.parent / "build" / "conformance"

# Small, so that a full GPU is quickly filled; slow enough that a call can be met at work.
_GPU_MIB = 4096
_COPY_MIB_PER_S = 256
_IN_HOST = "/root/conformance"
RECORDINGS_IN_HOST = "/root/recordings"


class ControlError(RuntimeError):
    """The hosts, or the simulator, are not to be had: nothing can be said about conformance."""


@dataclass(frozen=True)
class Done:
    rc: int
    out: str


def build_simulator(source: Path, layer: Path, quick: bool = False) -> None:
    """`quick`: without optimization, which takes most of the compiler's time."""
    environment = dict(os.environ)
    if quick:
        compiler = layer.parent / "cc"
        compiler.write_text(f'#!/bin/sh\nexec {environment.get("CC", "gcc")} "$@" -O0\n')
        compiler.chmod(0o755)
        environment["CC"] = str(compiler)
    done = subprocess.run(
        [str(source / "build"), str(layer)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        raise ControlError(
            f"{source}/build ended with status {done.returncode}:\n{done.stdout.decode(errors='replace')}"
        )


class Host:
    """One host of a fleet."""

    def __init__(self, directory: Path, name: str, gpus: int) -> None:
        self.name = name
        self.gpus = gpus
        self._environment = {**os.environ, "FLEET_DIR": str(directory)}

    def run(self, argv: List[str], seconds: float, stdin: Optional[Path] = None) -> Done:
        """The output of a command on the host; 124 when it was still running at the end of the time."""
        with tempfile.TemporaryFile() as out:
            with open(stdin or os.devnull, "rb") as source:
                process = subprocess.Popen(
                    [sys.executable, str(FLEET), "exec", self.name, *argv],
                    stdin=source,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                )
                try:
                    rc = process.wait(seconds)
                except BaseException as error:
                    process.terminate()
                    process.wait()
                    if not isinstance(error, subprocess.TimeoutExpired):
                        raise
                    rc = 124
            out.seek(0)
            return Done(rc, out.read().decode(errors="replace"))

    def must(self, argv: List[str], seconds: float = 60, stdin: Optional[Path] = None) -> str:
        done = self.run(argv, seconds, stdin)
        if done.rc != 0:
            raise ControlError(f"{self.name}: {' '.join(argv)} ended with {done.rc}: {done.out.strip()}")
        return done.out

    def push(self, archive: Path, where: str) -> None:
        self.must(["tar", "-xf", "-", "-C", where], stdin=archive)

    def install(self, layer_archive: Path) -> None:
        """Another build of the simulated driver, for processes that start from now on."""
        self.push(layer_archive, "/")
        self.must(["rm", "-f", "/run/gpusim/host"])
        self.must(["/usr/lib/gpusim/setup"])

    def conform(self, arguments: List[str], seconds: float) -> Done:
        """tests/conformance/run there, ended by its own deadline before ours."""
        return self.run(
            [f"{_IN_HOST}/run", "--profile", "sim", "--deadline", str(int(seconds - 10)), *arguments], seconds + 60
        )

    def read(self, path: str) -> str:
        return self.must(["cat", path])


def archive(directory: Path, members: List[str], to: Path) -> None:
    subprocess.run(["tar", "--exclude=__pycache__", "-C", str(directory), "-cf", str(to), *members], check=True)


class Fleet:
    """A fleet of this run alone."""

    def __init__(self, name: str, hosts: int, gpus: int, layer: Path, recordings: Path) -> None:
        self.directory = BUILD / f"fleet-{name}"
        self.layer = layer
        self.recordings = recordings
        self.count = hosts
        self.gpus = gpus
        self.hosts: List[Host] = []
        self._guard: "Optional[subprocess.Popen[bytes]]" = None

    def _fleet(self, arguments: List[str]) -> "subprocess.CompletedProcess[bytes]":
        environment: Dict[str, str] = {**os.environ, "FLEET_DIR": str(self.directory)}
        return subprocess.run(
            [sys.executable, str(FLEET), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        )

    def __enter__(self) -> "Fleet":
        self.directory.mkdir(parents=True, exist_ok=True)
        self._guard = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("guard.py")), sys.executable, str(FLEET), "down"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "FLEET_DIR": str(self.directory)},
            start_new_session=True,
        )
        done = self._fleet(
            [
                "up",
                *("--hosts", str(self.count), "--gpus", str(self.gpus), "--vram", str(_GPU_MIB), "--init", "none"),
                *("--driver", "580.159.04", "--sim", str(self.layer), "--set", f"copy_mib_per_s={_COPY_MIB_PER_S}"),
            ]
        )
        if done.returncode != 0:
            self.down()
            raise ControlError(f"the hosts did not come up:\n{done.stdout.decode(errors='replace')}")
        try:
            self._fill()
        except BaseException:
            self.down()
            raise
        return self

    def _fill(self) -> None:
        """The cases and the recordings, on every host."""
        cases, recordings = BUILD / f"cases-{self.gpus}.tar", BUILD / f"recordings-{self.gpus}.tar"
        archive(TESTS, ["conformance"], cases)
        archive(self.recordings, ["."], recordings)
        for index in range(1, self.count + 1):
            host = Host(self.directory, f"h{index}", self.gpus)
            host.push(cases, "/root")
            host.must(["mkdir", "-p", RECORDINGS_IN_HOST])
            host.push(recordings, RECORDINGS_IN_HOST)
            self.hosts.append(host)

    def down(self) -> None:
        done = self._fleet(["down"])
        if self._guard is not None:
            self._guard.communicate(b"." if done.returncode == 0 else None)
        if done.returncode != 0:
            print(f"fleet down: status {done.returncode}: {done.stdout.decode(errors='replace')}", file=sys.stderr)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.down()


def terminate_cleanly() -> None:
    """SIGTERM unwinds as Ctrl-C does, so that fleets come down."""

    def stop(_number: int, _frame: Optional[FrameType]) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


class Clock:
    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start
