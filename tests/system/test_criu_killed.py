# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real CRIU, killed while it dumps: at each call by which it works on a process, before it, after it, and a little
later. Nothing of it may remain in the processes, and none may be lost.

Every so many calls here; all of them, some 1300 kills in three minutes, with GPUFLEET_CRIU_KILLS=all.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.hosts import Host, host
from tests.system.lab import INSIDE
from tests.system.test_criu_tool import collection

PLACE = "/srv/kill"
EVERY = 1 if os.environ.get("GPUFLEET_CRIU_KILLS") == "all" else 5
# How many of CRIU's calls there are depends on its version, and how often it has to ask again.
LEAST_CALLS = 300


def build(source: Path, to: Path, *options: str) -> None:
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", str(to), str(source), *options], check=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    built = tmp_path_factory.mktemp("built")
    build(INSIDE / "criu_kill.c", built / "criu_kill.so", "-shared", "-fPIC", "-ldl")
    build(INSIDE / "victim.c", built / "victim", "-lpthread")
    with host("--gpus", "0") as h1:
        h1.put(f"{PLACE}/criu_kill.py", (INSIDE / "criu_kill.py").read_text())
        for path in built.iterdir():
            put_binary(h1, f"{PLACE}/{path.name}", path.read_bytes())
        put_binary(h1, f"{PLACE}/collection.zip", collection())
        h1.sh(f"cd {PLACE} && python3 -m zipfile -e collection.zip .")
        yield h1


def put_binary(h1: Host, path: str, data: bytes) -> None:
    h1.run("sh", "-c", f"base64 -d >{path} && chmod 755 {path}", stdin=base64.b64encode(data).decode())


@pytest.mark.parametrize(
    ("when", "first", "both", "handler"),
    [("before", 1, False, False), ("after", 5, False, True), ("later", 9, False, False), ("later", 3, True, True)],
)
def test_criu_is_killed_at_each_of_its_calls(place: Host, when: str, first: int, both: bool, handler: bool) -> None:
    """both: together with the process that watches over its end. handler: of SIGTRAP, of the process's own."""
    step = 3 * EVERY if both else EVERY
    asked = {"when": when, "both": both, "handler": handler, "first": min(first, step), "step": step}
    done = place.ssh("env", f"PYTHONPATH={PLACE}", "python3", f"{PLACE}/criu_kill.py", stdin=json.dumps(asked))
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert seen["calls"] >= LEAST_CALLS
    results = [seen["whole"], *seen["results"], seen["again"]]
    assert [one for one in results if one["problems"]] == []
    assert seen["problems"] == []
    assert seen["whole"]["rc"] == seen["again"]["rc"] == 0 and seen["whole"]["hurt"] == 0
    killed = [one for one in seen["results"] if one["rc"] == (None if both else -9)]
    assert len(killed) >= len(seen["results"]) * 0.9
    assert sum(one["hurt"] for one in killed) >= len(killed) // 4, "too few were killed at work"
