# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test hosts for the tests of this directory: a fleet that is gone again afterwards, and its hosts over SSH."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

if os.geteuid() != 0:
    pytest.fail("the tests in tests/system need root: they bring up test hosts; run them with sudo", pytrace=False)


class Fleet:
    """One fleet in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "tests/fleet/fleet"), *arguments],
            env={**os.environ, "FLEET_DIR": str(self.directory)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def must(self, *arguments: str) -> str:
        done = self(*arguments)
        assert done.returncode == 0, f"fleet {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def inventory(self) -> Path:
        return self.directory / "inventory.yml"


class Host:
    """One host of a fleet, over SSH. The connection is kept open, which saves a login for each command."""

    def __init__(self, fleet: Fleet, name: str = "h1") -> None:
        self.fleet = fleet
        self.name = name

    def ssh(self, *command: str, stdin: str = "", timeout: float = 240) -> subprocess.CompletedProcess[str]:
        shared = ["-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", f"ControlPath={self.control_path}"]
        return subprocess.run(
            [str(self.fleet.directory / "ssh"), *shared, self.name, shlex.join(command)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    @property
    def control_path(self) -> Path:
        """Short, as a socket's path has to be, and gone with the fleet."""
        return self.fleet.directory / f"{self.name}.control"

    def disconnect(self) -> None:
        subprocess.run(
            [str(self.fleet.directory / "ssh"), "-o", f"ControlPath={self.control_path}", "-O", "exit", self.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )

    def run(self, *command: str, rc: int = 0, stdin: str = "") -> str:
        done = self.ssh(*command, stdin=stdin)
        assert done.returncode == rc, f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return (done.stdout + done.stderr).strip()

    def sh(self, script: str, rc: int = 0) -> str:
        return self.run("sh", "-c", script, rc=rc)

    def put(self, path: str, text: str, mode: str = "644") -> None:
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"', "-", path, mode, stdin=text)

    def start(self, name: str, *options: str) -> str:
        """Starts a workload in a session of its own, as a job would run; returns its PID once it counts."""
        self.run("setsid", "-f", "sh", "-c", f'exec gpusim-workload --out {name} "$@" </dev/null >{name}.log 2>&1', "-",
                 *options)  # fmt: skip
        return self.sh(f"until [ -s {name} ]; do sleep 0.05; done; cat {name}.pid")

    def counter(self, name: str) -> int:
        return int(self.sh(f"cat {name}"))

    def counts(self, name: str) -> bool:
        return bool(self.sh(f"a=$(cat {name}); for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; "
                            f'[ "$(cat {name})" = "$a" ] || {{ echo yes; break; }}; done'))  # fmt: skip

    def checksum(self, name: str) -> str:
        return self.sh(f"rm -f {name}.sum; touch {name}.verify; until [ -s {name}.sum ]; do sleep 0.05; done; "
                       f"cat {name}.sum")  # fmt: skip

    def state(self, pid: str) -> str:
        return self.run("cuda-checkpoint", "--get-state", "--pid", pid)

    def act(self, action: str, pid: str, rc: int = 0) -> str:
        return self.run("cuda-checkpoint", "--action", action, "--pid", pid, rc=rc)


@contextmanager
def fleet(*options: str) -> Iterator[Fleet]:
    """`fleet up` with these options; taken down whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix="gpufleet-test-"))
    one = Fleet(directory)
    try:
        one.must("up", *options)
        yield one
    finally:
        down = one("down")
        shutil.rmtree(directory, ignore_errors=True)
        assert down.returncode == 0, down.stdout + down.stderr


@contextmanager
def host(*options: str, init: str = "none") -> Iterator[Host]:
    """A fleet of one host, h1."""
    with fleet("--hosts", "1", "--init", init, *options) as one:
        h1 = Host(one)
        try:
            yield h1
        finally:
            h1.disconnect()
